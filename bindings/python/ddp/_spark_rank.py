"""The process of a rank under Spark: a task of ddp.spark starts it. Spark uses the processes of its tasks again, so a rank has its own.

The task writes pickles to standard input: the rank's environment and secret, the program, and lists of rows up to an empty one. The answer
goes to the descriptor that the command line names.
"""
# mypy: ignore-errors
# Spark may not be there.
from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import traceback
from typing import Any, BinaryIO, List, Optional

from ._launched import Failure, enter, failure_of, leave_all, status_of_exit

_PR_SET_PDEATHSIG = 1


def _rows(source: BinaryIO) -> List[Any]:
    rows: List[Any] = []
    while batch := pickle.load(source):
        rows += batch
    return rows


def _run(source: BinaryIO) -> Any:
    """Reads a program, and returns what it returns."""
    fn, args = pickle.load(source)
    has_data = pickle.load(source)
    rows = _rows(source) if has_data else None
    try:
        return fn(*args) if rows is None else fn(rows, *args)
    except SystemExit as ended:
        return status_of_exit(ended.code)


def main(answer: int, task: int) -> None:
    """Runs the rank; `task` is the process that started it, whose end is the rank's."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != task:
        sys.exit("the task has ended")
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    told, secret, rank, where = pickle.load(source)
    enter(told, secret)
    failure: Optional[Failure] = None
    value: Any = None
    try:
        value = _run(source)
    except BaseException as error:  # pylint: disable=broad-except
        traceback.print_exc()
        failure = failure_of(rank, where, error)
        value = traceback.format_exc()
    leave_all()
    from pyspark import cloudpickle
    with os.fdopen(answer, "wb") as out:
        out.write(cloudpickle.dumps((failure, value)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
