"""Gradients of a model of Keras, averaged over ranks in the memory of the CPU."""
# mypy: ignore-errors
# Keras may not be there.
from __future__ import annotations

from . import _ddp
from .context import Context


class Gradients:
    """The context of a model's trainable variables. A step: begin(), give() each gradient, end(), and mean() for each."""

    def __init__(self, group, variables):
        """variables: (name, shape, type) of each. Collective."""
        self.context = Context(group, reduction="weighted_mean", find_unused=True, join=True)
        self.variables = variables
        self.steps = 0  # since this was set to 0
        self._parameters = [self.context.register(name, shape=shape, dtype=dtype) for name, shape, dtype in variables]
        self._given = set()
        self.context.commit()

    def begin(self, weight):
        """weight: of this rank's gradients in the mean. Collective."""
        self.context.set_weight(weight)
        self.context.step_begin()
        self._given.clear()

    def give(self, index, address):
        """The gradient of a variable, which is copied."""
        _ddp.ddp_put(self.context._handle, self._parameters[index], address, 0)
        self._given.add(index)

    def end(self):
        """Waits until the means are there. Collective."""
        self.context.mark_unused([parameter for index, parameter in enumerate(self._parameters) if index not in self._given])
        self.context.finalize()
        self.steps += 1

    def mean(self, index):
        """The address of the mean until the next step; None if no rank has had a gradient."""
        parameter = self._parameters[index]
        return parameter.view().address if self.context.param_used(parameter) else None

    def mean_here(self, index):
        """As mean(), where a rank without a gradient cannot take one: compiled code has no place for it."""
        address = self.mean(index)
        if address is not None and index not in self._given:
            raise ValueError(f"{self.variables[index][0]}: there is no gradient of it on this rank, and another rank has one. Let all ranks train the same "
                             "variables: set trainable=False, or use the variable in the loss everywhere")
        return address
