"""Steps of Keras on PyTorch."""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

import ctypes
import functools

import torch

from ._errors import UnsupportedError


class Backend:
    """The part that is PyTorch's."""

    def __init__(self, parallel):
        self._parallel = parallel
        self._hooks = []
        self._given = None  # the variables whose gradients have come in this step; None: it has not begun

    @staticmethod
    def require_supported(model):
        if model.jit_compile:
            raise UnsupportedError("model: jit_compile=True is torch.compile, with which ddp.keras has not been tried. Compile the model with "
                                   "jit_compile=False, which is Keras's choice with PyTorch")

    def wrap(self, model):
        """fit needs nothing else."""

    def started(self, model):
        """Lets gradients leave the backward pass of Keras's own steps when they are computed."""
        for hook in self._hooks:
            hook.remove()
        self._given = None
        self._hooks = [variable.value.register_post_accumulate_grad_hook(functools.partial(self._computed, index))
                       for index, variable in enumerate(model.trainable_variables) if self._parallel.is_own_step]

    def step(self, step, apply, data):
        """A step of fit."""
        del apply
        if self._hooks:
            with self._parallel.noted_failure():
                self._begin()
        return step(data)

    def averaged(self, apply, gradients, variables):
        """apply(means, variables)"""
        return apply(self._reduced(list(gradients), variables), variables)

    def settle(self, variables):
        """Waits until steps have ended."""

    @torch.no_grad()
    def _reduced(self, given, variables):
        gradients, indices = self._parallel.gradients, self._parallel.indices_of(variables)
        with self._parallel.noted_failure():
            if self._given is None:
                self._begin()
            for index, gradient in reversed(list(zip(indices, given))):
                if gradient is not None and index not in self._given:
                    self._give(index, gradient)
            self._given = None
            gradients.end()
            for place, (index, variable) in enumerate(zip(indices, variables)):
                address = gradients.mean(index)
                if address is not None:
                    mean = torch.empty(variable.shape, dtype=self._dtype_of(index))
                    ctypes.memmove(mean.data_ptr(), address, mean.nbytes)
                    given[place] = mean.to(variable.value.device)
        return given

    def _computed(self, index, parameter):
        """Called in a backward pass."""
        if self._given is not None:
            with self._parallel.noted_failure():
                self._give(index, parameter.grad)

    def _begin(self):
        self._parallel.gradients.begin(float(self._parallel.weight))
        self._given = set()

    def _give(self, index, gradient):
        here = gradient.detach().to("cpu", self._dtype_of(index)).contiguous()
        self._parallel.gradients.give(index, here.data_ptr())
        self._given.add(index)

    def _dtype_of(self, index):
        return getattr(torch, self._parallel.gradients.variables[index][2])
