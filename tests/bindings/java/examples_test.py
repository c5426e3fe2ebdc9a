#!/usr/bin/env python3
"""The examples in Java against the one in C: the same accuracy, the same weights as a process alone.

    examples_test.py JAVA JAR CLASSES C-EXAMPLE      ddprun is $DDPRUN, the source tree $DDP_SOURCE
"""
import os
import re
import subprocess
import sys
import unittest

JAVA, JAR, CLASSES, C_EXAMPLE = sys.argv[1:]
SOURCE = os.environ["DDP_SOURCE"]
# Ranks share the cores and live for seconds: one compiler thread, and a collector without threads.
IN_JAVA = [JAVA, "-XX:+UseSerialGC", "-XX:CICompilerCount=2", "-Xmx512m", "-cp", f"{JAR}:{CLASSES}", "Mnist", "--data",
           f"{SOURCE}/examples/data/mnist"]


def run_ranks(count, *command):
    """The output of a command on so many ranks, which must all end well."""
    done = subprocess.run([os.environ["DDPRUN"], "-n", str(count), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def accuracy(output):
    return float(re.search(r"test accuracy\s+([0-9.]+) %", output).group(1))


class Examples(unittest.TestCase):
    def check(self, output, least):
        self.assertIn(": met", output)
        self.assertGreaterEqual(accuracy(output), least)

    def test_accuracy(self):
        in_c = accuracy(run_ranks(2, C_EXAMPLE, "--epochs", "4"))
        self.check(run_ranks(2, *IN_JAVA, "--compare-local", "--epochs", "4"), in_c - 0.5)

    def test_minimal(self):
        output = run_ranks(2, JAVA, "-cp", JAR, f"{SOURCE}/examples/java/Minimal.java")
        self.assertEqual(output.count("y = 3.000 -2.000 x"), 2)

    def test_copied_gradients_and_averaged_models(self):
        self.check(run_ranks(2, *IN_JAVA, "--compare-local", "--copy", "--epochs", "1"), 75)
        local_sgd = ("--hook", "post_local_sgd", "--hook-options", "start=20", "--average-every", "4", "--epochs", "1")
        self.assertGreaterEqual(accuracy(run_ranks(2, *IN_JAVA, *local_sgd)), 75)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
