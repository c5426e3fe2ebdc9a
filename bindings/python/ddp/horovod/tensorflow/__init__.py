"""Horovod's names for TensorFlow 2.

    import ddp.horovod.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        ...
    tape = hvd.DistributedGradientTape(tape)

docs/horovod.md says what is different from Horovod.
"""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any

import tensorflow as _tf

from .. import _gradients
from .._calls import allgather_object, barrier, broadcast_object
from .._job import (ProcessSet, add_process_set, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built,
                    gloo_enabled, init, is_homogeneous, is_initialized, join, local_rank, local_size, mpi_built, mpi_enabled,
                    mpi_threads_supported, nccl_built, rank, remove_process_set, rocm_built, shutdown, size)
from .._keras import distributed_optimizer as _distributed_optimizer
from ..exceptions import HorovodInternalError, HostsUpdatedInterrupt
from . import elastic
from .._tensorflow_compression import Compression
from .._tensorflow_ops import (Adasum, Average, Max, Min, Product, Sum, allgather, allreduce, alltoall, broadcast, broadcast_,
                               broadcast_variables, grouped_allgather, grouped_allreduce, grouped_reducescatter, local_rank_op,
                               local_size_op, process_set_included_op, rank_op, reducescatter, size_op)

__all__ = [
    "Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer", "HorovodInternalError",
    "HostsUpdatedInterrupt", "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_object",
    "allreduce", "alltoall", "barrier", "broadcast", "broadcast_", "broadcast_object", "broadcast_variables", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather",
    "grouped_allreduce", "grouped_reducescatter", "init", "is_homogeneous", "is_initialized", "join", "local_rank", "local_rank_op",
    "local_size", "local_size_op", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "process_set_included_op", "rank",
    "rank_op", "reducescatter", "remove_process_set", "rocm_built", "shutdown", "size", "size_op",
]


class _Tape:
    """The method that a tape gets."""

    _horovod: _gradients.Gradients

    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """As the tape's own; the gradients are those of all ranks."""
        found = super().gradient(target, sources, *arguments, **options)
        flat = _tf.nest.flatten(found)
        return _tf.nest.pack_sequence_as(found, self._horovod.reduce(flat))


def DistributedGradientTape(gradtape: Any, device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
                            sparse_as_dense: bool = False, op: int = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                            groups: Any = None, process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True) -> Any:
    """A tape with what `gradtape` has recorded, whose gradient() reduces over ranks, in one call for all sources. device_dense,
    device_sparse, num_groups, groups and scale_local_gradients: not needed, and taken because Horovod takes them."""
    del device_dense, device_sparse, num_groups, groups, scale_local_gradients
    kind = type(gradtape)
    made: Any = type(kind.__name__, (_Tape, kind), {})
    tape = made.__new__(made)
    tape.__dict__.update(gradtape.__dict__)
    tape._horovod = _gradients.Gradients.checked(compression, op, process_set, sparse_as_dense, gradient_predivide_factor)
    return tape


def DistributedOptimizer(optimizer: Any, name: Any = None, use_locking: bool = False, device_dense: str = "", device_sparse: str = "",
                         compression: Any = Compression.none, sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
                         op: int = Average, gradient_predivide_factor: float = 1.0, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """An optimizer of Keras, as ddp.horovod.keras.DistributedOptimizer."""
    del name, use_locking, device_dense, device_sparse, num_groups, groups, scale_local_gradients
    return _distributed_optimizer(
        optimizer, _gradients.Gradients.checked(compression, op, process_set, sparse_as_dense, gradient_predivide_factor),
        backward_passes_per_step, average_aggregated_gradients)
