"""docs/horovod.md: ddprun takes each of its command lines, and the programs on the page run.

    horovod_docs_test.py              with PyTorch, the programs too
"""
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import support

ROOT = pathlib.Path(os.environ["DDP_SOURCE"])
TEXT = (ROOT / "docs" / "horovod.md").read_text()
FITTED = "y = 3.000 -2.000 x"


class Page(unittest.TestCase):
    def test_command_lines(self):
        lines = re.findall(r"`(ddprun [^`]*)`", TEXT)
        self.assertGreater(len(lines), 10)
        with tempfile.TemporaryDirectory() as folder:
            secret = pathlib.Path(folder) / "job.secret"
            secret.write_text("0123456789abcdef")
            secret.chmod(0o600)
            for line in lines:
                if line == "ddprun --trace":
                    continue
                with self.subTest(line=line):
                    done = subprocess.run([os.environ["DDPRUN"], "--dry-run", *shlex.split(line)[1:]], cwd=folder, text=True, timeout=30,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertIn("train.py", done.stdout)

    def test_variables(self):
        """The page names the variables that the package reads."""
        read = re.findall(r'"(HOROVOD_\w+)"', (ROOT / "bindings/python/ddp/horovod/_worker.py").read_text())
        self.assertEqual(set(read), set(re.findall(r"(HOROVOD_\w+)=", TEXT)))

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "needs PyTorch")
    def test_programs(self):
        programs = re.findall(r"<!-- (examples/python/\S+) -->", TEXT)
        self.assertEqual(len(programs), 2)
        for program in programs:
            options = ("--min-ranks", "1") if "elastic" in program else ()
            output = support.run_ranks(2, sys.executable, "-B", ROOT / program, options=options)
            self.assertEqual(output.count(FITTED), 2, output)


if __name__ == "__main__":
    support.main()
