"""Reads what `swig -xml ddp.i` knows of the public headers, for the generators of Julia and Rust.

Types are in SWIG's notation, outside in: "p.q(const).char" is a pointer to const char. The XML holds addresses of SWIG's own memory,
other ones in every run. They are not read, so that what a generator writes depends on the headers alone.
"""
import re
import xml.etree.ElementTree as ElementTree


def read(path):
    return ElementTree.parse(path).getroot()


def attributes(node):
    return {each.get("name"): each.get("value") for each in node.findall("attributelist/attribute")}


def number(text):
    """(value, whether it is unsigned) of a C expression."""
    unsigned = re.search(r"\d[uU]", text) is not None
    plain = re.sub(r"(?<=\d)[uUlL]+", "", text).strip("() ")
    match = re.fullmatch(r"(-?\w+)(?:\s*<<\s*(\d+))?", plain)
    if not match:
        raise ValueError(f"no generator knows the constant {text}")
    return int(match[1], 0) << int(match[2] or 0), unsigned


def constants(top):
    """(name, value, whether it is unsigned)"""
    for node in top.iter():
        told = attributes(node) if node.tag in ("enumitem", "constant") else {}
        if node.tag == "enumitem":
            yield told["name"], *number(told["enumvalue"])
        elif node.tag == "constant" and told["type"] == "int":
            yield told["name"], *number(told["value"])


def structs(top):
    """(name, [(field, type)])"""
    for node in top.iter("class"):
        members = [attributes(each) for each in node.findall("cdecl")]
        yield attributes(node)["name"], [(each["name"], each["decl"] + each["type"]) for each in members if each["kind"] == "variable"]


def typedefs(top):
    """(name, type) of numbers under another name and of pointers to functions; the type of an opaque struct is None."""
    defined = {name for name, _ in structs(top)}
    for node in top.iter("cdecl"):
        told = attributes(node)
        if told.get("kind") == "typedef" and told["name"] not in defined and told["name"].startswith("ddp_"):
            yield told["name"], None if told["type"] == f"struct {told['name']}" else told["decl"] + told["type"]


def functions(top):
    """(name, type of the result, [(parameter, type)]). Inline functions are not in the library."""
    for node in top.iter("cdecl"):
        told = attributes(node)
        if told.get("kind") != "function" or told.get("storage") == "static":
            continue
        given = [attributes(each) for each in node.findall("attributelist/parmlist/parm")]
        result = re.sub(r"^f\(.*\)\.(?=(?:p\.|q\(const\)\.)*$)", "", told["decl"]) + told["type"]
        yield told["name"], result, [(each["name"], each["type"]) for each in given if each["type"] != "void"]
