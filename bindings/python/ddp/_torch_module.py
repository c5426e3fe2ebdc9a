"""The view of ddp.torch on a module: its tensors, how they lie in memory, and whether they are still the registered ones."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import types
from collections.abc import Mapping

import torch
from torch import nn

from ._errors import UnsupportedError

_KNOWN_TYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.complex64,
                torch.complex128}
_NO_OUTPUT = (nn.Module, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, str, bytes, int, float,
              complex, type(None))
_OBJECTS = 10_000  # that a forward pass may return, beyond which nobody looks for tensors


class Registered:
    """The parameters of a module as they were registered."""

    def __init__(self, module, ignored):
        self._parts, self._known, self._ignored = [], [], ignored
        for prefix, part in module.named_modules():
            self._parts.append((prefix, part, list(part._modules.values()), len(part._parameters)))
            for key, tensor in part._parameters.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and name not in ignored:
                    self._known.append((part._parameters, key, name, tensor, tensor.data_ptr(), tensor.dtype, tensor.requires_grad,
                                        grad_dtype_of(tensor)))

    def change(self):
        """(a sentence about the first parameter that is no longer what was registered, or None; those that have been frozen or
        thawed since). It runs in each forward pass, and takes some hundred ns for each parameter."""
        turned = None
        for parameters, key, name, tensor, address, dtype, trained, of_grad in self._known:
            if parameters.get(key) is not tensor:
                return f"{name} is {'gone' if parameters.get(key) is None else 'another tensor'}", ()
            if tensor.data_ptr() != address or tensor.dtype is not dtype:
                return (f"{name} is {tensor.dtype} in other memory" if tensor.dtype is not dtype else f"{name} lies in other memory"), ()
            if grad_dtype_of(tensor) is not of_grad:
                return f"{name} has gradients of {grad_dtype_of(tensor)}", ()
            if tensor.requires_grad is not trained:
                turned = turned or []
                turned.append((name, tensor))
        for prefix, part, parts, count in self._parts:
            if len(part._parameters) != count or list(part._modules.values()) != parts:
                return f"{prefix or 'the module'} has other parts or parameters", ()
        return None, turned or ()

    def buffers(self):
        """[(the module that owns it, its name there, its full name, tensor)] of each buffer that is there now, once."""
        found = {}
        for prefix, part, _, _ in self._parts:
            for key, tensor in part._buffers.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and name not in self._ignored:
                    found.setdefault(id(tensor), (part, key, name, tensor))
        return list(found.values())


if hasattr(torch.Tensor, "grad_dtype"):
    def grad_dtype_of(tensor):
        """The type that autograd gives the gradients of a parameter. Any is allowed where the program has set None: then it is expected to
        be the parameter's."""
        return tensor.grad_dtype or tensor.dtype
else:  # before PyTorch 2.10
    def grad_dtype_of(tensor):
        """The type of the gradients of a parameter."""
        return tensor.dtype


def has_parts(tensor):
    """Whether it is made of other tensors, as a DTensor of PyTorch is. Its memory is then none, or not all of it."""
    return getattr(type(tensor), "__torch_dispatch__", None) is not getattr(torch.Tensor, "__torch_dispatch__", None)


def sparse_of(module):
    """The ids of the tensors whose gradients are sparse."""
    return {id(part.weight) for part in module.modules() if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse}


def order_of(tensor):
    """The dimensions from the outermost in memory to the innermost, as in torch.channels_last; None where they lie in their own
    order, or where elements leave gaps."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride(dimension))
    return tuple(order) if tensor.permute(order).is_contiguous() else None


def in_order(tensor, order):
    """The same memory as a tensor whose dimensions lie in their own order."""
    return tensor if order is None else tensor.permute(order)


def from_order(tensor, order):
    """The inverse of in_order."""
    return tensor if order is None else tensor.permute([order.index(dimension) for dimension in range(len(order))])


def as_bytes(name, tensor):
    """The memory of a contiguous tensor in a type that libddp knows, for what is only copied."""
    if tensor.dtype in _KNOWN_TYPES:
        return tensor
    try:
        return tensor.reshape(-1).view(torch.uint8)
    except RuntimeError as error:
        raise UnsupportedError(f"{name}: its type, {tensor.dtype}, has no bytes to send: {error}. "
                               "Add its name to _ddp_params_and_buffers_to_ignore of the module") from error


def send(group, root, named):
    """Sends the (name, tensor)s of a rank to all ranks, as bytes of one message for each type, through memory of the CPU. On the others:
    (tensor, what was sent)."""
    by_type = {}
    for name, tensor in named:
        by_type.setdefault(tensor.dtype, []).append((tensor, as_bytes(name, tensor.detach().cpu().contiguous()).reshape(-1)))
    received = []
    for dtype, parts in by_type.items():
        flat = torch.cat([memory for _, memory in parts])
        group.broadcast(flat, root)
        if group.rank != root:
            received += [(tensor, sent.view(dtype).view(tensor.shape))
                         for (tensor, _), sent in zip(parts, flat.split([memory.numel() for _, memory in parts]))]
    return received


def tensors_in(output):
    """The tensors in what a forward pass returned: in containers, and in attributes of other objects."""
    found, todo, seen = [], [output], set()
    while todo and len(seen) < _OBJECTS:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
            continue
        if isinstance(value, _NO_OUTPUT) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            todo.extend(reversed(list(value.values())))
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo.extend(reversed(list(value)))
        if hasattr(value, "__dict__"):  # a dataclass, or a class of the program
            todo.extend(reversed(list(vars(value).values())))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            todo.extend(getattr(value, name, None) for name in ((slots,) if isinstance(slots, str) else slots))
    return found


def parameters_behind(tensors):
    """The ids of the tensors that a backward pass from there reaches."""
    found, seen = set(), set()
    todo = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    found.update(id(tensor) for tensor in tensors if tensor.grad_fn is None)  # a parameter itself
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        todo.extend(following for following, _ in node.next_functions if following is not None)
    return found
