"""Jobs of ranks in several languages, for the tests of this folder. ddprun is $DDPRUN."""
import os
import re
import subprocess
import unittest


def run_ranks(count, *command, timeout=150, env=None, options=()):
    """Runs a command on so many ranks and returns its output. Fails with the output unless all ranks end well. options: of ddprun."""
    done = subprocess.run([os.environ["DDPRUN"], "-n", str(count), *options, *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def accuracy(output):
    return float(re.search(r"test accuracy\s+([0-9.]+) %", output).group(1))


class ExamplesCase(unittest.TestCase):
    """The requirements on the examples of every language."""

    timeout_s = 150  # for one job

    def run_ranks(self, count, *command, options=()):
        return run_ranks(count, *command, timeout=self.timeout_s, options=options)

    def check(self, output, least):
        """The weights are those of a process alone."""
        self.assertIn(": met", output)
        self.assertGreaterEqual(accuracy(output), least)

    def check_as_good_as(self, in_c, *command):
        """A trainer that is given --compare-local is at most half a point worse than the one in C."""
        epochs = ("--epochs", "2")
        self.check(self.run_ranks(2, *command, *epochs), accuracy(self.run_ranks(2, in_c, *epochs)) - 0.5)

    def check_minimal(self, *command):
        self.assertEqual(self.run_ranks(2, *command).count("y = 3.000 -2.000 x"), 2)
