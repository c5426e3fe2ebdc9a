"""mypy --strict has nothing to say about the package, nor about a program that uses it.

    typing_test.py FOLDER       which holds the package
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

if importlib.util.find_spec("mypy") is None:
    print("skipped: mypy is not installed (Debian: mypy)")
    sys.exit()


def mypy(*what, quiet=False):
    """Its status; what it says is printed."""
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={os.devnull}", "--no-error-summary", *map(str, what)]
    return subprocess.run(command, env={**os.environ, "MYPYPATH": sys.argv[1]}, cwd="/", timeout=300, check=False,
                          stdout=subprocess.DEVNULL if quiet else None).returncode


PROGRAM = pathlib.Path(__file__).resolve().with_name("typed_program.py")
# A program that is wrong is found to be so: the types are seen at all.
WRONG = "import ddp\nddp.Group().barrier().wait()\nddp.Group().allreduce(ddp.F32, op=3.5)\nddp.Nothing"
if mypy("-p", "ddp") != 0 or mypy(PROGRAM) != 0:
    sys.exit("mypy has found the above")
if mypy("-c", WRONG, quiet=True) == 0:
    sys.exit("mypy finds nothing in a program that is wrong: it does not see the package's types")
