"""The job: init() and shutdown(), ranks, and process sets. All frameworks of a process share it."""
from __future__ import annotations

import atexit
import itertools
import os
import threading
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

import numpy as np

from .._errors import Error
from ..elastic import Elastic
from ..group import Environment, Group, backend_available, environment
from ._negotiation import Ready
from ._numbers import Array, ReduceOp, check_reducible, is_power_of_two
from ._requests import Description, Request
from ._worker import Limits, Worker
from .exceptions import HorovodInternalError

_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
_SHUT_DOWN = "Horovod has been shut down on this rank; call hvd.init()"


class ProcessSet:
    """A set of ranks whose collectives need no other rank. Register it with init(process_sets=[...]) or add_process_set()."""

    process_set_id: Optional[int] = None
    ranks: Optional[List[int]] = None

    def __init__(self, ranks: Iterable[int]):
        listed = sorted(ranks)
        if any(not isinstance(rank, (int, np.integer)) for rank in listed):
            raise ValueError("ProcessSet should be initialized with a list of process ranks: communicators of MPI are not supported")
        if len(set(listed)) != len(listed):
            raise ValueError(f"ProcessSet: the ranks {listed} name one twice")
        self.ranks = [int(rank) for rank in listed]

    def size(self) -> Optional[int]:
        """The number of ranks; None before it is registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> Optional[int]:
        """This process's rank in the set; None before it is registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        if not self.included():
            raise ValueError("Process is not part of provided process set.")
        return self.ranks.index(_job().rank)

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; None before init()."""
        return None if self.ranks is None else _job().rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


class Job:
    """The group of all ranks, and a worker for each process set that this rank is in."""

    def __init__(self, group: Group, told: Optional[Environment], name: str, lent: bool = False):
        self.group, self.rank, self.size = group, group.rank, group.world_size
        self.local_rank = told.local_rank if told else 0
        self.local_size = told.local_world_size if told else 1
        places = np.empty((self.size, 2), np.int64)
        group.allgather(places, np.array([[self.local_rank, self.local_size]], np.int64))
        same = [rank for rank in range(self.size) if places[rank, 0] == self.local_rank]
        self.cross_rank, self.cross_size = same.index(self.rank), len(same)
        self.homogeneous = len(set(places[:, 1])) == 1
        self._name = name
        self._limits = Limits.of_environment()
        self._next_set = 1
        self.sets: Dict[int, List[int]] = {0: list(range(self.size))}
        self._counters: Dict[Any, Any] = {}
        self._joins = 0
        self._workers: Dict[int, Worker] = {0: Worker(group, self.sets[0], name, self._limits, self._change_sets, lent)}
        self._lock = threading.Lock()

    def submit(self, request: Request, process_set: ProcessSet) -> Request:
        """Asks for a collective of a process set."""
        worker = self._workers.get(-1 if process_set.process_set_id is None else process_set.process_set_id)
        if worker is None:
            if process_set.process_set_id in self.sets:
                raise HorovodInternalError(f"{request.description.key}: rank {self.rank} is not in the process set {process_set.ranks}")
            raise HorovodInternalError(f"{request.description.key}: the process set {process_set.ranks} is not registered; use "
                                       "hvd.add_process_set()")
        return worker.submit(request)

    def name_for(self, kind: str, name: Optional[str], process_set: ProcessSet) -> str:
        """The name of a request; without one the n-th of its kind, which must be the same on all ranks."""
        if name is not None:
            return name
        with self._lock:
            count = next(self._counters.setdefault((process_set.process_set_id, kind), itertools.count()))
            return f"noname.{self._joins}.{count}" if self._joins else f"noname.{count}"

    def end_join(self) -> None:
        """All ranks have joined. A rank that joined early has counted fewer requests than others, so all count anew."""
        with self._lock:
            self._joins += 1
            self._counters.clear()

    def _change_sets(self, ready: Ready) -> Any:
        """Registers or removes a process set, on the thread of the global one."""
        ranks = list(ready.description.ranks)
        if ready.description.kind == "remove_process_set":
            number = next((number for number, known in self.sets.items() if known == ranks and number), None)
            if number is not None:
                del self.sets[number]
                worker = self._workers.pop(number, None)
                if worker is not None:
                    worker.close(f"the process set {ranks} was removed")
            return number
        if ranks in self.sets.values():
            return None
        number, self._next_set = self._next_set, self._next_set + 1
        group = self.group.split(0 if self.rank in ranks else -1)
        self.sets[number] = ranks
        if group is not None:
            self._workers[number] = Worker(group, ranks, f"{self._name}.{number}", self._limits)
        return number

    def close(self, reason: str) -> None:
        """Leaves all groups. Requests that wait fail."""
        for worker in reversed(list(self._workers.values())):
            worker.close(reason)


_current: Optional[Job] = None
_elastic: Optional[Elastic] = None  # where ddprun has started an elastic job
_generation = itertools.count()


def _job() -> Job:
    if _current is None:
        raise ValueError(_NOT_INITIALIZED)
    return _current


def init(comm: Optional[Sequence[int]] = None, process_sets: Union[Sequence[ProcessSet], str, None] = None) -> None:
    """Joins the job that the launcher started; without a launcher this process is alone. A second call does nothing. Collective.

    process_sets: sets to register, the same on all ranks. "dynamic" is taken too: sets can always be added.
    comm: not supported. Make a process set instead.
    """
    global _current, _elastic  # pylint: disable=global-statement
    if comm is not None and list(comm):
        raise ValueError("hvd.init: comm is not supported; start only the ranks that take part, or make a hvd.ProcessSet")
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f"hvd.init: process_sets is {process_sets!r}; give a list of ProcessSet, or 'dynamic'")
    if _current is not None:
        return
    try:
        timeout = Limits.of_environment().timeout
        if os.environ.get("DDP_ELASTIC_MIN_WORLD"):
            _elastic = Elastic(name="horovod", timeout=timeout)
            form()
        else:
            _take(Job(Group(name="horovod", timeout=timeout), environment(), f"world{next(_generation)}"))
    except Error as error:
        raise HorovodInternalError(str(error)) from error
    try:
        for each in process_sets or () if not isinstance(process_sets, str) else ():
            add_process_set(each)
    except BaseException:
        shutdown()
        raise


def _take(job: Job) -> None:
    global _current  # pylint: disable=global-statement
    _current = job
    global_process_set.ranks = job.sets[0]


def shutdown() -> None:
    """Leaves the job. Requests that wait fail. init() may join again."""
    global _current, _elastic  # pylint: disable=global-statement
    job, _current = _current, None
    elastic, _elastic = _elastic, None
    if job is not None:
        job.close(_SHUT_DOWN)
    if elastic is not None:
        elastic.close()


atexit.register(shutdown)


# ELASTIC JOBS. Steps of ddp.Elastic are committed as soon as they begin, because the state is the program's own (_elastic.py).

def lost() -> bool:
    """Whether a rank of an elastic job was lost, so that the others can go on without it."""
    return _elastic is not None and _job().group.broken


def form() -> None:
    """Meets the other ranks after a loss, or at the beginning, and goes on with those that are there. Process sets are forgotten."""
    assert _elastic is not None
    while True:
        if _current is not None:
            _current.close("the ranks of the job have changed")
        try:
            _elastic.begin()
            _elastic.commit()
            _take(Job(_elastic.group, environment(), f"world{next(_generation)}", lent=True))
            return
        except Error:
            if not _elastic.group.broken:
                raise


def updated() -> Optional[bool]:
    """Between two steps of all ranks: takes in ranks that wait. None: nothing has changed; otherwise whether ranks have come."""
    if _elastic is None:
        return None
    try:
        told = _elastic.begin()
        if not told.changed:
            _elastic.commit()
            return None
    except Error as error:
        raise HorovodInternalError(str(error)) from error
    _job().close("the ranks of the job have changed")
    try:
        _elastic.commit()
        _take(Job(_elastic.group, environment(), f"world{next(_generation)}", lent=True))
    except Error as error:
        raise HorovodInternalError(str(error)) from error
    return told.joined > 0


def is_initialized() -> bool:
    """Whether init() has joined the job."""
    return _current is not None


def rank() -> int:
    """This process's rank in the job."""
    return _job().rank


def size() -> int:
    """The number of ranks in the job."""
    return _job().size


def local_rank() -> int:
    """This process's rank on its host."""
    return _job().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return _job().local_size


def cross_rank() -> int:
    """Which of the hosts this one is, among those that have this local rank."""
    return _job().cross_rank


def cross_size() -> int:
    """The number of hosts that have this local rank."""
    return _job().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks."""
    return _job().homogeneous


# QUERIES, which programs ask before they choose an operation.

def mpi_built() -> bool:
    """Whether libddp can use MPI. Nothing here needs it."""
    return backend_available("mpi")


def mpi_enabled() -> bool:
    """Whether this job runs over MPI."""
    return _current is not None and _current.group.backend == "mpi"


def mpi_threads_supported() -> bool:
    """Whether the program may use MPI from several threads: libddp promises nothing about the program's own MPI."""
    return False


def gloo_built() -> bool:
    """True: the processor's collectives are there, which is what programs ask for with it."""
    return True


def gloo_enabled() -> bool:
    """True, as gloo_built()."""
    return True


def nccl_built() -> int:
    """0: tensors of GPUs travel through the memory of the host."""
    return 0


def cuda_built() -> bool:
    """False, as nccl_built()."""
    return False


rocm_built = ddl_built = ccl_built = cuda_built


# PROCESS SETS

def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a process set. All ranks of the job call it with the same ranks. Collective."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks or []
    if not ranks or ranks[0] < 0 or ranks[-1] >= size():
        raise ValueError(f"process set: {ranks} is no set of ranks of 0 to {size() - 1}")
    number = _change(process_set, "add_process_set")
    if number is None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. All ranks of the job call it. Collective. Returns whether it was registered."""
    if not process_set.process_set_id:
        return False
    process_set.process_set_id = None
    return _change(process_set, "remove_process_set") is not None


def ranks_of(process_set_id: int) -> List[int]:
    """The ranks of a process set by its number."""
    ranks = _job().sets.get(process_set_id)
    if ranks is None:
        raise ValueError("Process set does not exist or has not been registered.")
    return ranks


def _change(process_set: ProcessSet, kind: str) -> Optional[int]:
    ranks = tuple(process_set.ranks or ())
    request = Request(Description(kind, ",".join(map(str, ranks)), ranks=ranks))
    _job().submit(request, global_process_set)
    request.wait()
    number: Optional[int] = request.value
    return number


# REQUESTS. Arrays are NumPy's, contiguous, with the name of the type of each; bfloat16 as its bits.

def checked_op(op: Optional[int], average: Optional[bool] = None) -> ReduceOp:
    """The operation of the arguments op and average, which Horovod has kept from its past."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return ReduceOp.Average if average else ReduceOp.Sum
    return ReduceOp.Average if op is None else ReduceOp(op)


def start(kind: str, name: Optional[str], arrays: Sequence[Array], dtypes: Sequence[str], *, process_set: ProcessSet,
          outputs: Optional[Sequence[Array]] = None, op: Optional[ReduceOp] = None, root: int = -1, prescale: float = 1.0,
          postscale: float = 1.0, splits: Sequence[int] = ()) -> Request:
    """Checks the arguments of a collective and asks for it."""
    job = _job()
    name = job.name_for(kind, name, process_set)
    shapes = tuple(tuple(array.shape) for array in arrays)
    if op is not None:
        for dtype in dtypes:
            check_reducible(dtype)
    if op == ReduceOp.Adasum:
        _check_adasum(job, kind, process_set)
    if kind in ("allgather", "alltoall", "reducescatter") and any(not shape for shape in shapes):
        raise HorovodInternalError(f"{kind}.{name}: a tensor without dimensions cannot be divided among ranks")
    if kind == "broadcast" and root not in (process_set.ranks or ()):
        raise HorovodInternalError(f"{kind}.{name}: the root {root} is not a rank of {process_set.ranks}")
    if kind == "alltoall":
        _check_splits(f"{kind}.{name}", shapes[0][0], splits, process_set.size() or 0)
    description = Description(kind, name, tuple(dtypes), shapes, -1 if op is None else int(op), root, float(prescale), float(postscale),
                              tuple(int(rows) for rows in splits))
    return job.submit(Request(description, arrays, outputs), process_set)


def _check_adasum(job: Job, kind: str, process_set: ProcessSet) -> None:
    if kind != "allreduce":
        raise HorovodInternalError(f"{kind}: Adasum is an operation of allreduce only")
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if not is_power_of_two(job.size):
        raise NotImplementedError(f"Adasum needs a power of 2 of ranks, and this job has {job.size}")


def _check_splits(key: str, rows: int, splits: Sequence[int], world_size: int) -> None:
    if not splits:
        if rows % world_size:
            raise ValueError(f"{key}: {rows} rows cannot be divided among {world_size} ranks: give splits")
        return
    if len(splits) != world_size or min(splits) < 0 or sum(splits) > rows:
        raise ValueError(f"{key}: splits {list(splits)} must have {world_size} entries that are not negative and sum up to {rows} at most")


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined it contributes zeros to the allreduces of the others. Returns the rank
    that joined last. device: not needed, and taken because Horovod takes it."""
    del device
    job = _job()
    request = job.submit(Request(Description("join", "join")), global_process_set)
    request.wait()
    job.end_join()
    return int(request.value)


def start_barrier(process_set: ProcessSet) -> Request:
    """A barrier of a process set."""
    job = _job()
    return job.submit(Request(Description("barrier", job.name_for("barrier", None, process_set))), process_set)
