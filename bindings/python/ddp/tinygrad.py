"""tinygrad: the gradients of a model, averaged between the backward pass and the optimizer.

    from ddp.tinygrad import DataParallel

    parallel = DataParallel(model)       # ddprun -n 2 python3 train.py; every rank starts from rank 0's weights
    optimizer = nn.optim.SGD(nn.state.get_parameters(model))
    loss.backward()
    parallel.average()                   # now every .grad is the mean over ranks
    optimizer.step()

Values go through CPU memory, wherever tinygrad computes.
"""
# mypy: ignore-errors
# tinygrad may not be there.
from __future__ import annotations

import numpy
from tinygrad import Tensor, nn

from ._errors import MissingGradientError
from .context import Context
from .group import Group

__all__ = ["DataParallel"]


class DataParallel:
    """Averages the gradients of a model's tensors over the ranks of a group.

    model: what nn.state.get_state_dict takes. Each rank's tensors become rank 0's. group: a ddp.Group; None: that of the job. The other
    arguments are those of ddp.Context, which is `context`.
    """

    def __init__(self, model, group=None, **options):
        self.group = group if group is not None else Group()
        self.context = Context(self.group, **options)
        seen, tensors = set(), nn.state.get_state_dict(model)
        values, self._tensors = {}, {}
        for name, tensor in tensors.items():
            if id(tensor) in seen:
                continue  # shared by two layers
            seen.add(id(tensor))
            values[name] = numpy.array(tensor.numpy(), order="C")
            if _is_trained(tensor):
                self._tensors[self.context.register(name, values[name])] = tensor
            else:
                self.group.broadcast(values[name], 0)
        if not self._tensors:
            raise ValueError("model: it has no tensors that are trained")
        self.context.commit()
        for name, value in values.items():
            tensors[name].assign(_tensor_of(value, tensors[name])).realize()

    def average(self):
        """After the backward pass, before the optimizer's step: every .grad becomes the mean over ranks. Collective."""
        missing = [parameter.name for parameter, tensor in self._tensors.items() if tensor.grad is None]
        if missing:  # before the others wait for this rank
            raise MissingGradientError(f"no gradient for {', '.join(missing[:8])}{' and more' if len(missing) > 8 else ''}: call average() "
                                       "after the backward pass of a loss that all tensors take part in")
        Tensor.realize(*(tensor.grad for tensor in self._tensors.values()))
        self.context.step_begin()
        for parameter, tensor in reversed(list(self._tensors.items())):
            self.context.put(parameter, numpy.ascontiguousarray(tensor.grad.numpy()).reshape(tensor.shape))
        self.context.finalize()
        for parameter, tensor in self._tensors.items():
            tensor.grad = _tensor_of(numpy.array(parameter.view()), tensor)

    def close(self):
        """Frees the context."""
        self.context.close()


def _is_trained(tensor):
    """The attribute's name depends on tinygrad's version."""
    return getattr(tensor, "is_param", getattr(tensor, "requires_grad", True)) is not False and tensor.is_floating_point()


def _tensor_of(array, like):
    """NumPy has no bfloat16: of such a tensor, the array is of float32."""
    return Tensor(array, device=like.device).cast(like.dtype)
