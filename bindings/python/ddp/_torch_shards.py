"""The shard of a rank in ddp.torch: the pieces of a module's tensors that it updates, and when their values go to the other ranks."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import contextlib
import itertools
import math
import weakref

import torch

from . import _owners
from ._errors import InvalidStateError, UnsupportedError
from ._torch_module import from_order, grad_dtype_of, in_order

_numbers = itertools.count()
_increment_version = getattr(torch.autograd.graph, "increment_version", None)  # PyTorch 2.1


def owner_function(shard):
    """The argument shard of DistributedDataParallel as a function of a name and a tensor, which gives an owner and its cost; None: no
    shards."""
    if shard is False or shard is None:
        return None
    return _owners.owner_function("shard", "elements" if shard is True else shard)


def refuse(parallel):
    """Arguments of a DistributedDataParallel that do not go with shard."""
    if parallel.mixed_precision is not None:
        raise UnsupportedError("shard: not with mixed_precision: use torch.autocast, or parameters in bfloat16 with a grad_dtype of float32")
    for name, tensor in parallel.module.named_parameters():
        if tensor.device.type != "cpu" and tensor.requires_grad and name not in parallel.parameters_to_ignore:
            raise UnsupportedError(f"shard: {name} is on {tensor.device}, and shards are for modules on the CPU. Leave out shard, and use "
                                   "torch.optim's class")


class Piece:
    """Elements of a tensor of the module: `value`, a tensor over them for an optimizer. A whole one has the tensor's shape; part of one
    is flat, in the order of memory."""

    def __init__(self, index, piece, tensor, order):
        self.index, self.first, self.count, self.replicated = index, piece.first, piece.count, piece.replicated
        self.whole, self.order = piece.count == tensor.numel(), order
        gradient = torch.from_dlpack(piece.gradient)
        if self.whole:
            self.value = tensor.detach()  # changes count for autograd as those of the tensor
            self.gradient = from_order(gradient.view(in_order(tensor, order).shape), order)
        else:
            self.value, self.gradient = self.part_of(tensor.detach()), gradient
        if gradient.dtype is not tensor.dtype:
            self.value.grad_dtype = gradient.dtype

    def part_of(self, tensor):
        """These elements of a tensor that lies in memory as that of the module."""
        return in_order(tensor, self.order).reshape(-1)[self.first:self.first + self.count]


class Shards:
    """Between the backward pass, the optimizers and the next forward pass of a module."""

    def __init__(self, context, module, names, tensors, orders, owners):
        """After commit."""
        self.number = next(_numbers)
        self._context, self._module, self.names, self.tensors, self.owners = context, weakref.ref(module), names, tensors, owners
        self.pieces = [Piece(int(piece.param), piece, tensors[piece.param], orders[piece.param]) for piece in context.pieces()]
        owned = {piece.index for piece in self.pieces if piece.whole}
        self._changed = [tensor for index, tensor in enumerate(tensors) if index not in owned]  # by other ranks
        self._one_of_each_bucket = list({context.param_bucket(index): index for index in range(len(tensors))}.values())
        with torch.inference_mode():  # so that nothing changes them in place
            self._nowhere = [torch.full((), math.nan, dtype=grad_dtype_of(tensor)).expand(tensor.shape) for tensor in tensors]
        self._optimizers = weakref.WeakSet()
        self._left = None  # optimizers that have not stepped since the last synced backward pass; None: there was none
        self._absent = frozenset()
        self._hooks = []  # of the module, while values are on their way

    # OPTIMIZERS

    def add(self, optimizer, indices):
        """One that updates these tensors."""
        for other in list(self._optimizers):
            both = indices & other._indices
            if both:
                raise ValueError(f"params: {self.names[min(both)]} has a ShardedOptimizer already")
        if self._left:
            raise InvalidStateError("a backward pass has ended, and its optimizers have not stepped. Make optimizers before it, or after the step")
        self._optimizers.add(optimizer)

    @property
    def used(self):
        """Whether an optimizer has state for these pieces."""
        return bool(len(self._optimizers))

    @property
    def waiting(self):
        """Whether a synced backward pass has ended, and an optimizer has not stepped since."""
        return bool(self._left)

    def begin_update(self, optimizer):
        """Whether there are gradients to update with: not before the first synced backward pass."""
        if self._left is None:
            return False
        if optimizer not in self._left:
            raise InvalidStateError("step() was called twice after one backward pass, or after a backward pass in no_sync(): the gradients that it "
                                    "needs are gone with the values that were sent. Each synced backward pass has one step of each optimizer")
        return True

    def has_gradients(self, optimizer):
        """Whether it has not stepped since the last synced backward pass."""
        return self._left is not None and optimizer in self._left

    def end_update(self, optimizer, wait):
        """The last of the optimizers sends the values. wait: until those of the other ranks are here."""
        self._left.discard(optimizer)
        if self._left:
            return
        self._context.publish()
        for tensor in self.tensors:
            tensor.grad = None
        module = self._module()
        self._hooks = [module.register_forward_pre_hook(self._wait_first)]
        if hasattr(module, "register_state_dict_pre_hook"):
            self._hooks.append(module.register_state_dict_pre_hook(self._wait_first))
        else:  # PyTorch 1.13
            wait = True
        if wait:
            self.wait()

    def fail(self, error):
        """An optimizer has changed some values and not all."""
        with contextlib.suppress(Exception):
            self._context.abort(f"an optimizer's step() failed in the middle of its update: {type(error).__name__}: {error}")

    # VALUES

    def _wait_first(self, *_):
        self.wait()

    def wait(self):
        """Until all values are those of the last update."""
        if not self._hooks:
            return
        for index in self._one_of_each_bucket:
            self._context.wait_value(index)
        if _increment_version is not None:
            _increment_version(self._changed)  # a graph that needs the old values says so
        self.forget()

    def forget(self):
        """The context ends."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # GRADIENTS

    def nowhere(self, index):
        """For .grad of a tensor, whose mean is in pieces on all ranks: nobody takes it for a gradient."""
        return self._nowhere[index]

    def backward_ended(self, absent):
        """Gradients are there, but for those of the indices `absent`."""
        self._left = set(self._optimizers)
        absent = frozenset(absent)
        for piece in self.pieces:
            if piece.value.grad is None or absent or self._absent:
                piece.value.grad = None if piece.index in absent else piece.gradient
        self._absent = absent

    def before_forward(self):
        """A forward pass with gradients has an optimizer, which has stepped after the last synced backward pass."""
        if not self.used:
            raise InvalidStateError("the DistributedDataParallel was made with shard, and has no optimizer that publishes the values of a shard. Make "
                                    "it before the first forward pass, on all ranks: ddp.torch.ShardedOptimizer(model.parameters(), "
                                    "torch.optim.AdamW, lr=...)")
        if self._left:
            names = " and ".join(sorted({type(optimizer.optim).__name__ for optimizer in self._left}))
            raise InvalidStateError(f"a backward pass has ended, and this rank's ShardedOptimizer ({names}) has not stepped since, so that no rank "
                                    "gets the new values of its shard. Call step() after each synced backward pass, on all ranks; use no_sync() "
                                    "to add gradients up, and torch.no_grad() to evaluate")

    def refuse_optimizer(self, optimizer):
        """One that is not made for shards would take what is in .grad."""
        if getattr(optimizer, "_shards", None) is None:
            raise InvalidStateError(f"{type(optimizer).__name__} would update parameters of a DistributedDataParallel with shard=True, which has the mean "
                                    "of this rank's pieces only. Use ddp.torch.ShardedOptimizer(params, "
                                    f"{type(optimizer).__name__}, ...)")
