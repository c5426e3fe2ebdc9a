"""Horovod's collectives for arrays of NumPy. They need no framework.

    import ddp.horovod.numpy as hvd

    hvd.init()
    mean = hvd.allreduce(array, name="gradients")

Arguments and results are those of horovod.torch, with arrays in place of tensors.
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

from ._calls import Calls, NumpyAdapter, allgather_object, barrier, broadcast_object, poll, synchronize
from ._job import (ProcessSet, add_process_set, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built,
                   gloo_enabled, init, is_homogeneous, is_initialized, join, local_rank, local_size, mpi_built, mpi_enabled,
                   mpi_threads_supported, nccl_built, rank, remove_process_set, rocm_built, shutdown, size)
from ._numbers import Array, ReduceOp
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

__all__ = [
    "Adasum", "Average", "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min", "ProcessSet", "Product", "Sum",
    "add_process_set", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized",
    "join", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank",
    "reducescatter", "reducescatter_async", "remove_process_set", "rocm_built", "shutdown", "size", "synchronize",
]

_calls = Calls(NumpyAdapter())
allreduce_, allreduce_async, allreduce_async_ = _calls.allreduce_, _calls.allreduce_async, _calls.allreduce_async_
grouped_allreduce_, grouped_allreduce_async = _calls.grouped_allreduce_, _calls.grouped_allreduce_async
grouped_allreduce_async_ = _calls.grouped_allreduce_async_
allgather_async, grouped_allgather_async = _calls.allgather_async, _calls.grouped_allgather_async
broadcast_, broadcast_async, broadcast_async_ = _calls.broadcast_, _calls.broadcast_async, _calls.broadcast_async_
alltoall_async, reducescatter_async = _calls.alltoall_async, _calls.reducescatter_async
grouped_reducescatter_async = _calls.grouped_reducescatter_async


def allreduce(array: Array, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> Array:
    """The reduction of an array over ranks; op: Average by default."""
    return synchronize(allreduce_async(array, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(arrays: Sequence[Array], average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> List[Array]:
    """The reductions of a list of arrays, which become ready together."""
    results: List[Array] = synchronize(grouped_allreduce_async(arrays, average, name, op, prescale_factor, postscale_factor, process_set))
    return results


def allgather(array: Array, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Array:
    """The arrays of all ranks one after another along the first dimension, in which they may differ."""
    return synchronize(allgather_async(array, name, process_set))


def grouped_allgather(arrays: Sequence[Array], name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Array]:
    """As allgather, for a list of arrays."""
    results: List[Array] = synchronize(grouped_allgather_async(arrays, name, process_set))
    return results


def broadcast(array: Array, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Array:
    """The array of rank root_rank (in the job)."""
    return synchronize(broadcast_async(array, root_rank, name, process_set))


def alltoall(array: Array, splits: Optional[Sequence[int]] = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Union[Array, Tuple[Array, List[int]]]:
    """The rows that all ranks send to this one; with splits also how many came from each rank."""
    output, received = synchronize(alltoall_async(array, splits, name, process_set))
    return output if splits is None else (output, received)


def reducescatter(array: Array, name: Optional[str] = None, op: int = Average, process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Array:
    """This rank's rows of the reduction of an array over ranks."""
    return synchronize(reducescatter_async(array, name, op, process_set, prescale_factor, postscale_factor))


def grouped_reducescatter(arrays: Sequence[Array], name: Optional[str] = None, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[Array]:
    """As reducescatter, for a list of arrays."""
    results: List[Array] = synchronize(
        grouped_reducescatter_async(arrays, name, op, process_set, prescale_factor, postscale_factor))
    return results
