"""PyTorch, for the scripts beside this file; or the end of the script, with a line that says why."""
import sys


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


try:
    import torch  # noqa: F401  (for the scripts)
except ImportError:
    skip("there is no PyTorch")
