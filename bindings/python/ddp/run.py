"""python -m ddp.run, and the wheel's command ddprun: they start the ranks of a program.

    python -m ddp.run -n 2 python train.py

The arguments are ddprun's (docs/ddprun.md). A wheel has ddprun in it; otherwise it is the one that PATH finds.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import sys
from typing import List, NoReturn, Optional


def launcher() -> Optional[str]:
    """Where ddprun is: beside this file, or where PATH finds it. None: nowhere."""
    beside = pathlib.Path(__file__).resolve().with_name("ddprun")
    if os.access(beside, os.X_OK):
        return str(beside)
    this = os.path.realpath(sys.argv[0])  # the wheel's command has the same name
    others = (shutil.which("ddprun", path=folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder)
    return next((found for found in others if found and os.path.realpath(found) != this), None)


def main(arguments: List[str]) -> NoReturn:
    """Becomes ddprun, so that signals and the exit status are its own."""
    path = launcher()
    if path is None:
        sys.exit("ddp.run: there is no ddprun beside the package nor in PATH. Install libddp's tools: docs/python.md, \"Installing\"")
    os.execv(path, [path, *arguments])


def command() -> NoReturn:
    """The entry of the command ddprun of a wheel."""
    main(sys.argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
