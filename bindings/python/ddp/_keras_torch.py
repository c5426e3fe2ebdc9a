"""Steps of Keras on PyTorch."""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

import ctypes

import torch


class Backend:
    """What is PyTorch's."""

    def __init__(self, parallel):
        self._parallel = parallel

    @staticmethod
    def require_supported(model):
        """Everything is."""

    def wrap(self, model):
        """fit needs nothing else."""

    def step(self, step, apply, data):
        """A step of fit."""
        del apply
        return step(data)

    def averaged(self, apply, gradients, variables):
        """apply(means, variables)"""
        return apply(self._reduced(list(gradients), variables), variables)

    @torch.compiler.disable
    @torch.no_grad()
    def _reduced(self, given, variables):
        gradients, indices = self._parallel.gradients, self._parallel.indices_of(variables)
        with self._parallel.noted_failure():
            gradients.begin(float(self._parallel.weight))
            here = {place: each.detach().to("cpu", getattr(torch, gradients.variables[indices[place]][2])).contiguous()
                    for place, each in enumerate(given) if each is not None}
            for place in reversed(here):
                gradients.give(indices[place], here[place].data_ptr())
            gradients.end()
            for place, index in enumerate(indices):
                address = gradients.mean(index)
                if address is None:
                    continue
                variable = variables[place].value
                mean = torch.empty(variable.shape, dtype=getattr(torch, gradients.variables[index][2]))
                ctypes.memmove(mean.data_ptr(), address, mean.numel() * mean.element_size())
                given[place] = mean.to(variable.device)
        return given

    def settle(self, variables):
        """Waits until steps have ended."""
