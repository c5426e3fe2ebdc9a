"""tinygrad: the gradients of a model, averaged between the backward pass and the optimizer.

    from ddp.tinygrad import DataParallel

    parallel = DataParallel(model)       # ddprun -n 2 python3 train.py; every rank starts from rank 0's weights
    optimizer = nn.optim.SGD(nn.state.get_parameters(model))
    loss.backward()
    parallel.average()                   # now every .grad is the mean over ranks
    optimizer.step()

Where all trained tensors are on one GPU of tinygrad's CUDA, their gradients stay on it. Otherwise they go through CPU memory.
"""
# mypy: ignore-errors
# tinygrad may not be there.
from __future__ import annotations

import weakref

import numpy
from tinygrad import Tensor, nn
from tinygrad.tensor import all_tensors
from tinygrad.uop.ops import Ops

from ._errors import InvalidStateError, MissingGradientError
from ._tinygrad_ways import tensor_of, way_for
from .context import Context
from .group import Group
from .numpy import refuse_values

__all__ = ["DataParallel"]


class DataParallel:
    """Averages the gradients of a model's tensors over the ranks of a group.

    model: what nn.state.get_state_dict takes. Each rank's tensors become rank 0's. group: a ddp.Group; None: that of the job. The other
    arguments are those of ddp.Context, which is `context`.
    """

    def __init__(self, model, group=None, **options):
        refuse_values(options)
        self.group = group if group is not None else Group()
        self.context = Context(self.group, **options)
        self._model = model
        seen, tensors = set(), nn.state.get_state_dict(model)
        values, self._tensors = {}, {}
        trained = [tensor for tensor in tensors.values() if _is_trained(tensor)]
        if not trained:
            raise ValueError("model: it has no tensors that are trained")
        self._way = way_for(trained)
        for name, tensor in tensors.items():
            if id(tensor) in seen:
                continue  # shared by two layers
            seen.add(id(tensor))
            values[name] = numpy.array(tensor.numpy(), order="C")
            if _is_trained(tensor):
                self._tensors[self._way.register(self.context, name, tensor, values[name])] = tensor
            else:
                self.group.broadcast(values[name], 0)
        self._left = {}  # by parameter, the tensor that average() has put in place of its gradient, and its uop
        self._way.commit(self.context, self.group, [values[parameter.name] for parameter in self._tensors])
        for name, value in values.items():
            tensors[name].assign(tensor_of(value, tensors[name])).realize()
        self._known = {name: (tensor, _facts(tensor)) for name, tensor in tensors.items()}

    def average(self):
        """After the backward pass, before the optimizer's step: every .grad becomes the mean over ranks. Collective.

        A gradient that the program has realized is overwritten where it is, because a TinyJit writes to the same memory when it runs
        again. In place of other gradients there are new tensors.
        """
        self._check_model()
        self._check_gradients()  # before the others wait for this rank
        grads = [tensor.grad for tensor in self._tensors.values()]
        overwritten = _with_own_memory(grads)
        Tensor.realize(*grads)
        for parameter, tensor in self._tensors.items():
            self._check_written(parameter, tensor)
        self._way.give(self.context, dict(zip(self._tensors, grads)))
        self.context.finalize()
        means = self._way.means({parameter: tensor.grad if id(tensor.grad) in overwritten else tensor
                                 for parameter, tensor in self._tensors.items()})
        for parameter, tensor in self._tensors.items():
            if id(tensor.grad) in overwritten:
                tensor.grad.assign(means[parameter])
            else:
                tensor.grad = means[parameter]
        Tensor.realize(*(tensor.grad for tensor in self._tensors.values()))
        self._left = {parameter: (weakref.ref(tensor.grad), tensor.grad.uop) for parameter, tensor in self._tensors.items()
                      if id(tensor.grad) not in overwritten}

    def close(self):
        """Frees the context."""
        self.context.close()

    def _check_model(self):
        """The model is the one that was registered."""
        found = nn.state.get_state_dict(self._model)
        for name, (tensor, facts) in self._known.items():
            now = found.get(name)
            if now is None:
                change = "is no longer in the model"
            elif now is not tensor:
                change = "is another tensor than the one that was registered"
            elif _facts(now) != facts:
                change = f"is {_facts(now)}, and was {facts} when it was registered"
            else:
                continue
            raise InvalidStateError(f"{name}: it {change}. {_AGAIN}")
        for name in found.keys() - self._known.keys():
            raise InvalidStateError(f"{name}: it was not in the model when DataParallel was made. {_AGAIN}")

    def _check_gradients(self):
        """There is one for each tensor, of its shape and type."""
        missing = [parameter.name for parameter, tensor in self._tensors.items() if tensor.grad is None]
        if missing:
            raise MissingGradientError(f"no gradient for {', '.join(missing[:8])}{' and more' if len(missing) > 8 else ''}: call average() "
                                       "after the backward pass of a loss that all tensors take part in, and freeze tensors that are not "
                                       "trained before DataParallel is made")
        for parameter, tensor in self._tensors.items():
            if (tensor.grad.shape, tensor.grad.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"{parameter.name}: its gradient is {_layout(tensor.grad)}, the tensor {_layout(tensor)}")

    def _check_written(self, parameter, tensor):
        """The gradient is not the mean that average() has left there. It would be averaged as if it were this step's."""
        left, uop = self._left.get(parameter, (lambda: None, None))
        if tensor.grad is not left() or tensor.grad.uop is not uop:
            return
        if numpy.array_equal(tensor.grad.numpy(), self._way.means({parameter: tensor})[parameter].numpy(), equal_nan=True):
            raise InvalidStateError(
                f"{parameter.name}: its .grad is still the mean that average() left there. Call average() once after each backward pass. A "
                "function under TinyJit writes to the same memory each time: let it realize the gradients, as in "
                "loss.realize(*[p.grad for p in nn.state.get_parameters(model)]), and let no other tensor be computed from them")


_AGAIN = "Make a new DataParallel, on every rank, after a change of the model"


def _is_trained(tensor):
    """The attribute's name depends on tinygrad's version."""
    return getattr(tensor, "is_param", getattr(tensor, "requires_grad", True)) is not False and tensor.is_floating_point()


def _layout(tensor):
    return f"{tensor.dtype.name}{list(tensor.shape)}"


def _facts(tensor):
    """The facts of a tensor that must stay as they were registered."""
    return f"{_layout(tensor)}, {'trained' if _is_trained(tensor) else 'not trained'}"


def _with_own_memory(grads):
    """The ids of those gradients that the program has realized in memory from which no other tensor is computed: what is written there
    changes nothing else. A gradient may be the very memory of its factor, as of w in (w * x).sum()."""
    realized = [grad for grad in grads if _is_realized(grad.uop)]
    if not realized:
        return set()
    known = {id(grad) for grad in grads}
    used = set()
    for reference in list(all_tensors):
        other = reference()
        if other is not None and id(other) not in known:
            used.update(other.uop.toposort())
    return {id(grad) for grad in realized if grad.uop.base not in used}


def _is_realized(uop):
    """It is all of one buffer's elements, in any order."""
    while uop.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP):
        uop = uop.src[0]
    return uop.op is Ops.BUFFER
