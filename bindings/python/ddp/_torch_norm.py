"""The norm of a module's gradients, which libddp counts while it reduces them."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import functools
import weakref

import torch

from . import _ddp
from ._errors import InvalidStateError, UnsupportedError


class GradientNorm:
    """The norm of all tensors that are registered in a context. It is made before commit."""

    def __init__(self, context, p, names, tensors):
        for name, tensor in zip(names, tensors):
            if tensor.device.type != "cpu":
                raise UnsupportedError(f"grad_norm: {name} is on {tensor.device}, and libddp counts norms of gradients on the CPU. Leave out grad_norm, "
                                       "and use torch.nn.utils.clip_grad_norm_")
        self._context, self._names, self._p = context, names, p
        self._number = _ddp.ddp_track_grad_norm(context._handle, p, list(range(len(tensors))))
        self._counted = None  # by index, a tensor, its .grad and the changes of that so far
        self._scale = 1

    def forget(self):
        """Gradients are, or will be, others than those of the last synced backward pass."""
        self._counted = None

    def backward_ended(self, tensors, scale):
        """tensors: those with a mean, by index. scale: what libddp's means were multiplied by."""
        self._counted = {index: (tensor, weakref.ref(tensor.grad), tensor.grad._version) for index, tensor in tensors.items() if tensor.grad is not None}
        self._scale = scale

    def clip(self, max_norm, norm_type):
        """DistributedDataParallel.clip_grad_norm_."""
        if norm_type != self._p:
            raise ValueError(f"norm_type: the DistributedDataParallel counts the {self._p}-norm, not the {norm_type}-norm. Make it with grad_norm={norm_type}")
        if self._counted is None:
            raise InvalidStateError("clip_grad_norm_: there are no means of gradients that were not clipped yet: call it once, between a synced backward pass "
                                    "and the optimizer's step(), and without optimizers and hooks that get gradients in the backward pass")
        grads = []
        for index, (tensor, grad, version) in self._counted.items():
            if tensor.grad is None or tensor.grad is not grad() or tensor.grad._version != version:
                raise InvalidStateError(f"clip_grad_norm_: {self._names[index]}: its .grad is no longer the mean that the backward pass has left there, and "
                                        "that the norm counts. Call clip_grad_norm_ before a change; after one, such as GradScaler.unscale_, use "
                                        "torch.nn.utils.clip_grad_norm_")
            grads.append(tensor.grad)
        self._counted = None
        total = _ddp.ddp_grad_norm(self._context._handle, self._number) * self._scale
        factor = max_norm / (total + 1e-6)
        with torch.no_grad():
            for grad in grads if not factor >= 1 else ():  # also if it is NaN, as with PyTorch
                grad.mul_(factor)
        kinds = {grad.dtype for grad in grads} or {torch.get_default_dtype()}
        return torch.tensor(total, dtype=torch.empty((), dtype=functools.reduce(torch.promote_types, kinds)).real.dtype)
