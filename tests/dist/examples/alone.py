#!/usr/bin/env python3
"""An example without a launcher is a group of one; with half of a launcher's variables it is an error that names them.

    alone.py PROGRAM
"""
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launchers import CLEAN  # noqa: E402  (tests/support)

HALF = [({"RANK": "0"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2"}, "RANK"), ({"MASTER_ADDR": "localhost"}, "MASTER_ADDR"),
        ({"DDP_STORE": "tcp://localhost:1"}, "DDP_STORE"), ({"RANK": "one", "WORLD_SIZE": "2"}, "one")]


def run(variables):
    return subprocess.run([sys.argv[1]], env={**CLEAN, **variables}, capture_output=True, text=True, timeout=60, check=False)


def main():
    alone = run({})
    if alone.returncode != 0 or "1 ranks" not in alone.stdout:
        sys.exit(f"alone it ended with {alone.returncode}\n{alone.stdout}{alone.stderr}")
    for variables, word in HALF:
        half = run(variables)
        if half.returncode != 1 or "DDP_ERROR_INVALID_ARGUMENT" not in half.stderr or word not in half.stderr:
            sys.exit(f"with {variables} it ended with {half.returncode}\n{half.stdout}{half.stderr}")


if __name__ == "__main__":
    main()
