"""Ranks in the tasks of a Spark application, in barrier mode.

    from pyspark.sql import SparkSession
    import ddp.spark

    def train(rows, epochs):
        group = ddp.Group()          # as under ddprun
        ...
        return loss

    spark = SparkSession.builder.getOrCreate()
    losses = ddp.spark.run(train, 4, (10,), data=spark.read.parquet("samples"))

docs/ray-spark.md has the whole story.
"""
# mypy: ignore-errors
# Spark may not be there.
from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pickle
import secrets
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import pyspark
from py4j.protocol import Py4JError
from pyspark import cloudpickle

from ._errors import Error, InvalidStateError, RankFailedError
from ._launched import Failure, Place, cause_of, places, signal_name, variables
from .store import Store

__all__ = ["run"]

_REPORTS = "ddp/spark/failed/"  # and the rank
_REPORT_S = 2.0  # how long the other ranks may say how they failed
_BATCH = 1000  # rows of a pickle


@dataclasses.dataclass(frozen=True)
class _Start:
    """The facts of one start of a job that each of its tasks gets."""

    store: str
    secret: str
    restart: int
    timeout: Optional[float]
    program: bytes
    has_data: bool


def run(fn: Callable[..., Any], num_proc: int, args: Sequence[Any] = (), *, data: Any = None, max_restarts: int = 0,
        timeout: Optional[float] = None) -> List[Any]:
    """Calls fn(*args) in num_proc tasks of a barrier stage, each a rank of one job, and returns what they return, in the order of ranks.

    In fn, ddp.Group() and all that takes the job from a launcher's environment works as under ddprun. data: an RDD or a DataFrame. Spark
    computes it in num_proc partitions, and fn(rows, *args) gets the rows of one as a list. timeout is in seconds: of groups that say none.

    If a rank fails, the others end, and run raises RankFailedError, or does it all again, up to max_restarts times. Spark must have
    num_proc free slots at once.

    Blocks. Each rank is a process of its own, which ends with its task.
    """
    context = pyspark.SparkContext._active_spark_context  # pylint: disable=protected-access
    if context is None:
        raise InvalidStateError("run: there is no SparkContext in this process. Create a SparkSession, which is not one of Spark Connect")
    if num_proc < 1:
        raise ValueError(f"num_proc: {num_proc}, but a job has at least 1")
    if max_restarts < 0:
        raise ValueError(f"max_restarts: {max_restarts} is negative")
    program = cloudpickle.dumps((fn, tuple(args)))
    partitions = _partitions(context, num_proc, data)
    for restart in range(max_restarts + 1):
        try:
            return _run_once(context, partitions, num_proc, program, data is not None, restart, timeout)
        except RankFailedError:
            if restart == max_restarts:
                raise
    raise AssertionError("the last round returns or raises")


def _partitions(context: Any, num_proc: int, data: Any) -> Any:
    if data is None:
        return context.parallelize(range(num_proc), num_proc)
    spread = data.repartition(num_proc)
    return spread if isinstance(spread, pyspark.RDD) else spread.rdd


def _run_once(context: Any, partitions: Any, num_proc: int, program: bytes, has_data: bool, restart: int,
              timeout: Optional[float]) -> List[Any]:
    secret = secrets.token_hex(32)
    host = context.getConf().get("spark.driver.host")
    with Store(f"tcp://{context.getConf().get('spark.driver.bindAddress', host)}:0", server=True, secret=secret) as store:
        start = _Start(f"tcp://{host}:{store.port}", secret, restart, timeout, program, has_data)
        try:
            results = partitions.barrier().mapPartitions(functools.partial(_task, start)).collect()
        except Py4JError as error:
            failures = _reports(store, num_proc)
            if not failures:
                raise RankFailedError(f"the job failed before a rank did: {_words(error)}") from error
            rank, text = cause_of(failures)
            raise RankFailedError(text, rank=rank) from error
    return [pickle.loads(value) for _, value in sorted(results)]


def _reports(store: Store, num_proc: int) -> List[Failure]:
    """The failures of ranks. Waits for all of them, though not for long: Spark ends ranks that have not failed."""
    deadline = time.monotonic() + _REPORT_S
    while len(keys := store.keys(_REPORTS)) < num_proc and time.monotonic() < deadline:
        time.sleep(0.05)
    return [Failure(**json.loads(store.get(key))) for key in keys]


def _task(start: _Start, rows: Iterable[Any]) -> Iterator[Tuple[int, bytes]]:
    """A task of the barrier stage: starts a rank and waits for its end."""
    context = pyspark.BarrierTaskContext.get()
    hosts = [info.address.rsplit(":", 1)[0] for info in context.getTaskInfos()]
    here = context.partitionId()
    place, told = places(hosts)[here], {}
    own = context.resources().get("gpu")
    if own:  # all ranks of a host see its GPUs in the order of local ranks
        gpus = [json.loads(each) for each in context.allGather(json.dumps(own.addresses))]
        told["CUDA_VISIBLE_DEVICES"] = ",".join(gpu for host, each in zip(hosts, gpus) if host == hosts[here] for gpu in each)
    told.update(variables(place, len(hosts), start.store, start.restart, start.timeout))
    failure, value = _run_rank(start, place, told, hosts[here], rows)
    if failure is not None:
        _report(start, failure)
        raise RuntimeError(f"{failure.text}\n{value}")
    yield place.rank, cloudpickle.dumps(value)


def _run_rank(start: _Start, place: Place, told: Dict[str, str], host: str, rows: Iterable[Any]) -> Tuple[Optional[Failure], Any]:
    """The failure of a rank and its traceback, or None and what the program has returned."""
    answer, to_answer = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}
    command = [sys.executable, "-m", "ddp._spark_rank", str(to_answer), str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[to_answer]) as rank:
        os.close(to_answer)
        where = f"rank {place.rank} of {told['WORLD_SIZE']} (pid {rank.pid} on {host})"
        try:
            rank.stdin.write(pickle.dumps((told, start.secret, place.rank, where)))
            rank.stdin.write(start.program)
            rank.stdin.write(pickle.dumps(start.has_data))
            if start.has_data:
                rows = iter(rows)
                while batch := list(itertools.islice(rows, _BATCH)):
                    rank.stdin.write(pickle.dumps(batch))
                rank.stdin.write(pickle.dumps([]))
            rank.stdin.close()
        except BrokenPipeError:  # it has ended
            pass
        with os.fdopen(answer, "rb") as source:
            said = source.read()
        status = rank.wait()
    if said:
        return pickle.loads(said)
    how = f"was killed by {signal_name(-status)}" if status < 0 else f"exited with status {status}"
    return Failure(place.rank, f"{where} {how}", died=True), ""


def _report(start: _Start, failure: Failure) -> None:
    try:
        with Store(start.store, secret=start.secret) as store:
            store.set(f"{_REPORTS}{failure.rank}", json.dumps(dataclasses.asdict(failure)))
    except Error:  # the driver has ended the job
        pass


def _words(error: BaseException) -> str:
    """The sentence of Java's exception."""
    return next((line.split("Exception: ", 1)[1] for line in str(error).splitlines() if "Exception: " in line), str(error))
