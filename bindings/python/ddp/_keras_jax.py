"""Steps of Keras on JAX: compiled code calls libddp, with the addresses of gradients."""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import ctypes
import threading

import jax
import keras
import numpy
from jax import numpy as jnp

from . import _jax_calls
from ._errors import UnsupportedError


class Backend:
    """What is JAX's."""

    def __init__(self, parallel):
        self._parallel = parallel
        self._number = _jax_calls.number_of(self)
        self._failure, self._enqueued = None, threading.Event()  # for _jax_calls

    @staticmethod
    def require_supported(model):
        if keras.distribution.distribution() is not None:
            raise UnsupportedError("model: keras.distribution is set, and JAX averages gradients over its devices. Leave one of both out")
        platforms = {device.platform for variable in model.trainable_variables for device in variable.value.devices()}
        if platforms - {"cpu"}:
            raise UnsupportedError(f"model: its variables are on {', '.join(sorted(platforms))}, and with JAX ddp.keras is for the CPU. Use ddp.jax.DataParallel "
                                   "in a training loop of your own, or another backend of Keras")

    def wrap(self, model):
        """fit needs nothing else."""

    def step(self, step, apply, state, data):
        """A step of fit."""
        del apply
        return step(state, data)

    def averaged(self, apply, gradients, variables):
        """apply(means, variables)"""
        indices = self._parallel.indices_of(variables)
        if None in gradients or indices != list(range(len(self._parallel.gradients.variables))):
            raise UnsupportedError("model: its train_step applies gradients of some trainable variables only. Give apply those of all")
        given = [jnp.asarray(each, dtype) for each, (_, _, dtype) in zip(gradients, self._parallel.gradients.variables)]
        reduce = jax.ffi.ffi_call(_jax_calls.CPU.registered_target, [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given], has_side_effect=True)
        means = reduce(jnp.asarray(self._parallel.weight, jnp.float32), *given, parallel=numpy.int64(self._number), param=numpy.int64(-1))
        return apply(list(means), variables)

    def _reduce(self, arguments, results, _):
        """Called by compiled code."""
        gradients = self._parallel.gradients
        with self._parallel.noted_failure():
            gradients.begin(ctypes.c_float.from_address(arguments[0]).value)
            for index in reversed(range(len(results))):
                gradients.give(index, arguments[1 + index])
            gradients.end()
            for index, (address, (_, shape, dtype)) in enumerate(zip(results, gradients.variables)):
                ctypes.memmove(address, gradients.mean(index), numpy.dtype(jnp.dtype(dtype)).itemsize * int(numpy.prod(shape, dtype=int)))

    def settle(self, variables):
        """Waits until steps have ended: JAX computes while Python goes on."""
        jax.block_until_ready([variable.value for variable in variables])
