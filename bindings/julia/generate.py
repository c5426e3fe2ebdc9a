#!/usr/bin/env python3
"""Writes the low-level Julia module from what SWIG knows of the public headers.

    swig -xml -I../../include -o ddp.xml ../swig/ddp.i && generate.py ddp.xml SONAME LibDDP.jl

SWIG has no Julia; its XML gives names, types, constants and structs. The XML holds addresses of SWIG's own memory, other
ones in every run. They are not read, and the output depends on the headers alone.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# C's names of types that Julia has under another.
BASIC = {
    "void": "Cvoid", "char": "UInt8", "int": "Cint", "float": "Cfloat", "double": "Cdouble", "size_t": "Csize_t",
    "int8_t": "Int8", "int16_t": "Int16", "int32_t": "Int32", "int64_t": "Int64",
    "uint8_t": "UInt8", "uint16_t": "UInt16", "uint32_t": "UInt32", "uint64_t": "UInt64",
}  # yapf: disable
HEADER = '''\
# Generated from the public headers by bindings/julia/generate.py; changes here are lost.
"""
    LibDDP

The C interface of libddp under its own names: every function, type and constant of include/ddp. Arguments are pointers and
numbers, nothing is checked. The module DDP is what programs use.
"""
module LibDDP

# The name by which the loader knows the library.
const libddp = "{soname}"

# Where the functions are, in the order of `functions`. DDP.__init__ looks them up in the file that it loads: Julia would look for a
# library that `ccall` names as soon as it compiles the call, and load it with RTLD_DEEPBIND.
const addresses = fill(C_NULL, {count})
'''


def attributes(node):
    return {each.get("name"): each.get("value") for each in node.findall("attributelist/attribute")}


def julia_type(swig_type):
    """Translates SWIG's notation, outside in: "p.q(const).char" is a pointer to const char."""
    if match := re.fullmatch(r"q\(const\)\.(.*)", swig_type):
        return julia_type(match[1])
    if re.match(r"p\.f\(", swig_type):
        return "Ptr{Cvoid}"
    if swig_type == "p.q(const).char":
        return "Cstring"
    if match := re.fullmatch(r"p\.(.*)", swig_type):
        inner = julia_type(match[1])
        return f"Ptr{{{inner}}}"
    if match := re.fullmatch(r"a\((\d+)\)\.(.*)", swig_type):
        return f"NTuple{{{match[1]}, {julia_type(match[2])}}}"
    if not re.fullmatch(r"\w+", swig_type):
        raise ValueError(f"generate.py does not know the type {swig_type}")
    return BASIC.get(swig_type, swig_type)


def member_type(told):
    return julia_type(told["decl"] + told["type"])


def parameters(node):
    return [attributes(each) for each in node.findall("attributelist/parmlist/parm")]


def number(text):
    """The constant of a C expression: Julia's Int32, or UInt32 for flags."""
    unsigned = re.search(r"\d[uU]", text) is not None
    plain = re.sub(r"(?<=\d)[uUlL]+", "", text).strip("() ")
    match = re.fullmatch(r"(-?\w+)(?:\s*<<\s*(\d+))?", plain)
    if not match:
        raise ValueError(f"generate.py does not know the constant {text}")
    value = int(match[1], 0) << int(match[2] or 0)
    return f"0x{value:08x}" if unsigned else f"Int32({value})"


def constants(top):
    for node in top.iter():
        told = attributes(node) if node.tag in ("enumitem", "constant") else {}
        if node.tag == "enumitem":
            yield f"const {told['name']} = {number(told['enumvalue'])}"
        elif node.tag == "constant" and told["type"] == "int":
            yield f"const {told['name']} = {number(told['value'])}"


def structs(top):
    for node in top.iter("class"):
        told = attributes(node)
        members = [attributes(each) for each in node.findall("cdecl")]
        lines = [f"    {each['name']}::{member_type(each)}" for each in members if each["kind"] == "variable"]
        yield "\n".join((f"struct {told['name']}", *lines, "end"))


def typedefs(top, defined):
    """Opaque types, numbers under another name, and pointers to functions."""
    for node in top.iter("cdecl"):
        told = attributes(node)
        if told.get("kind") != "typedef" or told["name"] in defined or not told["name"].startswith("ddp_"):
            continue
        if told["type"] == f"struct {told['name']}":
            yield f"mutable struct {told['name']} end"
        elif told["decl"].startswith("p.f("):
            yield f"const {told['name']} = Ptr{{Cvoid}}"
        else:
            yield f"const {told['name']} = {member_type(told)}"


def functions(top):
    for node in top.iter("cdecl"):
        told = attributes(node)
        if told.get("kind") != "function" or told.get("storage") == "static":  # inline functions are not in the library
            continue
        result = julia_type(re.sub(r"^f\(.*\)\.(?=(?:p\.|q\(const\)\.)*$)", "", told["decl"]) + told["type"])
        given = [each for each in parameters(node) if each["type"] != "void"]
        names = [each["name"] + "_" * (each["name"] in ("begin", "end", "function")) for each in given]
        types = "".join(f"{julia_type(each['type'])}, " for each in given).rstrip()
        types = types if len(given) == 1 else types.rstrip(",")
        yield told["name"], ", ".join(names), ", ".join((result, f"({types})", *names))


def calls(found):
    for i, (name, names, call) in enumerate(found, 1):
        yield f"@inline {name}({names}) =\n    ccall(@inbounds(addresses[{i}]), {call})"
    listed = "\n".join(f"    :{name}," for name, _, _ in found)
    yield f"const functions = (\n{listed}\n)"


def ordered(declarations):
    """Each after what its fields are made of, in the order given otherwise."""
    waiting = list(declarations)
    names = {re.search(r"(?:struct|const) (\w+)", each)[1] for each in waiting}
    done = set()
    while waiting:
        for each in waiting:
            name = re.search(r"(?:struct|const) (\w+)", each)[1]
            needed = names & set(re.findall(r"\w+", each)) - {name}
            if needed <= done:
                done.add(name)
                waiting.remove(each)
                yield each
                break
        else:
            raise ValueError(f"these need each other: {waiting}")


def main():
    xml, soname, output = sys.argv[1:4]
    top = ElementTree.parse(xml).getroot()
    made = list(structs(top))
    defined = {re.search(r"struct (\w+)", each)[1] for each in made}
    found = list(functions(top))
    parts = (constants(top), ordered([*typedefs(top, defined), *made]), calls(found))
    text = "\n\n".join((HEADER.format(soname=soname, count=len(found)), *("\n".join(part) for part in parts), "end\n"))
    pathlib.Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
