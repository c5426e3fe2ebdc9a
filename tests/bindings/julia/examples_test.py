"""The examples in Julia: the same accuracy as in C, the same weights as a process alone, and one job of ranks in several languages.

    examples_test.py C-EXAMPLE JULIA-EXAMPLE [PYTHON-EXAMPLE]
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

C_EXAMPLE, JULIA_EXAMPLE, *PYTHON_EXAMPLE = sys.argv[1:]
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
        epochs = ("--epochs", "4")
        in_c = accuracy(run_ranks(2, C_EXAMPLE, *epochs))
        in_julia = run_ranks(2, *JULIA, JULIA_EXAMPLE, "--compare-local", *epochs)
        self.check(in_julia, in_c - 0.5)

    def test_minimal(self):
        minimal = pathlib.Path(JULIA_EXAMPLE).with_name("minimal.jl")
        self.assertEqual(run_ranks(2, *JULIA, minimal).count("y = 3.000 -2.000 x"), 2)

    def test_ranks_in_several_languages(self):
        """Each compares its weights with those that it gets alone: all are the same up to rounding."""
        commands = {0: [*JULIA, JULIA_EXAMPLE, "--copy"], 1: [C_EXAMPLE], 2: [C_EXAMPLE]}
        if PYTHON_EXAMPLE:
            commands[2] = [sys.executable, "-B", *PYTHON_EXAMPLE]
        cases = "".join(f'{rank}) exec {" ".join(map(repr, command))} "$@";; ' for rank, command in commands.items())
        script = f"case $RANK in {cases} *) exec {' '.join(map(repr, [*JULIA, JULIA_EXAMPLE]))} \"$@\";; esac"
        self.check(run_ranks(4, "bash", "-c", script, "mixed", "--compare-local", "--epochs", "1"), 75)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
