"""For the tests beside this file. CMake says where things are: DDPRUN; PYTHONPATH holds the package."""
import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import ddp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import run_ranks  # noqa: E402  (tests/bindings)

RANK = int(os.environ.get("RANK", -1))  # -1: not started by ddprun


def need(*names):
    """Goes on where these modules are: in this Python, in that of frameworks_test.py, or in that of DDP_TORCH_PYTHON, which then takes over.
    Skips the test otherwise."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return
    folder, other = os.environ.pop("DDP_FRAMEWORKS", None), None
    if not folder:
        other = os.environ.pop("DDP_TORCH_PYTHON", None)
    python = os.path.join(folder, "bin", "python") if folder else other
    if python and os.path.exists(python):
        os.execv(python, [python, "-B", *sys.argv])
    print(f"skipped: {', '.join(missing)} not installed")
    sys.exit()


def alone():
    """A group of this process only."""
    return ddp.Group(0, 1, timeout=20)


def shared_folder(case, group):
    """A folder of rank 0, which removes it at the end of the test. Collective."""
    name = bytearray(256)
    if group.rank == 0:
        folder = tempfile.mkdtemp()
        case.addCleanup(shutil.rmtree, folder)
        name[:len(folder)] = folder.encode()
    group.broadcast(name, root=0)
    case.addCleanup(group.barrier)  # before that: the last comes first
    return pathlib.Path(name.rstrip(b"\0").decode())


def names_of_c(message):
    return [name for name in re.findall(r"\b(?:ddp|DDP)_\w+", message) if hasattr(ddp._ddp, name)]


@contextlib.contextmanager
def raises(case, kind, *words):
    """An error of this kind whose message has these words, and no names of C."""
    with case.assertRaises(kind) as caught:
        yield caught
    case.assertEqual(names_of_c(str(caught.exception)), [])
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
    unittest.main(module="__main__", argv=sys.argv[:1] + chosen, verbosity=2 if RANK <= 0 else 0)
