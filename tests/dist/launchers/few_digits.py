#!/usr/bin/env python3
"""The first digits of each set of MNIST: jobs that show how they are started need not train for long.

usage: few_digits.py SOURCE TARGET COUNT    folders
"""
import gzip
import math
import pathlib
import struct
import sys


def head_of(idx, count):
    """The IDX format: two zero bytes, the type (8: one byte an element), the number of extents, each extent, then the elements."""
    header = struct.Struct(f">4s{idx[3]}I")
    kind, of, *extents = header.unpack_from(idx)
    count = min(count, of)
    return header.pack(kind, count, *extents) + idx[header.size:header.size + count * math.prod(extents)]


source, target = map(pathlib.Path, sys.argv[1:3])
target.mkdir(parents=True, exist_ok=True)
for path in source.glob("*.gz"):
    (target / path.name).write_bytes(gzip.compress(head_of(gzip.decompress(path.read_bytes()), int(sys.argv[3])), 1))
