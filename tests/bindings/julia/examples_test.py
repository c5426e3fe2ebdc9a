"""The examples in Julia: the same accuracy as in C, the same weights as a process alone.

    examples_test.py C-EXAMPLE JULIA-EXAMPLE
"""
import os
import pathlib
import shlex
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import ExamplesCase  # noqa: E402  (tests/bindings)

C_EXAMPLE, JULIA_EXAMPLE = sys.argv[1:]
JULIA = [os.environ["JULIA"], "--startup-file=no"]


class Examples(ExamplesCase):
    timeout_s = 250

    def test_accuracy(self):
        """One rank's gradients are in buckets, the other's are copied."""
        train = shlex.join([*JULIA, JULIA_EXAMPLE, "--compare-local"])
        self.check_as_good_as(C_EXAMPLE, "bash", "-c", f"[ $RANK = 0 ] || copy=--copy; exec {train} $copy \"$@\"", "train")

    def test_minimal(self):
        self.check_minimal(*JULIA, pathlib.Path(JULIA_EXAMPLE).with_name("minimal.jl"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
