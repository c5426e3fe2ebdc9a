"""A PyTorch model trained data-parallel through libddp gets the weights of one process.

    pytorch_test.py EXAMPLE MINIMAL
"""
import sys

import support

support.need("torch")
OUTPUT = support.run_ranks(2, sys.executable, "-B", sys.argv[1], "--compare-local", "--steps", "40")
print(OUTPUT)
assert "met" in OUTPUT
MINIMAL = support.run_ranks(2, sys.executable, "-B", sys.argv[2])
print(MINIMAL)
assert MINIMAL.count("y = 3.000 -2.000 x") == 2
