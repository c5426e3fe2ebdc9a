#!/usr/bin/env python3
"""Checks that layout.c asserts the size of every public struct and the offset of every field, and values.c the value of every
public constant, each in the order of the headers."""
import pathlib
import re
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRUCT = re.compile(r"typedef struct (ddp_\w+) \{(.*?)\n\} \1;", re.DOTALL)
ENUM = re.compile(r"\benum \{(.*?)\}", re.DOTALL)
# A function pointer's name stands in "(*name)(", any other field's before a comma or at the end.
FUNCTION_NAME = re.compile(r"\(\*(\w+)\)\(")
FIELD_NAME = re.compile(r"(\w+)(?:\[\w+\])?\s*(?:,|$)")


def header_texts(include):
    for header in sorted(include.glob("ddp/*.h")):
        yield COMMENT.sub("", header.read_text())


def expected_layout(include):
    for text in header_texts(include):
        for struct, body in STRUCT.findall(text):
            yield f"SIZE({struct}"
            for statement in filter(None, map(str.strip, body.split(";"))):
                for name in FUNCTION_NAME.findall(statement)[:1] or FIELD_NAME.findall(statement):
                    yield f"FIELD({struct}, {name}"


def expected_values(include):
    for text in header_texts(include):
        for body in ENUM.findall(text):
            yield from (f"VALUE({name}" for name in re.findall(r"\bDDP_\w+", body))


def compare(path, expected):
    """Complains about assertions that are missing from `path`, obsolete, or out of order; True if there are none."""
    asserted = re.findall(r"^([A-Z]+\(\w+(?:, [a-z]\w*)?), -?\d+\);", path.read_text(), re.MULTILINE)
    for entry in expected:
        if entry not in asserted:
            print(f"{path}: add {entry}, ...);")
    for entry in asserted:
        if entry not in expected:
            print(f"{path}: {entry}, ...) is not in the headers: what is public may not go away")
    if sorted(asserted) == sorted(expected) and asserted != expected:
        print(f"{path}: the assertions are not in the order of the headers")
    return bool(expected) and asserted == expected


def main():
    include, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
    good = [compare(here / "layout.c", list(expected_layout(include))),
            compare(here / "values.c", list(expected_values(include)))]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
