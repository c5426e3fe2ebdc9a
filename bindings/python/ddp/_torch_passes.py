"""Autograd's backward passes: functions that run at their end."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import atexit
import os
import time
import weakref

import torch

_engine = torch.autograd.Variable._execution_engine
_held = set()  # weak references to what autograd holds for backward passes
os.register_at_fork(after_in_child=_held.clear)  # the threads that hold it are not there


class _Held:
    def __init__(self, function):
        self._function = function

    def __call__(self):
        self._function()


def at_end(function):
    """Autograd calls the function at the end of the backward pass that is under way on this thread."""
    held = _Held(function)
    _engine.queue_callback(held)  # a RuntimeError, if there is none
    _held.add(weakref.ref(held, _held.discard))


def in_backward_pass():
    """Whether autograd is at work on this thread: a forward pass is then a repetition of one before."""
    try:
        before_error()
    except RuntimeError:
        return False
    return True


def before_error():
    """The error that a hook is about to raise is dropped in time, too."""
    at_end(lambda: None)


@atexit.register
def _wait():
    """backward() may return, or raise an error, before a thread of autograd's has dropped what it holds. That takes Python, and without it
    the thread would abort the process. It is over at once, but for a pass that is under way on a daemon thread."""
    end = time.monotonic() + 2
    while _held and time.monotonic() < end:
        time.sleep(0.001)
