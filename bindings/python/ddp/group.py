"""Groups of ranks that communicate, and what a launcher told this process (ddp/group.h)."""
from __future__ import annotations

import atexit
import dataclasses
import os
import weakref
from typing import Any, Callable, Iterable, List, Literal, Optional, Sequence, Union, overload

from . import _ddp
from ._arrays import DtypeLike, count_of, dtype_of, memory_of, milliseconds, op_of
from ._ddp import Memory
from ._errors import Error, NotFoundError
from .store import Store
from .work import Work, sweep

_open: "weakref.WeakSet[Any]" = weakref.WeakSet()  # groups, and elastic jobs


@dataclasses.dataclass(frozen=True)
class Environment:
    """The facts that a launcher told this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    restart: int
    launcher: str


def environment() -> Optional[Environment]:
    """The facts that a launcher told this process, or None without a launcher."""
    told = _ddp.ddp_environment()
    try:
        _ddp.ddp_environment_get(told)
    except NotFoundError:
        return None
    return Environment(told.rank, told.world_size, told.local_rank, told.local_world_size, told.restart, told.launcher)


def backend_available(name: str) -> bool:
    """Whether a group can be created with this backend."""
    try:
        return bool(_ddp.ddp_backend_available(name))
    except Error:
        return False


def group_options(init_method: Optional[str], *, backend: Optional[str], backend_options: Optional[str],
                  timeout: Optional[float], name: Optional[str], store: Optional[Store], secret: Optional[str],
                  deterministic: bool, match_check: bool, insecure: bool) -> Any:
    """The options of groups and elastic jobs."""
    options = _ddp.ddp_group_options()
    options.init_method = init_method
    options.backend = backend
    options.backend_options = backend_options
    options.timeout_ms = milliseconds(timeout)
    options.group_name = name
    options.store = store
    options.secret = secret
    options.flags = (deterministic * _ddp.DDP_GROUP_DETERMINISTIC | (not match_check) * _ddp.DDP_GROUP_NO_MATCH_CHECK
                     | insecure * _ddp.DDP_GROUP_INSECURE)
    return options


def close_at_exit(closeable: Any) -> None:
    """Closes it when the process ends, if it is still there."""
    _open.add(closeable)


class Group:
    """A set of ranks. Creating one waits until every rank has joined.

    Without arguments everything comes from the launcher's environment; without a launcher it is a group of one. rank,
    world_size and init_method ("env://", "tcp://host:port", "file:///path", "etcd://host:port/name") replace the
    environment. timeout is in seconds: the bound of joining and of each collective. The other arguments are those of
    ddp_group_options.
    """

    _stream: Optional[int] = None  # in a hook: that of its bucket, in whose order collectives are

    def __init__(self, rank: Optional[int] = None, world_size: Optional[int] = None, init_method: Optional[str] = None,
                 *, backend: Optional[str] = None, backend_options: Optional[str] = None,
                 timeout: Optional[float] = None, name: Optional[str] = None, store: Optional[Store] = None,
                 secret: Optional[str] = None, deterministic: bool = False, match_check: bool = True,
                 round_robin: int = 1, insecure: bool = False):
        options = group_options(init_method, backend=backend, backend_options=backend_options, timeout=timeout, name=name,
                                store=store, secret=secret, deterministic=deterministic, match_check=match_check,
                                insecure=insecure)
        options.rank = -1 if rank is None else rank
        options.world_size = -1 if world_size is None else world_size
        options.flags |= _ddp.DDP_GROUP_OR_ALONE
        options.round_robin = round_robin
        self._take(_ddp.ddp_group_create(options), store)

    def _take(self, handle: _ddp.Handle, *kept: Any) -> None:
        self._handle = handle
        self._kept = kept
        close_at_exit(self)

    @classmethod
    def _of(cls, handle: _ddp.Handle, *kept: Any) -> "Group":
        group = cls.__new__(cls)
        group._take(handle, *kept)
        return group

    @classmethod
    def _lent(cls, handle: _ddp.Handle, stream: Optional[int] = None) -> "Group":
        """The group that a callback is lent, or an elastic job's: not ours to close."""
        group = cls.__new__(cls)
        group._handle = handle
        group._kept = ()
        group._stream = stream
        return group

    @classmethod
    def round_robin(cls, groups: Sequence["Group"]) -> "Group":
        """Makes one group of several groups of the same ranks, and takes turns among them (ddp_group_round_robin)."""
        return cls._of(_ddp.ddp_group_round_robin(list(groups)), *groups)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return _ddp.ddp_group_rank(self._handle)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return _ddp.ddp_group_world_size(self._handle)

    @property
    def backend(self) -> str:
        """The backend's name."""
        return _ddp.ddp_group_backend(self._handle)

    @property
    def store(self) -> Store:
        """The store that the ranks met in."""
        return Store._of(_ddp.ddp_group_store(self._handle))

    def split(self, color: int, key: int = 0) -> Optional["Group"]:
        """Ranks that give the same color form a group, ordered by key, then by rank. -1 joins none: None."""
        handle = _ddp.ddp_group_split(self._handle, color, key)
        return None if handle is None else Group._of(handle)

    def check(self) -> None:
        """Raises the error that broke the group, if it is broken."""
        _ddp.ddp_group_status(self._handle)

    @property
    def broken(self) -> bool:
        """Whether the group is broken: check() says why."""
        try:
            self.check()
        except Error:
            return True
        return False

    def abort(self, reason: Optional[str] = None) -> None:
        """Breaks the group on every rank."""
        _ddp.ddp_group_abort(self._handle, reason)

    def alloc(self, shape: Union[int, Iterable[int]], dtype: DtypeLike = "f32") -> Memory:
        """Memory in which this group's collectives are fastest, zeroed: numpy.asarray(group.alloc(1000))."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        element = dtype_of(dtype)
        address = _ddp.ddp_mem_alloc(self._handle, count_of(extents) * _ddp.ddp_dtype_size(element))
        return Memory.at(address, element, extents, _Allocated(address))

    # COLLECTIVES. Each array is used where it lies. With async_op=True they return a Work at once; until it has ended the
    # arrays must not be touched. Otherwise they return when all is done.

    @overload
    def allreduce(self, recv: Any, op: Union[int, str] = "sum", *, send: Any = None,
                  async_op: Literal[False] = False) -> None: ...

    @overload
    def allreduce(self, recv: Any, op: Union[int, str] = "sum", *, send: Any = None, async_op: Literal[True]) -> Work: ...

    @overload
    def allreduce(self, recv: Any, op: Union[int, str] = "sum", *, send: Any = None, async_op: bool) -> Optional[Work]: ...

    def allreduce(self, recv: Any, op: Union[int, str] = "sum", *, send: Any = None,
                  async_op: bool = False) -> Optional[Work]:
        """recv = op over the ranks of send, or of recv itself."""
        to = memory_of("recv", recv, on_gpu=True, stream=self._stream)
        source = None if send is None else memory_of("send", send, writable=False, on_gpu=True, stream=self._stream)
        _same("send", source, to, to.count)
        return self._start(async_op, _ddp.ddp_allreduce, source, to, to.count, to.dtype, op_of(op))

    @overload
    def broadcast(self, buffer: Any, root: int = 0, *, async_op: Literal[False] = False) -> None: ...

    @overload
    def broadcast(self, buffer: Any, root: int = 0, *, async_op: Literal[True]) -> Work: ...

    @overload
    def broadcast(self, buffer: Any, root: int = 0, *, async_op: bool) -> Optional[Work]: ...

    def broadcast(self, buffer: Any, root: int = 0, *, async_op: bool = False) -> Optional[Work]:
        """buffer of rank root to every rank."""
        to = memory_of("buffer", buffer, on_gpu=True, stream=self._stream)
        return self._start(async_op, _ddp.ddp_broadcast, to, to.count, to.dtype, root)

    @overload
    def allgather(self, recv: Any, send: Any = None, *, async_op: Literal[False] = False) -> None: ...

    @overload
    def allgather(self, recv: Any, send: Any = None, *, async_op: Literal[True]) -> Work: ...

    @overload
    def allgather(self, recv: Any, send: Any = None, *, async_op: bool) -> Optional[Work]: ...

    def allgather(self, recv: Any, send: Any = None, *, async_op: bool = False) -> Optional[Work]:
        """recv = the ranks' send, one after another; without send, each rank's part is already in recv."""
        to = memory_of("recv", recv, on_gpu=True, stream=self._stream)
        part = _part(to, self.world_size)
        source = None if send is None else memory_of("send", send, writable=False, on_gpu=True, stream=self._stream)
        _same("send", source, to, part)
        return self._start(async_op, _ddp.ddp_allgather, source, to, part, to.dtype)

    @overload
    def reduce_scatter(self, recv: Any, send: Any, op: Union[int, str] = "sum", *,
                       async_op: Literal[False] = False) -> None: ...

    @overload
    def reduce_scatter(self, recv: Any, send: Any, op: Union[int, str] = "sum", *, async_op: Literal[True]) -> Work: ...

    @overload
    def reduce_scatter(self, recv: Any, send: Any, op: Union[int, str] = "sum", *, async_op: bool) -> Optional[Work]: ...

    def reduce_scatter(self, recv: Any, send: Any, op: Union[int, str] = "sum", *,
                       async_op: bool = False) -> Optional[Work]:
        """recv = this rank's part of op over the ranks of send."""
        to = memory_of("recv", recv, on_gpu=True, stream=self._stream)
        source = memory_of("send", send, writable=False, on_gpu=True, stream=self._stream)
        _same("send", source, to, to.count * self.world_size)
        return self._start(async_op, _ddp.ddp_reduce_scatter, source, to, to.count, to.dtype, op_of(op))

    @overload
    def all_to_all(self, recv: Any, send: Any, recv_counts: Optional[Iterable[int]] = None,
                   send_counts: Optional[Iterable[int]] = None, *, async_op: Literal[False] = False) -> None: ...

    @overload
    def all_to_all(self, recv: Any, send: Any, recv_counts: Optional[Iterable[int]] = None,
                   send_counts: Optional[Iterable[int]] = None, *, async_op: Literal[True]) -> Work: ...

    @overload
    def all_to_all(self, recv: Any, send: Any, recv_counts: Optional[Iterable[int]] = None,
                   send_counts: Optional[Iterable[int]] = None, *, async_op: bool) -> Optional[Work]: ...

    def all_to_all(self, recv: Any, send: Any, recv_counts: Optional[Iterable[int]] = None,
                   send_counts: Optional[Iterable[int]] = None, *, async_op: bool = False) -> Optional[Work]:
        """recv = each rank's part of send for this rank. send holds a part for each rank, recv one from each: equal parts, or
        of so many elements."""
        to = memory_of("recv", recv, on_gpu=True, stream=self._stream)
        source = memory_of("send", send, writable=False, on_gpu=True, stream=self._stream)
        if (recv_counts is None) != (send_counts is None):
            raise ValueError("recv_counts and send_counts: give both, or neither")
        if recv_counts is None or send_counts is None:
            _same("send", source, to, to.count)
            part = _part(to, self.world_size)
            return self._start(async_op, _ddp.ddp_all_to_all, source, to, part, to.dtype)
        sent, received = _counts("send_counts", send_counts), _counts("recv_counts", recv_counts)
        _same("send", source, to, sum(sent))
        _same("recv", to, to, sum(received))
        return self._start(async_op, _ddp.ddp_all_to_allv, source, to, (sent, received), to.dtype)

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...

    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work: ...

    @overload
    def barrier(self, *, async_op: bool) -> Optional[Work]: ...

    def barrier(self, *, async_op: bool = False) -> Optional[Work]:
        """Done when every rank has called it."""
        return self._start(async_op, _ddp.ddp_barrier)

    def _start(self, async_op: bool, function: Callable[..., Any], *arguments: Any) -> Optional[Work]:
        sweep()
        memory = [each for each in arguments if isinstance(each, Memory)]
        plain = [each.address if isinstance(each, Memory) else each for each in arguments]
        handle = function(self._handle, *plain, async_op)
        return Work._of(handle, *memory) if async_op else None

    def close(self) -> None:
        """Leaves the group. Never waits for other ranks; contexts keep the group alive until they are closed."""
        self._handle.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._handle.open:
            return "<ddp.Group, closed>"
        return f"<ddp.Group, rank {self.rank} of {self.world_size}, {self.backend}>"


def _same(what: str, memory: Optional[Memory], to: Memory, count: int) -> None:
    if memory is None:
        return
    if memory.dtype != to.dtype:
        raise TypeError(f"{what}: its type is {_ddp.ddp_dtype_name(memory.dtype)}, that of recv "
                        f"{_ddp.ddp_dtype_name(to.dtype)}")
    if memory.count != count:
        raise ValueError(f"{what}: it has {memory.count} elements, but {count} are expected")


def _part(to: Memory, world_size: int) -> int:
    part = to.count // world_size
    if part * world_size != to.count:
        raise ValueError(f"recv: {to.count} elements cannot be divided among {world_size} ranks")
    return part


def _counts(what: str, counts: Iterable[int]) -> List[int]:
    listed = [int(count) for count in counts]
    if any(count < 0 for count in listed):
        raise ValueError(f"{what}: {min(listed)} is negative")
    return listed


class _Allocated:
    """Memory of ddp_mem_alloc, freed with the last array over it."""

    def __init__(self, address: int):
        self._address = address
        self._process = os.getpid()
        self._free = _ddp.ddp_mem_free

    def __del__(self) -> None:
        if os.getpid() == self._process:  # after a fork it is the parent's
            self._free(self._address)


@atexit.register
def _leave() -> None:
    """Tells the other ranks that this one ends, so that they need not find out."""
    for each in list(_open):
        each.close()
