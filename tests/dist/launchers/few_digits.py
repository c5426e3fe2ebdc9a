#!/usr/bin/env python3
"""The first digits of each set of MNIST: jobs that show how they are started need not train for long.

usage: few_digits.py SOURCE TARGET COUNT    folders
"""
import gzip
import pathlib
import struct
import sys


def head_of(idx, count):
    """The IDX format: two zero bytes, the type (8: one byte an element), the number of extents, each extent, then the elements."""
    extents = list(struct.unpack_from(f">{idx[3]}I", idx, 4))
    size = 1
    for extent in extents[1:]:
        size *= extent
    extents[0] = min(count, extents[0])
    return idx[:4] + struct.pack(f">{idx[3]}I", *extents) + idx[4 + 4 * idx[3]:][:extents[0] * size]


source, target = map(pathlib.Path, sys.argv[1:3])
target.mkdir(parents=True, exist_ok=True)
for path in source.glob("*.gz"):
    (target / path.name).write_bytes(gzip.compress(head_of(gzip.decompress(path.read_bytes()), int(sys.argv[3])), 1))
