"""The example for CuPy, with a stand-in for CuPy over a device whose memory no processor can touch.

    cupy_test.py MINIMAL FAKE_DEVICE        FAKE_DEVICE: libddp-cuda.so of the tests; its folder is $DDP_MODULE_PATH
"""
import os
import pathlib
import sys

import support

MINIMAL, FAKE_DEVICE = sys.argv[1:]
stand_in = pathlib.Path(__file__).resolve().parent / "played" / "stand_in"
environment = {"FAKE_DEVICE": FAKE_DEVICE, "PYTHONPATH": f"{stand_in}:{os.environ['PYTHONPATH']}"}
for count in (1, 2, 3):
    output = support.run_ranks(count, sys.executable, "-B", MINIMAL, env=environment)
    print(output)
    assert output.count("y = 3.000 -2.000 x") == count
