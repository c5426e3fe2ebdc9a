"""mixed_precision of ddp.torch: forward and backward passes in another type than that of the parameters."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import inspect
import sys
import weakref

import torch
from torch import nn

from ._errors import UnsupportedError
from ._torch_devices import mapped

_ALWAYS = "always_call" in inspect.signature(nn.Module.register_forward_hook).parameters


class Precision:
    """While a part of the module runs, and the module as a whole, its parameters are copies in param_dtype that autograd knows as such, so
    that gradients come back to the parameters in their own type and are accumulated in it. Parts run alone where torch.utils.checkpoint
    repeats them in a backward pass."""

    def __init__(self, config, module, ignored):
        self.dtype, self.reduce_dtype, buffer_dtype = (_dtype(config, name) for name in ("param_dtype", "reduce_dtype", "buffer_dtype"))
        self.reduce_dtype = self.reduce_dtype or self.dtype
        if getattr(config, "keep_low_precision_grads", False):
            raise UnsupportedError("mixed_precision: keep_low_precision_grads=True: gradients have the type of their parameters")
        if not _ALWAYS:
            raise UnsupportedError(f"mixed_precision needs PyTorch 2.1 or newer, and this is {torch.__version__}: use torch.autocast")
        compiled = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", ())
        if any(isinstance(part, compiled) or getattr(part, "_compiled_call_impl", None) for part in module.modules()):
            raise UnsupportedError("mixed_precision: the module is compiled, and PyTorch does not compile what changes its parameters: use "
                                   "torch.autocast")
        self._casts_inputs = getattr(config, "cast_forward_inputs", True)
        self._ignored = {id(tensor) for name, tensor in module.named_parameters() if name in ignored}
        self._running, self._depth, self._changed = None, 0, []
        for name, buffer in module.named_buffers():
            if buffer_dtype is not None and buffer.is_floating_point() and name not in ignored:
                buffer.data = buffer.data.to(buffer_dtype)
        if self.dtype is not None:
            for part in module.modules():
                part.register_forward_pre_hook(_Hook(self, Precision._enter))
                part.register_forward_hook(_Hook(self, Precision._leave), always_call=True)

    def cast(self, inputs):
        """Tensors of floating-point types, also in containers, in param_dtype."""
        if self.dtype is None or not self._casts_inputs:
            return inputs
        return mapped(lambda tensor: tensor.to(self.dtype) if tensor.is_floating_point() else tensor, inputs)

    def _enter(self, part):
        if self._running is None:
            self._running = part
            self._swap(part)
        self._depth += part is self._running

    def _leave(self, part):
        if part is not self._running:
            return
        self._depth -= 1
        if not self._depth:
            self._running = None
            for owner, key, tensor in self._changed:
                _put(owner, key, tensor)
            self._changed = []

    def _swap(self, whole):
        copies = {}  # of a tied parameter there is one
        for part in whole.modules():
            for key, tensor in part._parameters.items():
                if tensor is None or not tensor.is_floating_point() or tensor.dtype is self.dtype or id(tensor) in self._ignored:
                    continue
                if id(tensor) not in copies:
                    copies[id(tensor)] = tensor.to(self.dtype)
                self._changed.append((part, key, tensor))
                _put(part, key, copies[id(tensor)])


def _put(part, key, tensor):
    part._parameters[key] = tensor
    if isinstance(part, nn.RNNBase):  # which has a list of them, too
        part._flat_weights[part._flat_weights_names.index(key)] = tensor


class _Hook:
    """A hook of a part of a module, as long as its Precision is there."""

    def __init__(self, precision=None, method=None):
        self._precision, self._method = weakref.ref(precision) if precision else lambda: None, method

    def __call__(self, part, *_):
        precision = self._precision()
        if precision is not None:
            self._method(precision, part)

    def __reduce__(self):
        return _Hook, ()  # a copy of the module is wrapped anew


def _dtype(config, name):
    """A type of PyTorch's _MixedPrecision, or None."""
    if not hasattr(config, name):
        raise TypeError("mixed_precision: torch.nn.parallel.distributed._MixedPrecision or an object with its attributes is expected, not "
                        f"{type(config).__name__}, which has no {name}")
    dtype = getattr(config, name)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"mixed_precision: {name}: a floating-point type is expected, not {dtype!r}")
    return dtype
