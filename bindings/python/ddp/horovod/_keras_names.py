"""The names that ddp.horovod.keras and ddp.horovod.tensorflow.keras have in common."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any, Optional

from . import _tensorflow_ops as tensors
from ._calls import allgather_object, broadcast_object
from ._gradients import Gradients
from ._job import (ProcessSet, add_process_set, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built,
                   gloo_enabled, init, is_initialized, local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built,
                   rank, remove_process_set, rocm_built, shutdown, size)
from ._keras import distributed_optimizer
from ._tensorflow_compression import Compression
from ._tensorflow_ops import Average, Sum

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "ProcessSet", "Sum", "add_process_set", "allgather", "allgather_object",
    "allreduce", "broadcast", "broadcast_object", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "global_process_set", "gloo_built", "gloo_enabled", "init", "is_initialized", "local_rank", "local_size", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "reducescatter", "remove_process_set", "rocm_built", "shutdown",
    "size",
]


def DistributedOptimizer(optimizer: Any, name: Any = None, device_dense: str = "", device_sparse: str = "",
                         compression: Any = Compression.none, sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                         op: int = Average, backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """The optimizer itself, which from now on reduces gradients over ranks before it applies them, in one call for all.

    backward_passes_per_step: so many steps add to the gradients before they travel and are applied. average_aggregated_gradients: as
    their mean. name, device_dense, device_sparse, num_groups, groups and scale_local_gradients: not needed, and taken because Horovod
    takes them.
    """
    del name, device_dense, device_sparse, num_groups, groups, scale_local_gradients
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    return distributed_optimizer(optimizer, Gradients.checked(compression, op, process_set, sparse_as_dense, gradient_predivide_factor),
                                  backward_passes_per_step, average_aggregated_gradients)


def allreduce(value: Any, name: Optional[str] = None, average: Optional[bool] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, op: Optional[int] = None, compression: Any = Compression.none) -> Any:
    """The reduction of a value over ranks, as a tensor."""
    return tensors.allreduce(value, average, compression=compression, op=op, prescale_factor=prescale_factor,
                             postscale_factor=postscale_factor, name=name)


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """The values of all ranks one after another along the first dimension."""
    return tensors.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The value of rank root_rank."""
    return tensors.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: Optional[str] = None, op: int = Average) -> Any:
    """This rank's rows of the reduction of a value over ranks."""
    return tensors.reducescatter(value, op=op, name=name)


def load_model_with(keras: Any, filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None,
                    compression: Any = Compression.none) -> Any:
    """A saved model, with a DistributedOptimizer. keras: the package that loads it."""
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = False
    return model
