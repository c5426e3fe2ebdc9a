#!/usr/bin/env python3
"""Lists the exported functions by tier (docs/abi.md), or checks the lists in abi/ against the headers.

usage: tiers.py INCLUDE                       prints "stable NAME" or "experimental NAME" for each function
       tiers.py INCLUDE SYMBOLS STABLE        checks that both lists are those of the headers
       tiers.py INCLUDE --stable              prints the stable ones, for tools/update-abi
"""
import pathlib
import re
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"^DDP_API\s[^;]*?\b(ddp_\w+)\(", re.MULTILINE)
GATE = '#include "experimental.h"'


def tiers(include):
    """(stable, experimental): the names of functions, sorted."""
    found = [], []
    for header in include.glob("ddp/*.h"):
        text = COMMENT.sub("", header.read_text())
        found[GATE in text].extend(FUNCTION.findall(text))
    return tuple(map(sorted, found))


def faults(include, symbols, stable):
    """Faults of the lists, and of headers of the one tier that need the other."""
    wanted, experimental = tiers(include)
    for name in sorted(set(wanted + experimental) ^ set(symbols)):
        yield f"{name} is in {'the headers' if name not in symbols else 'abi/ddp.symbols'} only"
    for name in sorted(set(stable) - set(wanted)):
        yield f"{name} was stable: it may go, or become experimental, with a new DDP_ABI_VERSION only"
    for name in sorted(set(wanted) - set(stable)):
        yield f"{name} is new in the stable tier: that is a promise. If it is intended: tools/update-abi, and commit abi/"
    for header in sorted(include.glob("ddp/*.h")):
        text = header.read_text()
        if GATE in text and "EXPERIMENTAL: " not in text[:text.index("*/")]:
            yield f"{header.name}: the comment at its top does not say, after EXPERIMENTAL, what may change"


def main():
    include = pathlib.Path(sys.argv[1])
    stable, experimental = tiers(include)
    if sys.argv[2:] == ["--stable"]:
        print("\n".join(stable))
    elif len(sys.argv) == 2:
        print("\n".join([*(f"stable {name}" for name in stable), *(f"experimental {name}" for name in experimental)]))
    else:
        found = list(faults(include, *(pathlib.Path(each).read_text().split() for each in sys.argv[2:])))
        print("\n".join([*found, f"{len(stable)} stable functions, {len(experimental)} experimental ones"]))
        return 1 if found or not stable or not experimental else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
