"""Programs in Rust or Go. A rank that is killed gives the others an error, which names it, or an elastic job goes on without it. The examples: the accuracy of C, and the
weights of a process alone.

    compiled_programs.py PROGRAMS [C-EXAMPLE]      PROGRAMS: their folder; ddprun is $DDPRUN
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from jobs import ExamplesCase  # noqa: E402

PROGRAMS, C_EXAMPLE = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
DATA = pathlib.Path(__file__).resolve().parents[2] / "examples/data/mnist"


class Programs(ExamplesCase):
    timeout_s = 250  # Go does not use SIMD

    def test_killed(self):
        done = subprocess.run([os.environ["DDPRUN"], "-n", "3", PROGRAMS / "killed"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 137, done.stdout)
        for rank in (0, 2):
            self.assertRegex(done.stdout, re.compile(rf"^\[{rank}\] Error: DDP_ERROR_RANK_FAILED: rank 1 \(pid \d+ on ", re.M))

    def test_lost(self):
        """An elastic job goes on without the rank."""
        output = self.run_ranks(3, PROGRAMS / "lost", options=["--min-ranks", "2"])
        self.assertEqual(len(re.findall(r"worlds \[3,? 2\]: passed", output)), 2, output)

    def test_minimal(self):
        self.check_minimal(PROGRAMS / "minimal")

    @unittest.skipUnless(C_EXAMPLE, "no example in C")
    def test_accuracy(self):
        self.check_as_good_as(C_EXAMPLE, PROGRAMS / "mnist", "--data", str(DATA), "--compare-local")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
