"""The examples in Julia: the same accuracy as in C, the same weights as a process alone.

    examples_test.py C-EXAMPLE JULIA-EXAMPLE
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

C_EXAMPLE, JULIA_EXAMPLE = sys.argv[1:]
JULIA = [os.environ["JULIA"], "--startup-file=no"]


def run_ranks(count, *command):
    done = subprocess.run([os.environ["DDPRUN"], "-n", str(count), *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def accuracy(output):
    return float(re.search(r"test accuracy\s+([0-9.]+) %", output).group(1))


class Examples(unittest.TestCase):
    def check(self, output, least):
        self.assertIn(": met", output)
        self.assertGreaterEqual(accuracy(output), least)

    def test_accuracy(self):
        """One rank's gradients are in buckets, the other's are copied."""
        epochs = ("--epochs", "4")
        in_c = accuracy(run_ranks(2, C_EXAMPLE, *epochs))
        train = shlex.join([*JULIA, JULIA_EXAMPLE, "--compare-local", *epochs])
        in_julia = run_ranks(2, "bash", "-c", f"[ $RANK = 0 ] || copy=--copy; exec {train} $copy")
        self.check(in_julia, in_c - 0.5)

    def test_minimal(self):
        minimal = pathlib.Path(JULIA_EXAMPLE).with_name("minimal.jl")
        self.assertEqual(run_ranks(2, *JULIA, minimal).count("y = 3.000 -2.000 x"), 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
