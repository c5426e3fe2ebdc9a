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
    """The part that is JAX's."""

    def __init__(self, parallel):
        self._parallel = parallel
        self._pass = None       # that JAX traces, or computes
        self._compiled = []     # passes of compiled code

    @staticmethod
    def require_supported(model):
        if keras.distribution.distribution() is not None:
            raise UnsupportedError("model: keras.distribution is set, and JAX averages gradients over its devices. Leave one of both out")
        platforms = {device.platform for variable in model.trainable_variables for device in variable.value.devices()}
        if platforms - {"cpu"}:
            raise UnsupportedError(f"model: its variables are on {', '.join(sorted(platforms))}, and with JAX ddp.keras is for the CPU. Use "
                                   "ddp.jax.DataParallel in a training loop of your own, or another backend of Keras")

    def wrap(self, model):
        """Lets gradients leave the backward pass of Keras's own steps when they are computed."""
        compute = model.compute_loss_and_updates

        def compute_loss_and_updates(trainable_variables, *arguments, training=False, **options):
            if training and self._pass is not None and self._pass.weight is not None:
                trainable_variables = [_jax_calls.announced(_jax_calls.CPU, self._pass.number, index, value)
                                       for index, value in enumerate(trainable_variables)]
            return compute(trainable_variables, *arguments, training=training, **options)

        model.compute_loss_and_updates = compute_loss_and_updates

    def started(self, model):
        """fit begins."""

    def step(self, step, apply, state, data):
        """A step of fit."""
        del apply
        weight = self._parallel.weight
        self._pass = _Pass(self._parallel, weight if self._parallel.is_own_step and isinstance(weight, int) else None)
        if any(isinstance(value, jax.core.Tracer) for value in state[0]):
            self._compiled.append(self._pass)
        try:
            return step(state, data)
        finally:
            self._pass = None

    def averaged(self, apply, gradients, variables):
        """apply(means, variables)"""
        indices = self._parallel.indices_of(variables)
        if self._pass is None or indices != list(range(len(gradients))) or any(each is None for each in gradients):
            raise UnsupportedError("model: gradients of all trainable variables are averaged, in train_step. Give them all to the optimizer, in a step of fit")
        given = [jnp.asarray(each, dtype) for each, (_, _, dtype) in zip(gradients, self._parallel.gradients.variables)]
        reduce = jax.ffi.ffi_call(_jax_calls.CPU.registered_target, [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in given], has_side_effect=True)
        means = reduce(jnp.asarray(self._parallel.weight, jnp.float32), *given, parallel=numpy.int64(self._pass.number), param=numpy.int64(-1))
        return apply(list(means), variables)

    def settle(self, variables):
        """Waits until steps have ended: JAX computes while Python goes on."""
        jax.block_until_ready([variable.value for variable in variables])


class _Pass:
    """A backward pass that code of JAX's makes, once or many times. weight: of the batch, where it is known before; then gradients come when
    they are computed. Otherwise they come together."""

    def __init__(self, parallel, weight):
        self._parallel = parallel
        self.weight = weight
        self.number = _jax_calls.number_of(self)
        self._given = None  # the variables whose gradients have come in this step; None: it has not begun
        self._failure, self._enqueued = None, threading.Event()  # for _jax_calls

    def _announce(self, param, address, _):
        """Called by code of JAX's."""
        with self._parallel.noted_failure():
            if self._given is None:
                self._begin(self.weight)
            self._give(param, address)

    def _reduce(self, arguments, results, _):
        """Called by code of JAX's."""
        gradients = self._parallel.gradients
        with self._parallel.noted_failure():
            if self._given is None:
                self._begin(ctypes.c_float.from_address(arguments[0]).value)
            for index in reversed(range(len(results))):
                if index not in self._given:
                    self._give(index, arguments[1 + index])
            self._given = None
            gradients.end()
            for index, (address, (_, shape, dtype)) in enumerate(zip(results, gradients.variables)):
                ctypes.memmove(address, gradients.mean(index), jnp.dtype(dtype).itemsize * int(numpy.prod(shape, dtype=int)))

    def _begin(self, weight):
        self._parallel.gradients.begin(weight)
        self._given = set()

    def _give(self, index, address):
        self._parallel.gradients.give(index, address)
        self._given.add(index)
