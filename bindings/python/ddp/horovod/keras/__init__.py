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

from .. import _keras_names
from .._keras_names import *  # noqa: F403
from . import callbacks, elastic

load_model = _partial(_keras_names.load_model_with, _keras)

__all__ = [*_keras_names.__all__, "callbacks", "elastic", "load_model"]
