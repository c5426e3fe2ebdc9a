#!/usr/bin/env python3
"""Compiles every public header alone, and twice in one file, as each language that users compile it as."""
import argparse
import pathlib
import re
import subprocess
import sys

STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
# The promise of a header's suffix: (language, standard).
PROMISES = {
    ".h": [("c", "c99"), ("c++", "c++11")],
    ".hpp": [("c++", "c++17"), ("c++", "c++20")],
}


def needs_definition(header):
    """Whether the header is experimental (docs/abi.md), or a C++ header over one."""
    if header.name in ("ddp.h", "ddp.hpp"):
        return False
    text = header.read_text()
    return '"experimental.h"' in text or header.name == "experimental.h" or any(
        needs_definition(header.parent / each) for each in re.findall(r'#include "(\w+\.h(?:pp)?)"', text))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("compiler", help="gcc or clang; the driver compiles both languages")
    parser.add_argument("include", type=pathlib.Path, help="the folder that holds ddp/")
    arguments = parser.parse_args()

    headers = sorted(arguments.include.glob("ddp/*.h*"))
    failures = 0
    for header in headers:
        name = f"ddp/{header.name}"
        for language, standard in PROMISES[header.suffix]:
            # Angle brackets, as users write it; the declaration keeps a header of macros from being an empty C file.
            source = f"#include <{name}>\n#include <{name}>\nextern int not_empty;\n"
            tier = ["-DDDP_EXPERIMENTAL"] if needs_definition(header) else []
            command = [arguments.compiler, "-x", language, f"-std={standard}", *STRICT, *tier, "-I", arguments.include, "-"]
            result = subprocess.run(command, input=source, capture_output=True, text=True)
            if result.returncode:
                failures += 1
                print(f"{name} alone as {standard} with {arguments.compiler}:\n{result.stderr}")
    print(f"{len(headers)} headers, {failures} failures")
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
