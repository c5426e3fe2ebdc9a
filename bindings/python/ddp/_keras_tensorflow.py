"""Steps of Keras on TensorFlow. A function of Python's averages gradients, which XLA does not compile: what XLA compiles ends before it."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

import ctypes

import numpy
import tensorflow as tf

from ._errors import InvalidStateError, UnsupportedError


class Backend:
    """The part that is TensorFlow's."""

    def __init__(self, parallel):
        self._parallel = parallel
        self._waiting = None  # (gradients, variables), where XLA compiles the pass that has computed them
        self._is_compiled = False
        self._compiled = {}

    @staticmethod
    def require_supported(model):
        if model.distribute_strategy.num_replicas_in_sync > 1:
            raise UnsupportedError("model: it is in the scope of a tf.distribute strategy, which averages gradients, too. Build it outside of one")
        if not model.built or not model.weights:
            raise InvalidStateError("model: it has no variables yet, and TensorFlow makes them in the first step, when the ranks must have the same ones. Begin "
                             "the model with keras.Input(...), or call model.build(input_shape) before fit")

    def wrap(self, model):
        """Lets fit run what XLA compiles around the average."""
        make = model.make_train_function

        def make_train_function(force=False):
            if force or model.train_function is None:
                self._compiled.clear()
            wanted, self._is_compiled = model.jit_compile, bool(model.jit_compile)
            model.jit_compile = False  # of the function around both parts
            try:
                return make(force)
            finally:
                model.jit_compile = wanted

        model.make_train_function = make_train_function

    def step(self, step, apply, data):
        """A step of fit. step: the model's. apply: the optimizer's."""
        if not self._is_compiled:
            return step(data)
        if not self._compiled:
            def compute(data):
                self._waiting = ()
                try:
                    logs = step(data)
                    if not self._waiting:
                        raise UnsupportedError("model: its train_step does not call apply of the optimizer, so there is nothing to average")
                    gradients, self._variables = self._waiting
                    return logs, gradients
                finally:
                    self._waiting = None

            self._compiled["compute"] = tf.function(compute, jit_compile=True, reduce_retracing=True, autograph=False)
            self._compiled["apply"] = tf.function(lambda means: apply(means, self._variables), jit_compile=True, reduce_retracing=True, autograph=False)
        logs, gradients = self._compiled["compute"](data)
        self._compiled["apply"](self._reduced(gradients, self._variables))
        return logs

    def averaged(self, apply, gradients, variables):
        """apply(means, variables)"""
        if self._waiting is not None:
            if self._waiting:
                raise UnsupportedError("model: its train_step calls apply of the optimizer twice, and with jit_compile=True it may do so once. Compile it "
                                       "with jit_compile=False")
            self._waiting = [None if each is None else tf.convert_to_tensor(each) for each in gradients], variables
            return None
        return apply(self._reduced(gradients, variables), variables)

    def _reduced(self, gradients, variables):
        indices = self._parallel.indices_of(variables)
        present = [(place, index) for place, index in enumerate(indices) if gradients[place] is not None]
        dtypes = [tf.as_dtype(self._parallel.gradients.variables[index][2]) for _, index in present]
        given = [tf.cast(tf.convert_to_tensor(gradients[place]), dtype) for (place, _), dtype in zip(present, dtypes)]

        def reduce(weight, *arrays):
            with self._parallel.noted_failure():
                return self._reduce(float(weight), [index for _, index in present], arrays)

        means = tf.numpy_function(reduce, [tf.cast(self._parallel.weight, tf.float64), *given], dtypes)
        results = [None] * len(indices)
        for (place, index), mean in zip(present, means):
            mean.set_shape(self._parallel.gradients.variables[index][1])
            results[place] = mean
        return results

    def _reduce(self, weight, indices, arrays):
        gradients = self._parallel.gradients
        arrays = [numpy.ascontiguousarray(array) for array in arrays]
        gradients.begin(weight)
        for index, array in reversed(list(zip(indices, arrays))):
            gradients.give(index, array.ctypes.data)
        gradients.end()
        means = [numpy.empty_like(array) for array in arrays]
        for index, mean in zip(indices, means):
            ctypes.memmove(mean.ctypes.data, gradients.mean(index), mean.nbytes)
        for index in set(range(len(gradients.variables))) - set(indices):
            gradients.mean_here(index)
        return means

    def started(self, model):
        """fit begins."""

    def settle(self, variables):
        """Waits until steps have ended."""
