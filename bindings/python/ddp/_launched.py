"""The parts that ddp.ray and ddp.spark share: ranks for workers, the environment of a rank, and which failure is the cause."""
from __future__ import annotations

import dataclasses
import os
import signal
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ._errors import Error
from .group import _leave as leave_all

__all__ = ["Failure", "Place", "cause_of", "enter", "failure_of", "leave_all", "places", "status_of_exit", "variables"]

_SECRET_FILE = "DDP_SECRET_FILE"
#: Variables that another launcher, or a job before this one, may have left behind.
_OTHERS = ("DDP_SECRET", "DDP_LAUNCH_PID", "DDP_VOTES", "DDP_TIMEOUT_MS", "DDP_ELASTIC_MIN_WORLD", "DDP_ELASTIC_MAX_WORLD",
           "DDP_ELASTIC_FIRST_WORLD")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a worker stands in the job."""

    rank: int
    local_rank: int
    local_world_size: int


def places(hosts: Sequence[str]) -> List[Place]:
    """The place of each worker; `hosts` says where each runs. The ranks of a host are neighbours."""
    order = sorted(range(len(hosts)), key=lambda worker: (hosts.index(hosts[worker]), worker))
    ranks = {worker: rank for rank, worker in enumerate(order)}
    return [Place(ranks[worker], list(hosts[:worker]).count(host), list(hosts).count(host)) for worker, host in enumerate(hosts)]


def variables(place: Place, world_size: int, store: str, restart: int, timeout: Optional[float] = None) -> Dict[str, str]:
    """The environment of a rank, as ddprun sets it, without the secret."""
    facts = {"RANK": place.rank, "WORLD_SIZE": world_size, "LOCAL_RANK": place.local_rank,
             "LOCAL_WORLD_SIZE": place.local_world_size}
    told = {prefix + name: str(value) for name, value in facts.items() for prefix in ("", "DDP_")}
    told.update(DDP_STORE=store, DDP_STORE_HOSTED="launcher", DDP_RESTART=str(restart))
    if timeout is not None:
        told["DDP_TIMEOUT_MS"] = str(max(1, round(timeout * 1000)))
    return told


def enter(told: Mapping[str, str], secret: str) -> None:
    """Makes this process a rank. The secret is in no environment: the variable names a file in memory of this process, which the
    kernel frees with it."""
    for name in _OTHERS:
        os.environ.pop(name, None)
    descriptor = os.memfd_create("ddp-secret")
    os.fchmod(descriptor, 0o600)
    os.write(descriptor, secret.encode())
    os.environ.update(told)
    os.environ[_SECRET_FILE] = f"/proc/{os.getpid()}/fd/{descriptor}"
    os.environ["DDP_LAUNCH_PID"] = str(os.getpid())


@dataclasses.dataclass(frozen=True)
class Failure:
    """The end of a rank that failed. blamed: the rank that libddp names as the cause, if it is another one. died: without an
    exception."""

    rank: int
    text: str
    blamed: Optional[int] = None
    died: bool = False


def failure_of(rank: int, where: str, error: BaseException) -> Failure:
    """The failure of a rank that raised this."""
    named = error.rank if isinstance(error, Error) else None
    text = f"{where} failed: {type(error).__name__}: {error}"
    return Failure(rank, text, named if named != rank else None)


def cause_of(failures: Sequence[Failure]) -> Tuple[int, str]:
    """The rank that is the cause, and all failures in a sentence, the cause first: a rank that died comes before one that raised an
    error of its own, and that one before those that libddp has told of another rank. Among equals it is the first one."""
    ordered = sorted(failures, key=lambda failure: (not failure.died, failure.blamed is not None))
    first = ordered[0]
    return first.rank if first.blamed is None else first.blamed, "; ".join(failure.text for failure in ordered)


def status_of_exit(status: object) -> None:
    """The end of a program that called sys.exit(): raises an error unless the status is that of success."""
    if status not in (None, 0):
        raise RuntimeError(f"it exited with status {status}" if isinstance(status, int) else str(status))


def signal_name(number: int) -> str:
    """"signal 9 (SIGKILL)"."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
