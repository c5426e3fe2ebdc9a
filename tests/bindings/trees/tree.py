"""A rank of one_tree_test.py in Python.

    tree.py numpy|jax
"""
import importlib
import os
import sys

import numpy as np

kind = sys.argv[1]
adapter = importlib.import_module(f"ddp.{kind}")


def tree(value, array=np.full):
    layers = [{"w": array(3, value, "f4"), "bias": array(2, value, "f4")} for _ in range(2)]
    return {"layers": layers, "again": [[array(1, value, "f4")]]}


def check(found, value):
    leaves = [each for layer in found["layers"] for each in layer.values()] + found["again"][0]
    assert len(leaves) == 5 and all((np.asarray(leaf) == value).all() for leaf in leaves), found


parallel = adapter.DataParallel(tree(float(int(os.environ["RANK"]) == 0)))
group = parallel.group
check(parallel.params, 1)  # rank 0's
for step in range(3):
    check(parallel.mean(tree(step + group.rank)), step + (group.world_size - 1) / 2)
print(f"rank {group.rank} ({kind}):", *(parameter.name for parameter in parallel.context.parameters))
