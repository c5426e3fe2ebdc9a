#!/usr/bin/env python3
"""Writes the low-level Julia module from what SWIG knows of the public headers.

    swig -xml -I../../include -o ddp.xml ../swig/ddp.i && generate.py ddp.xml SONAME LibDDP.jl

SWIG has no Julia; its XML gives names, types, constants and structs: ../swig/interface.py.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "swig"))
import interface

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


def julia_type(swig_type):
    """Translates SWIG's notation."""
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


def constants(top):
    """Julia's Int32, or UInt32 for flags."""
    for name, value, unsigned in interface.constants(top):
        yield f"const {name} = " + (f"0x{value:08x}" if unsigned else f"Int32({value})")


def structs(top):
    for name, fields in interface.structs(top):
        yield "\n".join((f"struct {name}", *(f"    {field}::{julia_type(kind)}" for field, kind in fields), "end"))


def typedefs(top):
    for name, kind in interface.typedefs(top):
        yield f"mutable struct {name} end" if kind is None else f"const {name} = {julia_type(kind)}"


def functions(top):
    for name, result, given in interface.functions(top):
        names = [each + "_" * (each in ("begin", "end", "function")) for each, _ in given]
        types = "".join(f"{julia_type(kind)}, " for _, kind in given).rstrip()
        types = types if len(given) == 1 else types.rstrip(",")
        yield name, ", ".join(names), ", ".join((julia_type(result), f"({types})", *names))


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
    top = interface.read(xml)
    found = list(functions(top))
    parts = (constants(top), ordered([*typedefs(top), *structs(top)]), calls(found))
    text = "\n\n".join((HEADER.format(soname=soname, count=len(found)), *("\n".join(part) for part in parts), "end\n"))
    pathlib.Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
