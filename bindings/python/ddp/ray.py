"""Ranks in the actors of a Ray cluster.

    import ray, ddp.ray

    def train(epochs):
        group = ddp.Group()          # as under ddprun
        ...
        return loss

    ray.init()
    losses = ddp.ray.launch(train, 4, (10,), resources_per_worker={"CPU": 2})

docs/ray-spark.md has the whole story.
"""
# mypy: ignore-errors
# Ray may not be there.
from __future__ import annotations

import dataclasses
import os
import secrets
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from . import _errors
from ._launched import Failure, cause_of, enter, failure_of, leave_all, places, status_of_exit, variables
from .store import Store

__all__ = ["RankFailedError", "launch"]

_START_S = 300.0  # libddp's own timeout
_REPORT_S = 2.0  # how long the other ranks may say how they failed
_LOOK_S = 1.0  # how long a wait for Ray lasts, so that Ctrl-C ends it


class RankFailedError(_errors.RankFailedError, ray.exceptions.RayError):
    """A rank failed; `rank` says which. Its message has the failures of all ranks, and its cause is Ray's error."""


RankFailedError.__module__ = "ddp.ray"


def launch(fn: Callable[..., Any], num_workers: int, args: Sequence[Any] = (), *,
           resources_per_worker: Optional[Mapping[str, float]] = None, placement_strategy: str = "PACK", store: str = "driver",
           min_workers: Optional[int] = None, max_restarts: int = 0, timeout: Optional[float] = None) -> List[Any]:
    """Calls fn(*args) in num_workers actors, each a rank of one job, and returns what they return, in the order of ranks.

    In fn, ddp.Group() and all that takes the job from a launcher's environment works as under ddprun. Each actor reserves
    resources_per_worker ({"CPU": 1}) in a placement group of this strategy. store: "driver", or "rank" where the workers cannot
    reach the driver; then rank 0's actor has it. timeout is in seconds: for the actors to start, and of groups that say none.

    If a rank fails, the others end, and launch raises RankFailedError, or does it all again, up to max_restarts times.
    With min_workers the job is elastic (ddp.Elastic): a worker that fails is started again, up to max_restarts times in all, and then
    the others go on, as long as so many are left. The result of a worker that was lost is None.

    Blocks. Ends the actors when it returns or raises.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers: {num_workers}, but a job has at least 1")
    if max_restarts < 0:
        raise ValueError(f"max_restarts: {max_restarts} is negative")
    if store not in ("driver", "rank"):
        raise ValueError(f"store: {store!r} is unknown; there are 'driver' and 'rank'")
    if min_workers is not None and not 1 <= min_workers <= num_workers:
        raise ValueError(f"min_workers: {min_workers}, but it is 1 to num_workers ({num_workers})")
    if min_workers is not None and store == "rank":
        raise ValueError("store: an elastic job's store must outlive every rank, so it is in the driver")
    if not ray.is_initialized():
        ray.init()
    resources = dict({"CPU": 1} if resources_per_worker is None else resources_per_worker)
    group = placement_group([resources] * num_workers, strategy=placement_strategy)
    try:
        if not group.wait(_START_S if timeout is None else timeout):
            raise RankFailedError(f"{num_workers} workers with {resources} each ({placement_strategy}) cannot be placed; the cluster "
                                  f"has {ray.cluster_resources()}, of which are free {ray.available_resources()}")
        for restart in range(1 if min_workers is not None else max_restarts + 1):
            job = _Job(group, resources, num_workers, store, restart, timeout)
            try:
                return job.run(ray.put((fn, tuple(args))), min_workers, max_restarts)
            except RankFailedError:
                if min_workers is not None or restart == max_restarts:
                    raise
            finally:
                job.end()
        raise AssertionError("the last round returns or raises")
    finally:
        remove_placement_group(group)


class _Worker:
    """An actor: the process of a rank."""

    def stand(self) -> Dict[str, Any]:
        """Where it runs."""
        context = ray.get_runtime_context()
        return {"node": context.get_node_id(), "host": ray.util.get_node_ip_address(), "pid": os.getpid(), "name": os.uname().nodename,
                "gpus": context.get_accelerator_ids().get("GPU", [])}

    def serve(self, secret: str) -> str:
        """Runs the store, and returns its address."""
        self._store = Store(f"tcp://{ray.util.get_node_ip_address()}:0", server=True, secret=secret)
        return f"tcp://{ray.util.get_node_ip_address()}:{self._store.port}"

    def enter(self, told: Dict[str, str], secret: str, node: str, gpus: Sequence[str]) -> Dict[str, Any]:
        """Makes the process a rank. All ranks of a node see its GPUs in the order of local ranks. On another node than the rank
        had before, it is alone."""
        here = self.stand()
        if here["node"] != node:
            told = {**told, **{prefix + name: value for prefix in ("", "DDP_")
                               for name, value in (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))}}
        elif gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        enter(told, secret)
        return here

    def run(self, entered: Dict[str, Any], program: Any) -> Any:
        """Runs the program; `entered` makes Ray wait for enter()."""
        fn, args = program
        try:
            return fn(*args)
        except SystemExit as ended:
            return status_of_exit(ended.code)
        finally:
            leave_all()


@dataclasses.dataclass
class _Rank:
    """A rank, as the driver sees it. A rank that was started again has another actor."""

    actor: Any
    variables: Dict[str, str]
    node: str
    gpus: List[str]
    restart: int = 0
    entered: Any = None
    here: Optional[Dict[str, Any]] = None


class _Job:
    """The actors of one start, from the driver."""

    def __init__(self, group: Any, resources: Mapping[str, float], num_workers: int, store: str, restart: int,
                 timeout: Optional[float]):
        self._group = group
        self._resources = resources
        self._timeout = timeout
        self._restart = restart
        self._secret = secrets.token_hex(32)
        self._store: Optional[Store] = None
        self._actors: List[Any] = []
        self._ranks: List[_Rank] = []
        self._running: Dict[Any, int] = {}  # the rank of each call that has not ended
        self._failures: List[Failure] = []
        self._causes: List[BaseException] = []
        try:
            self._start(num_workers, store)
        except BaseException:
            self.end()
            raise

    def _actor(self, bundle: int) -> Any:
        plain = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options = {plain[name]: amount for name, amount in self._resources.items() if name in plain}
        actor = ray.remote(_Worker).options(
            num_cpus=options.pop("num_cpus", 0), **options, max_restarts=0,
            resources={name: amount for name, amount in self._resources.items() if name not in plain},
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)).remote()
        self._actors.append(actor)
        return actor

    def _start(self, num_workers: int, store: str) -> None:
        actors = [self._actor(bundle) for bundle in range(num_workers)]
        stands = self._all("start", [actor.stand.remote() for actor in actors])
        chosen = places([stand["node"] for stand in stands])
        first = next(worker for worker, place in enumerate(chosen) if place.rank == 0)
        if store == "driver":
            address = ray.util.get_node_ip_address()
            self._store = Store(f"tcp://{address}:0", server=True, secret=self._secret)
            uri = f"tcp://{address}:{self._store.port}"
        else:
            uri = self._all("run the store", [actors[first].serve.remote(self._secret)])[0]
        ranks = {}
        for actor, stand, place in zip(actors, stands, chosen):
            gpus = [gpu for other in stands if other["node"] == stand["node"] for gpu in other["gpus"]]
            told = variables(place, num_workers, uri, self._restart, self._timeout)
            ranks[place.rank] = _Rank(actor, told, stand["node"], gpus, here=stand)
        self._ranks = [ranks[rank] for rank in range(num_workers)]
        self._bundles = {place.rank: worker for worker, place in enumerate(chosen)}

    def _all(self, task: str, calls: List[Any]) -> List[Any]:
        """The results of calls of all actors, or the error of the first that fails."""
        limit = _START_S if self._timeout is None else self._timeout
        deadline, waiting = time.monotonic() + limit, list(calls)
        while waiting:
            ended, waiting = ray.wait(waiting, timeout=_LOOK_S)
            for call in ended:
                try:
                    ray.get(call)
                except ray.exceptions.RayError as error:
                    raise RankFailedError(f"a worker could not {task}: {_words(error)}") from error
            if waiting and time.monotonic() > deadline:
                raise RankFailedError(f"{len(waiting)} of {len(calls)} workers did not {task} within {limit:g} s")
        return ray.get(calls)

    def run(self, program: Any, min_workers: Optional[int], max_restarts: int) -> List[Any]:
        """The results of all ranks."""
        elastic = None if min_workers is None else _Elastic(min_workers, max_restarts, self._store)
        for rank, facts in enumerate(self._ranks):
            if elastic:
                facts.variables.update(elastic.variables(len(self._ranks)))
            self._begin(rank, program)
        results: List[Any] = [None] * len(self._ranks)
        deadline = None
        while self._running and (deadline is None or time.monotonic() < deadline):
            for call in ray.wait(list(self._running), timeout=_LOOK_S if deadline is None else 0.05)[0]:
                rank = self._running.pop(call)
                try:
                    results[rank] = ray.get(call)
                    if elastic:
                        self._stop(elastic.succeeded(self._stand_of(rank), {other: self._stand_of(other)
                                                                             for other in self._running.values()}))
                    continue
                except ray.exceptions.RayError as error:
                    self._note(rank, error)
                if elastic and elastic.may_start_again():
                    self._start_again(rank, program)
                elif not elastic or elastic.is_over():
                    deadline = deadline or time.monotonic() + _REPORT_S
                    continue
                del self._failures[-1], self._causes[-1]  # the job goes on
        if deadline is not None:
            first, text = cause_of(self._failures)
            cause = next(error for failure, error in zip(self._failures, self._causes) if text.startswith(failure.text))
            raise RankFailedError(text, rank=first) from cause
        return results

    def _begin(self, rank: int, program: Any) -> None:
        facts = self._ranks[rank]
        facts.entered = facts.actor.enter.remote(facts.variables, self._secret, facts.node, facts.gpus)
        self._running[facts.actor.run.remote(facts.entered, program)] = rank

    def _start_again(self, rank: int, program: Any) -> None:
        facts = self._ranks[rank]
        ray.kill(facts.actor)
        facts.actor, facts.here = self._actor(self._bundles[rank]), None
        facts.restart += 1
        facts.variables["DDP_RESTART"] = str(facts.restart)
        self._begin(rank, program)

    def _stand_of(self, rank: int) -> Optional[Dict[str, Any]]:
        """Where a rank runs, if it has come so far."""
        facts = self._ranks[rank]
        if facts.here is None and ray.wait([facts.entered], timeout=0)[0]:
            try:
                facts.here = ray.get(facts.entered)
            except ray.exceptions.RayError:  # its run() fails for it
                return None
        return facts.here

    def _stop(self, ranks: Sequence[int]) -> None:
        """Ends ranks that the job no longer needs."""
        for call in [call for call, rank in self._running.items() if rank in ranks]:
            ray.kill(self._ranks[self._running.pop(call)].actor)

    def _note(self, rank: int, error: BaseException) -> None:
        here = self._stand_of(rank)
        where = f"rank {rank} of {len(self._ranks)}" + (f" (pid {here['pid']} on {here['host']})" if here else "")
        cause = getattr(error, "cause", None) if isinstance(error, ray.exceptions.RayTaskError) else None
        if cause is None:
            self._failures.append(Failure(rank, f"{where} died: {_words(error)}", died=True))
        else:
            self._failures.append(failure_of(rank, where, cause))
        self._causes.append(error)

    def end(self) -> None:
        """Ends the actors and the store."""
        for actor in self._actors:
            ray.kill(actor)
        if self._store:
            self._store.close()


class _Elastic:
    """Decides what becomes of an elastic job when a worker has ended, as ddprun --min-ranks does."""

    def __init__(self, min_workers: int, max_restarts: int, store: Store):
        self._min_workers = min_workers
        self._restarts = max_restarts
        self._store = store
        self._left = 0
        self._finished = False

    def variables(self, num_workers: int) -> Dict[str, str]:
        """The environment of its ranks, besides that of any job."""
        self._left = num_workers
        return {"DDP_ELASTIC_MIN_WORLD": str(self._min_workers), "DDP_ELASTIC_MAX_WORLD": str(num_workers),
                "DDP_ELASTIC_FIRST_WORLD": str(num_workers)}

    def may_start_again(self) -> bool:
        """A worker has failed: whether it is started again. Otherwise one less is left."""
        if self._restarts > 0 and not self._finished:
            self._restarts -= 1
            return True
        self._left -= 1
        return False

    def is_over(self) -> bool:
        """Whether too few workers are left."""
        return self._left < self._min_workers

    def succeeded(self, stand: Optional[Dict[str, Any]], running: Mapping[int, Optional[Dict[str, Any]]]) -> List[int]:
        """A worker has returned. The running ranks that the job no longer needs: a rank that has not come to the roster which has
        finished would begin the job anew."""
        members = self._members()
        if not any(_is(stand, member) for member in members):
            self._left -= 1  # it has left, and the others go on
            return []
        self._finished = True
        return [rank for rank, other in running.items() if not any(_is(other, member) for member in members)]

    def _members(self) -> List[str]:
        """The members of the newest roster. elastic/keys.h describes the key."""
        newest, members = 0, []
        for key in self._store.keys("elastic/"):
            if key.endswith("/roster"):
                head, *lines = self._store.get(key, 1).decode().splitlines()
                if int(head.split()[0]) > newest:
                    newest, members = int(head.split()[0]), [line.split()[0] for line in lines if line]
        return members


def _is(stand: Optional[Dict[str, Any]], member: str) -> bool:
    return stand is not None and member.endswith(f"-{stand['name']}-{stand['pid']}")


def _words(error: BaseException) -> str:
    """Ray's message on one line, without the figures that it adds."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")))
