"""For the tests beside this file. CMake says where things are: DDPRUN; PYTHONPATH holds the package."""
import contextlib
import os
import subprocess
import sys
import unittest

import ddp

RANK = int(os.environ.get("RANK", -1))  # -1: not started by ddprun


def run_ranks(count, *command, timeout=60, env=None):
    """Runs a command on so many ranks and returns its output. Fails with the output unless all ranks end well."""
    done = subprocess.run([os.environ["DDPRUN"], "-n", str(count), *map(str, command)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def alone():
    """A group of this process only."""
    return ddp.Group(0, 1, timeout=20)


@contextlib.contextmanager
def raises(case, kind, *words):
    """An error of this kind whose message has these words."""
    with case.assertRaises(kind) as caught:
        yield caught
    for word in words:
        case.assertIn(word, str(caught.exception))


def main(counts=()):
    """Runs the tests of the script: in this process, or on ranks, once for each count. Every rank runs all tests in the same
    order, over one group each."""
    if RANK < 0 and counts:
        for count in counts:
            print(run_ranks(count, sys.executable, "-B", sys.argv[0]))
        return
    chosen = os.environ.get("DDP_TESTS", "").split()  # "Ranks.test_hooks": only these
    unittest.main(module="__main__", argv=sys.argv[:1] + chosen, verbosity=1 if RANK <= 0 else 0)
