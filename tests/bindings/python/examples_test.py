"""The MNIST example against the one in C: the same accuracy, the same weights as a process alone.

    examples_test.py C-EXAMPLE PYTHON-EXAMPLE
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import ExamplesCase  # noqa: E402  (tests/bindings)

C_EXAMPLE, PYTHON_EXAMPLE = sys.argv[1:3]


class Examples(ExamplesCase):
    def test_accuracy(self):
        self.check_as_good_as(C_EXAMPLE, sys.executable, "-B", PYTHON_EXAMPLE, "--compare-local")

    def test_minimal(self):
        self.check_minimal(sys.executable, "-B", pathlib.Path(PYTHON_EXAMPLE).with_name("minimal.py"))

    def test_copied_gradients_on_four_ranks(self):
        self.check(self.run_ranks(4, sys.executable, "-B", PYTHON_EXAMPLE, "--compare-local", "--copy", "--epochs", "1"), 80)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
