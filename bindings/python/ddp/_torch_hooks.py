"""The view of ddp.torch's hooks on a bucket, and the optimizers that step in the backward pass."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import sys

import torch

from ._errors import UnsupportedError
from ._torch_devices import given, keep_for_current_stream, shown
from ._torch_module import from_order
from .work import name_of


_HAS_HOOKS = hasattr(torch.Tensor, "_post_accumulate_grad_hooks")  # from PyTorch 2.1 on


class GradBucket:
    """The argument of a hook of register_comm_hook: torch.distributed.GradBucket."""

    def __init__(self, bucket, device, tensors, orders):
        self._bucket, self._device, self._tensors, self._orders = bucket, device, tensors, orders
        self._result = self._own = shown(bucket.buffer, device)

    def index(self):
        """0, 1, ... in the order in which buckets are reduced."""
        return self._bucket.index

    def buffer(self):
        """All gradients as one flat tensor, with gaps of zeros: the bucket's own, or that of set_buffer."""
        return self._result

    def gradients(self):
        """Each parameter's gradient, a view of buffer()."""
        flat, start, size = self._result.reshape(-1), self._own.data_ptr(), self._own.element_size()
        views = []
        for gradient in self._bucket.gradients:
            own = shown(gradient.array, self._device)
            first = (own.data_ptr() - start) // size if own.numel() else 0
            view = flat[first:first + own.numel()].view(own.shape)
            views.append(from_order(view, self._orders[int(gradient.parameter)]))
        return views

    def parameters(self):
        """The parameters, in the order of gradients()."""
        return [self._tensors[int(gradient.parameter)] for gradient in self._bucket.gradients]

    def is_last(self):
        """Whether it is the step's last bucket."""
        return self._bucket.is_last

    def set_buffer(self, tensor):
        """Replaces the buffer, by a contiguous tensor with as many elements, perhaps of another type."""
        if tensor.numel() != self._own.numel():
            raise ValueError(f"set_buffer: the tensor has {tensor.numel()} elements, the bucket {self._own.numel()}")
        if not tensor.is_contiguous():
            raise ValueError("set_buffer: the tensor is not contiguous")
        self._result = tensor

    def _finish(self, hook, result):
        future = isinstance(result, torch._C.Future)
        result = result.wait() if future else result
        if isinstance(result, (list, tuple)) and len(result) == 1:
            result, = result
        # One element would become all of them, and a complex one would lose a part.
        if not isinstance(result, torch.Tensor) or result.numel() != self._own.numel() or result.is_complex() > self._own.is_complex():
            kind = f"a tensor of {result.numel()} elements of type {_name_of(result.dtype)}" if isinstance(result, torch.Tensor) else \
                "None" if result is None else f"an object of type {type(result).__name__}"
            raise TypeError(f"the hook {name_of(hook)} returned {'a Future of ' if future else ''}{kind} for bucket {self.index()}; return "
                            f"a tensor of its {self._own.numel()} elements of type {_name_of(self._own.dtype)}, such as "
                            "bucket.buffer(), or a torch.futures.Future of one")
        if result.data_ptr() != self._own.data_ptr():
            self._own.copy_(result.reshape(-1))
            keep_for_current_stream(result)


def _name_of(dtype):
    """float32 for torch.float32."""
    return str(dtype).rsplit(".", 1)[-1]


def allreduce_hook(group, bucket):
    """The mean over ranks, as without a hook."""
    group.allreduce(given(bucket.buffer()), "avg")
    return bucket.buffer()


def fp16_compress_hook(group, bucket):
    """The mean over ranks, sent as float16."""
    half = bucket.buffer().to(torch.float16).div_(group.world_size)
    group.allreduce(given(half), "sum")
    return bucket.buffer().copy_(half)


def take_optimizers(names, tensors):
    """torch.distributed.optim._apply_optimizer_in_backward has optimizers step in hooks of its own, before the mean is there. Removes
    these hooks. Returns the indices of tensors with such optimizers, which are to step after the mean, or None where nobody has
    called that function since."""
    module = sys.modules.get("torch.distributed.optim.apply_optimizer_in_backward")
    if module is None:
        return None
    handles = getattr(module, "param_to_optim_hook_handle_map", None)
    if handles is not None and not len(handles):  # pylint: disable=use-implicit-booleaness-not-len
        return None
    taken = {index for index, tensor in enumerate(tensors) if getattr(tensor, "_in_backward_optimizers", None)}
    if taken and handles is None:
        raise UnsupportedError(f"{names[min(taken)]} has an optimizer that steps in the backward pass, before its gradient is the mean over "
                               "ranks. With this version of PyTorch, use an optimizer's step() after the backward pass")
    for index in taken:
        for handle in handles.get(tensors[index], ()):
            handle.remove()
    return taken


class Waiting:
    """A hook of register_post_accumulate_grad_hook. Autograd calls it with this rank's own gradient, and it waits for the mean."""

    def __init__(self, hook):
        self.hook, self.steps = hook, None  # steps: a weak reference to the Steps that will call it

    def __call__(self, tensor):
        if self.steps() is None:
            self.hook(tensor)


def take_hooks(tensors, steps):
    """Has hooks of register_post_accumulate_grad_hook wait. The indices of tensors that have some."""
    found = set()
    for index, tensor in enumerate(tensors if _HAS_HOOKS else ()):
        hooks = tensor._post_accumulate_grad_hooks
        if hooks:
            found.add(index)
            for key, hook in hooks.items():
                if not isinstance(hook, Waiting):
                    hooks[key] = Waiting(hook)
                hooks[key].steps = steps
    return found


def has_run_hooks(tensor):
    """Whether a hook of register_post_accumulate_grad_hook has not waited."""
    hooks = tensor._post_accumulate_grad_hooks if _HAS_HOOKS else None
    return bool(hooks) and not all(isinstance(hook, Waiting) for hook in hooks.values())


def step_in_backward(tensor):
    """Steps its optimizers of _apply_optimizer_in_backward, which also forget the gradient, and calls its hooks that wait."""
    for optimizer in getattr(tensor, "_in_backward_optimizers", ()):
        optimizer.step()
        tensor.grad = None
    hooks = tensor._post_accumulate_grad_hooks if _HAS_HOOKS else None
    with torch.no_grad():  # as autograd calls them
        for hook in list(hooks.values()) if hooks else ():
            (hook.hook if isinstance(hook, Waiting) else hook)(tensor)
