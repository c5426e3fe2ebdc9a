"""Horovod's names for Keras 3 on TensorFlow.

    import ddp.horovod.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), jit_compile=False, ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

docs/horovod.md says what is different from Horovod.
"""
# mypy: ignore-errors
# TensorFlow may not be there.
from functools import partial as _partial

import keras as _keras

from .._calls import allgather_object, broadcast_object
from .._job import (ProcessSet, add_process_set, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, global_process_set, gloo_built,
                    gloo_enabled, init, is_initialized, local_rank, local_size, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built,
                    rank, remove_process_set, rocm_built, shutdown, size)
from .._keras_names import DistributedOptimizer, allgather, allreduce, broadcast, load_model_with as _load_model_with, reducescatter
from .._tensorflow_compression import Compression
from .._tensorflow_ops import Average, Sum
from . import callbacks, elastic

load_model = _partial(_load_model_with, _keras)

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "ProcessSet", "Sum", "add_process_set", "allgather", "allgather_object",
    "allreduce", "broadcast", "broadcast_object", "callbacks", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "elastic", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_initialized", "load_model", "local_rank", "local_size",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "reducescatter", "remove_process_set", "rocm_built",
    "shutdown", "size",
]
