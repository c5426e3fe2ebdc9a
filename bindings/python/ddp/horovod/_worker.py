"""The thread of a process set, which negotiates and runs the requests of this rank.

It takes part in a round only while this rank waits for something. So ranks meet when all of them wait, which is when something can
become ready, and a rank that waits for nothing costs nothing.
"""
from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from .._errors import Error, TimeoutError as WaitTimeoutError
from ..group import Group
from ..store import Store
from ._collectives import Collectives
from ._negotiation import Negotiation, Ready
from ._requests import Request, named
from .exceptions import HorovodInternalError

_log = logging.getLogger("ddp.horovod")
_SLOT = 512  # bytes of a message that need no second exchange
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01  # seconds between rounds in which nothing became ready
_SAID_AFTER = 1.0  # seconds of waiting in a round after which a rank says in the store that it is there


class Limits(NamedTuple):
    """Times in seconds, and the bytes of a fused allreduce."""

    stall_warning: float  # 0: no warning
    timeout: float
    fusion_threshold: int

    @classmethod
    def of_environment(cls) -> "Limits":
        """Horovod's variables; the group's timeout is the bound of all waits unless HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set."""
        get = os.environ.get
        warning = 0.0 if get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0") else float(get("HOROVOD_STALL_CHECK_TIME_SECONDS") or 60)
        timeout = float(get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or 0) or float(get("DDP_TIMEOUT_MS") or 300_000) / 1000
        return cls(warning, timeout, int(get("HOROVOD_FUSION_THRESHOLD") or 128 << 20))


class Worker:
    """ranks: of the process set, in the world. special: runs requests that concern process sets, on this thread. lent: the group is an
    elastic job's, which closes it."""

    def __init__(self, group: Group, ranks: Sequence[int], name: str, limits: Limits,
                 special: Optional[Callable[[Ready], Any]] = None, lent: bool = False):
        self.group = group
        self.ranks = list(ranks)
        self._name = name
        self._limits = limits
        self._special = special
        self._lent = lent
        self._negotiation = Negotiation(ranks)
        self._collectives = Collectives(group, ranks, limits.fusion_threshold)
        self._changed = threading.Condition()
        self._mine: Dict[str, Request] = {}
        self._new: List[Request] = []
        self._closed: Optional[str] = None
        self._thread: Optional[threading.Thread] = None
        self._round = 0
        self._warned: Dict[str, bool] = {}

    def submit(self, request: Request) -> Request:
        """Asks for a collective. Returns at once."""
        with self._changed:
            if self._closed is not None:
                raise HorovodInternalError(self._closed)
            key = request.description.key
            if key in self._mine:
                raise ValueError(f"{key}: the previous request of this name has not ended yet; give each a name of its own, or wait")
            self._mine[key] = request
            self._new.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ddp.horovod {self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()
        return request

    def close(self, reason: str) -> None:
        """Leaves the group. Requests that wait fail."""
        self._fail(reason)
        if not self._lent:
            self.group.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)

    def _fail(self, reason: str) -> None:
        with self._changed:
            if self._closed is None:
                self._closed = reason
            waiting = list(self._mine.values())
            self._mine.clear()
            self._new.clear()
            self._changed.notify()
        for request in waiting:
            request.finish(reason)

    # THE THREAD

    def _run(self) -> None:
        pause = 0.0
        try:
            while True:
                new = self._wait(pause)
                if new is None:
                    return
                overdue = [] if len(self.ranks) == 1 else self._negotiation.overdue(self._limits.timeout)
                messages = self._exchange(self._negotiation.message(new, overdue))
                ready = self._negotiation.take(messages)
                self._perform(ready)
                pause = 0.0 if ready else min(max(2 * pause, _SHORTEST_PAUSE), _LONGEST_PAUSE)
                self._warn_of_overdue()
        except Error as error:
            self._fail(str(error))
        except Exception as error:  # pylint: disable=broad-except
            with contextlib.suppress(Error):  # the others would wait for this rank
                self.group.abort(f"rank {self.group.rank}: {type(error).__name__}: {error}")
            self._fail(f"{type(error).__name__}: {error}")

    def _wait(self, pause: float) -> Optional[List[Request]]:
        """The new requests when this rank must take part in a round; None at the end."""
        with self._changed:
            while not self._mine and self._closed is None:
                self._changed.wait()
            if pause and not self._new and self._closed is None:
                self._changed.wait(pause)
            if self._closed is not None:
                return None
            new, self._new = self._new, []
            return new

    def _exchange(self, message: bytes) -> List[bytes]:
        """The messages of all ranks."""
        world = len(self.ranks)
        if world == 1:
            return [message]
        mine, slots = np.zeros(_SLOT, np.uint8), np.empty((world, _SLOT), np.uint8)
        _put(mine, message)
        self._wait_for_all(slots, mine)
        lengths = [int(slot[:4].view(np.uint32)[0]) for slot in slots]
        if max(lengths) > _SLOT - 4:
            mine, slots = np.zeros(4 + max(lengths), np.uint8), np.empty((world, 4 + max(lengths)), np.uint8)
            _put(mine, message)
            self.group.allgather(slots, mine)
        return [slot[4:4 + length].tobytes() for slot, length in zip(slots, lengths)]

    def _wait_for_all(self, slots: Any, mine: Any) -> None:
        """Waits until every rank waits for something, and warns if one does not for long."""
        self._round += 1
        work = self.group.allgather(slots, mine, async_op=True)
        if self._ended(work, _SAID_AFTER):
            return
        with self._said() as said:
            if self._limits.stall_warning and not self._ended(work, max(0.01, self._limits.stall_warning - _SAID_AFTER)):
                present = said()
                absent = [rank for index, rank in enumerate(self.ranks) if index not in present]
                with self._changed:
                    names = ", ".join(list(self._mine)[:20])
                if absent:
                    _log.warning("rank %d has waited for %g s: %s not asked for any of %s", self.ranks[self.group.rank],
                                 self._limits.stall_warning, named(absent, "has", "have"), names)
            work.wait()

    def _ended(self, work: Any, seconds: float) -> bool:
        try:
            work.wait(seconds)
            return True
        except WaitTimeoutError:
            self.group.check()  # raises if it was the group's timeout
            return False

    @contextlib.contextmanager
    def _said(self) -> Iterator[Callable[[], List[int]]]:
        """Says in the store that this rank is in this round. Yields a function that returns which ranks say so."""
        store: Store = self.group.store
        prefix = f"horovod/{self._name}/{self._round}/"
        store.set(f"{prefix}{self.group.rank}", b"1")
        try:
            yield lambda: [int(key[len(prefix):]) for key in store.keys(prefix)]
        finally:
            with contextlib.suppress(Error):
                store.delete(f"{prefix}{self.group.rank}")
            store.close()

    def _warn_of_overdue(self) -> None:
        if self._limits.stall_warning:
            overdue = dict(self._negotiation.overdue(self._limits.stall_warning))
            for key, sentence in overdue.items():
                if not self._warned.get(key):
                    _log.warning("%s", sentence)
            self._warned = {key: True for key in overdue}

    def _perform(self, ready: Sequence[Ready]) -> None:
        """Runs or fails what is ready."""
        with self._changed:
            mine = [(each, self._mine.get(each.key)) for each in ready]
        good = [(each, request) for each, request in mine if each.error is None]
        self._collectives.run(good)
        for each, request in good:
            if each.description.kind == "join" and request is not None:
                request.value = self._negotiation.last_joined()
            elif each.description.kind in ("add_process_set", "remove_process_set") and request is not None and self._special is not None:
                request.value = self._special(each)
        with self._changed:
            for each in ready:
                self._mine.pop(each.key, None)
        for each, request in mine:
            if request is not None:
                request.finish(each.error)


def _put(slot: Any, message: bytes) -> None:
    slot[:4] = np.frombuffer(struct.pack("<I", len(message)), np.uint8)
    most = min(len(message), slot.size - 4)
    slot[4:4 + most] = np.frombuffer(message, np.uint8, most)
