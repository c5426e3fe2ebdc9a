"""The state of an elastic job, and the loop around its training function, for all frameworks."""
from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, List

from . import _job
from ._calls import broadcast_object
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt


class State:
    """The state of a training. commit() saves it in memory, restore() goes back to the last commit, sync() gives all ranks that of
    rank 0, which is a rank that has been there longest."""

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Functions that are called whenever the ranks have changed, for example to set the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The ranks have changed."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, and takes in ranks that wait. All ranks call it after the same step."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Takes in ranks that wait, by HostsUpdatedInterrupt. All ranks call it after the same step."""
        joined = _job.updated()
        if joined is not None:
            raise HostsUpdatedInterrupt(skip_sync=not joined)

    def save(self) -> None:
        """Keeps the state in memory."""

    def restore(self) -> None:
        """Goes back to what save() has kept."""

    def sync(self) -> None:
        """Takes the state of rank 0, and saves it."""

    def reset(self) -> None:
        """The ranks have changed; before the callbacks."""


class ObjectState(State):
    """Python objects, which are attributes of the state: ObjectState(epoch=0, batch=0)."""

    def __init__(self, **objects: Any):
        super().__init__()
        self._saved: Dict[str, Any] = copy.deepcopy(objects)
        for name, value in objects.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        self._set_objects()

    def sync(self) -> None:
        self._saved = broadcast_object({name: getattr(self, name) for name in self._saved})
        self._set_objects()

    def _set_objects(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of function(state, ...): after the loss of a rank it restores the state and calls the function again, with the ranks
    that are left. Errors without a lost rank are the program's own, and are raised."""

    @functools.wraps(function)
    def again(state: State, *arguments: Any, **options: Any) -> Any:
        synced = False
        while True:
            try:
                if not synced:
                    state.sync()
                return function(state, *arguments, **options)
            except HostsUpdatedInterrupt as interrupt:
                synced = interrupt.skip_sync
            except Exception as error:  # pylint: disable=broad-except
                # a framework may have its own class of errors around ours
                if not isinstance(error, HorovodInternalError) and HorovodInternalError.__name__ not in str(error):
                    raise
                if not _job.lost():
                    raise
                _job.form()
                state.restore()
                synced = False
            state.on_reset()

    return again
