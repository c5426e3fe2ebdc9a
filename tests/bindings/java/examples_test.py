#!/usr/bin/env python3
"""The examples in Java against the one in C: the same accuracy, the same weights as a process alone.

    examples_test.py JAVA JAR CLASSES C-EXAMPLE      ddprun is $DDPRUN, the source tree $DDP_SOURCE
"""
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import ExamplesCase, accuracy  # noqa: E402  (tests/bindings)

JAVA, JAR, CLASSES, C_EXAMPLE = sys.argv[1:]
SOURCE = os.environ["DDP_SOURCE"]
# Ranks share the cores and live for seconds: one compiler thread, and a collector without threads.
IN_JAVA = [JAVA, "-XX:+UseSerialGC", "-XX:CICompilerCount=2", "-Xmx512m", "-cp", f"{JAR}:{CLASSES}", "Mnist", "--data",
           f"{SOURCE}/examples/data/mnist"]


class Examples(ExamplesCase):
    timeout_s = 100

    def test_accuracy(self):
        self.check_as_good_as(C_EXAMPLE, *IN_JAVA, "--compare-local")

    def test_minimal(self):
        self.check_minimal(JAVA, "-cp", JAR, f"{SOURCE}/examples/java/Minimal.java")

    def test_copied_gradients_and_averaged_models(self):
        self.check(self.run_ranks(2, *IN_JAVA, "--compare-local", "--copy", "--epochs", "1"), 75)
        local_sgd = ("--hook", "post_local_sgd", "--hook-options", "start=20", "--average-every", "4", "--epochs", "1")
        self.assertGreaterEqual(accuracy(self.run_ranks(2, *IN_JAVA, *local_sgd)), 75)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
