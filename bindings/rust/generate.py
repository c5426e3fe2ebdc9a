#!/usr/bin/env python3
"""Writes the low-level Rust module from what SWIG knows of the public headers.

    swig -xml -I../../include -o ddp.xml ../swig/ddp.i && generate.py ddp.xml ddp-sys/src/bindings.rs

The result is committed, so that the crate builds with nothing but rustc. The test rust.generated compares it with the headers.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "swig"))
import interface

BASIC = {
    "void": "c_void", "char": "c_char", "int": "c_int", "float": "f32", "double": "f64", "size_t": "usize",
    "int8_t": "i8", "int16_t": "i16", "int32_t": "i32", "int64_t": "i64",
    "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64",
}  # yapf: disable
KEYWORDS = {"as", "fn", "in", "match", "move", "mut", "ref", "type", "where"}
HEADER = """\
// Generated from the public headers by bindings/rust/generate.py; changes here are lost.
use std::os::raw::{c_char, c_void};

"""


def split(text):
    """The arguments of a function in SWIG's notation, at its commas outside of brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def rust_type(kind):
    if kind.startswith("p.f("):
        inside, result = re.fullmatch(r"p\.f\((.*)\)\.([\w.]*)", kind).groups()
        arguments = ", ".join(map(rust_type, split(inside)))
        return f"Option<unsafe extern \"C\" fn({arguments}){returned(result)}>"
    if match := re.fullmatch(r"p\.q\(const\)\.(.*)", kind):
        return f"*const {rust_type(match[1])}"
    if match := re.fullmatch(r"p\.(.*)", kind):
        return f"*mut {rust_type(match[1])}"
    if match := re.fullmatch(r"a\((\d+)\)\.(.*)", kind):
        return f"[{rust_type(match[2])}; {match[1]}]"
    if not re.fullmatch(r"\w+", kind):
        raise ValueError(f"generate.py does not know the type {kind}")
    return BASIC.get(kind, kind)


def returned(kind):
    return "" if kind == "void" else f" -> {rust_type(kind)}"


def named(name):
    return f"r#{name}" if name in KEYWORDS else name


def constants(top):
    for name, value, unsigned in interface.constants(top):
        yield f"pub const {name}: {'u32' if unsigned else 'i32'} = {value};"


def typedefs(top):
    for name, kind in interface.typedefs(top):
        if kind is None:
            yield f"#[repr(C)]\npub struct {name} {{\n    _opaque: [u8; 0],\n}}"
        else:
            yield f"pub type {name} = {rust_type(kind)};"


def structs(top):
    for name, fields in interface.structs(top):
        lines = "".join(f"    pub {named(field)}: {rust_type(kind)},\n" for field, kind in fields)
        yield f"#[repr(C)]\n#[derive(Clone, Copy)]\npub struct {name} {{\n{lines}}}"


def functions(top):
    lines = []
    for name, result, given in interface.functions(top):
        arguments = ", ".join(f"{named(each)}: {rust_type(kind)}" for each, kind in given)
        lines.append(f"    pub fn {name}({arguments}){returned(result)};\n")
    yield f'extern "C" {{\n{"".join(lines)}}}'


def main():
    xml, output = sys.argv[1:3]
    top = interface.read(xml)
    parts = ("\n".join(part(top)) for part in (constants, typedefs, structs, functions))
    pathlib.Path(output).write_text(HEADER + "\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
