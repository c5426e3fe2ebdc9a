"""The MNIST example against the one in C: the same accuracy, the same weights as a process alone.

    examples_test.py C-EXAMPLE PYTHON-EXAMPLE
"""
import pathlib
import re
import sys
import unittest

import support

C_EXAMPLE, PYTHON_EXAMPLE = sys.argv[1:3]


def accuracy(output):
    return float(re.search(r"test accuracy\s+([0-9.]+) %", output).group(1))


class Examples(unittest.TestCase):
    def check(self, output, least):
        self.assertIn(": met", output)
        self.assertGreaterEqual(accuracy(output), least)

    def test_accuracy(self):
        epochs = ("--epochs", "4")
        in_c = accuracy(support.run_ranks(2, C_EXAMPLE, *epochs))
        in_python = support.run_ranks(2, sys.executable, "-B", PYTHON_EXAMPLE, "--compare-local", *epochs)
        self.check(in_python, in_c - 0.5)

    def test_minimal(self):
        minimal = pathlib.Path(PYTHON_EXAMPLE).with_name("minimal.py")
        self.assertEqual(support.run_ranks(2, sys.executable, "-B", minimal).count("y = 3.000 -2.000 x"), 2)

    def test_copied_gradients_on_four_ranks(self):
        self.check(support.run_ranks(4, sys.executable, "-B", PYTHON_EXAMPLE, "--compare-local", "--copy", "--epochs", "1"), 80)


if __name__ == "__main__":
    support.main()
