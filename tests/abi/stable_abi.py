#!/usr/bin/env python3
"""Prints the ABI of the stable tier, as libabigail writes it: the types of the stable functions, from debugging information.

usage: stable_abi.py LIBRARY INCLUDE
"""
import pathlib
import re
import subprocess
import sys

from tiers import tiers

# Without folders, so that the text is the same on every machine. File names stay: from them --headers-dir knows which types are
# public, and without them abidiff takes every type for private and hides its changes.
ABIDW = ["abidw", "--exported-interfaces-only", "--drop-private-types", "--no-comp-dir-path", "--no-corpus-path", "--short-locs",
         "--no-elf-needed", "--headers-dir"]  # yapf: disable
SYMBOL = re.compile(r" *<elf-symbol name='(\w+)'[^\n]*/>\n")
FUNCTION = re.compile(r" *<function-decl name='(ddp_\w+)'.*?</function-decl>\n", re.DOTALL)


def main():
    library, include = sys.argv[1:]
    stable = set(tiers(pathlib.Path(include))[0])
    text = subprocess.run([*ABIDW, include, library], check=True, capture_output=True, text=True).stdout
    for kind in (SYMBOL, FUNCTION):
        text = kind.sub(lambda match: match[0] if match[1] in stable else "", text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
