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
from ._torch_devices import on_device_of, shown
from ._torch_module import from_order, grad_dtype_of, in_order

_numbers = itertools.count()
_plainly = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction  # PyTorch 2.0
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


class Piece:
    """Elements of a tensor of the module: `value`, a tensor over them for an optimizer. A whole one has the tensor's shape; part of one
    is flat, in the order of memory."""

    def __init__(self, index, piece, tensor, order):
        self.index, self.first, self.count, self.replicated = index, piece.first, piece.count, piece.replicated
        self.whole, self.order = piece.count == tensor.numel(), order
        with on_device_of(tensor):
            gradient = shown(piece.gradient, tensor.device)
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


class Nowhere(torch.Tensor):
    """For .grad of a tensor whose mean is in pieces on all ranks: NaN without memory behind it. GradScaler comes to the pieces through it."""

    @classmethod
    def __torch_function__(cls, function, _, args=(), kwargs=None):
        with _plainly():
            if getattr(function, "__name__", "") == "_amp_foreach_non_finite_check_and_unscale_":
                return _unscale(*args, **(kwargs or {}))
            return function(*args, **(kwargs or {}))


def _unscale(gradients, found_inf, inv_scale):
    """PyTorch's function of that name."""
    plain, sharded = [], {}
    for gradient in gradients:
        if isinstance(gradient, Nowhere):
            sharded.setdefault(gradient.shards(), set()).add(gradient.index)
        else:
            plain.append(gradient)
    if plain:
        torch._amp_foreach_non_finite_check_and_unscale_(plain, found_inf, inv_scale)
    for shards, indices in sorted(sharded.items(), key=lambda entry: entry[0].number):
        if shards.unscale(indices, inv_scale):
            found_inf.fill_(1)


class Shards:
    """Between the backward pass, the optimizers and the next forward pass of a module."""

    def __init__(self, steps, module, owners):
        """After commit."""
        self.number = next(_numbers)
        context, names, tensors, orders = steps.context, steps.names, steps.tensors, steps._orders
        self._context, self._module, self.names, self.tensors, self.owners = context, weakref.ref(module), names, tensors, owners
        self._group, self._streams = steps.group, steps._streams
        self.pieces = [Piece(int(piece.param), piece, tensors[piece.param], orders[piece.param]) for piece in context.pieces()]
        owned = {piece.index for piece in self.pieces if piece.whole}
        self._changed = [tensor for index, tensor in enumerate(tensors) if index not in owned]  # by other ranks
        self._one_of_each_bucket = list({context.param_bucket(index): index for index in range(len(tensors))}.values())
        self._nowhere = self._make_nowhere()
        self._optimizers = weakref.WeakSet()
        self._left = None  # optimizers that have not stepped since the last synced backward pass; None: there was none
        self._stepped_on = []  # the streams of those that have
        self._unscaled = weakref.WeakKeyDictionary()  # optimizers that GradScaler has asked since then: whether a gradient is not finite
        self._absent = frozenset()
        self._on_its_way, self._hooks = False, []  # values, and what waits for them before the module reads them

    def _make_nowhere(self):
        """By index."""
        made, nowhere = {}, []
        with torch.inference_mode():  # so that nothing changes them in place
            for index, tensor in enumerate(self.tensors):
                kind = grad_dtype_of(tensor), tensor.device
                if kind not in made:
                    made[kind] = torch.full((), math.nan, dtype=kind[0], device=kind[1])
                nowhere.append(made[kind].expand(tensor.shape).as_subclass(Nowhere))
                nowhere[-1].shards, nowhere[-1].index = weakref.ref(self), index
        return nowhere

    # OPTIMIZERS

    def add(self, optimizer, indices):
        """One that updates these tensors."""
        for other in list(self._optimizers):
            both = indices & other._indices
            if both:
                raise ValueError(f"params: {self.names[min(both)]} has a ShardedOptimizer already")
        if self._pending:
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

    @property
    def _pending(self):
        """Optimizers that must step before the next forward pass: not those whose step GradScaler leaves out."""
        return {optimizer for optimizer in self._left or () if not self._unscaled.get(optimizer)}

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
        if self._pending:
            self._stepped_on.append(self._streams.current())
            return
        self._publish()
        if wait or not self._hooks:
            self.wait()

    def _publish(self):
        """In the order of the current streams, and of those on which optimizers have stepped."""
        for streams in self._stepped_on:
            self._streams.follow(streams)
        self._stepped_on, self._left = [], set()
        self._streams.enter()
        self._context.publish()
        for tensor in self.tensors:
            tensor.grad = None
        self._on_its_way = True
        module = self._module()
        if hasattr(module, "register_state_dict_pre_hook"):  # PyTorch 2.0
            self._hooks = [module.register_forward_pre_hook(self._wait_first), module.register_state_dict_pre_hook(self._wait_first)]

    def fail(self, error):
        """An optimizer has changed some values and not all."""
        with contextlib.suppress(Exception):
            self._context.abort(f"an optimizer's step() failed in the middle of its update: {type(error).__name__}: {error}")

    # VALUES

    def _wait_first(self, *_):
        self.wait()

    def wait(self):
        """Until all values are those of the last update. On devices the current streams wait."""
        if not self._on_its_way:
            return
        for index in self._one_of_each_bucket:
            self._streams.wait_for_value(index)
        if _increment_version is not None:
            _increment_version(self._changed)  # a graph that needs the old values says so
        self.forget()

    def forget(self):
        """The context ends."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._on_its_way = [], False

    # GRADIENTS

    def nowhere(self, index):
        """For .grad of a tensor, whose mean is in pieces on all ranks: nobody takes it for a gradient."""
        return self._nowhere[index]

    def backward_ended(self, absent):
        """Gradients are there, but for those of the indices `absent`."""
        self._left = set(self._optimizers)
        self._unscaled.clear()
        absent = frozenset(absent)
        for piece in self.pieces:
            if piece.value.grad is None or absent or self._absent:
                piece.value.grad = None if piece.index in absent else piece.gradient
        self._absent = absent

    def unscale(self, indices, inverse):
        """Multiplies the gradients of the optimizers that update these tensors, once. Whether one of them is infinite or NaN on any rank.
        Collective."""
        found = False
        for optimizer in sorted(self._optimizers, key=lambda each: min(each._indices)):
            if indices.isdisjoint(optimizer._indices):
                continue
            if self._left is None or self._left != set(self._optimizers):
                raise InvalidStateError("GradScaler: an optimizer of this DistributedDataParallel has stepped since the backward pass, and the values are "
                                        "sent when all have. Call scaler.unscale_(optimizer) for each of them before the first scaler.step()")
            if optimizer not in self._unscaled:
                self._unscaled[optimizer] = self._unscale(optimizer, inverse)
            found = found or self._unscaled[optimizer]
        return found

    def _unscale(self, optimizer, inverse):
        by_kind, found = {}, {}
        for gradient in optimizer._gradients():
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        with torch.no_grad():
            for (device, _), gradients in by_kind.items():
                found.setdefault(device, torch.zeros(1, device=device))
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, found[device], inverse.to(device))
            told = torch.tensor([max((each.item() for each in found.values()), default=0.0)])
        self._group.allreduce(told, "max")
        return bool(told)

    def before_forward(self):
        """A forward pass with gradients has an optimizer, which has stepped after the last synced backward pass."""
        if not self.used:
            raise InvalidStateError("the DistributedDataParallel was made with shard, and has no optimizer that publishes the values of a shard. Make "
                                    "it before the first forward pass, on all ranks: ddp.torch.ShardedOptimizer(model.parameters(), "
                                    "torch.optim.AdamW, lr=...)")
        if self._pending:
            names = " and ".join(sorted({type(optimizer.optim).__name__ for optimizer in self._pending}))
            raise InvalidStateError(f"a backward pass has ended, and this rank's ShardedOptimizer ({names}) has not stepped since, so that no rank "
                                    "gets the new values of its shard. Call step() after each synced backward pass, on all ranks; use no_sync() "
                                    "to add gradients up, and torch.no_grad() to evaluate")
        if self._left:
            self._publish()  # what has not changed: libddp expects it after each synced step
            self.wait()

    def refuse_optimizer(self, optimizer):
        """One that is not made for shards would take what is in .grad."""
        if getattr(optimizer, "_shards", None) is None:
            raise InvalidStateError(f"{type(optimizer).__name__} would update parameters of a DistributedDataParallel with shard=True, which has the mean "
                                    "of this rank's pieces only. Use ddp.torch.ShardedOptimizer(params, "
                                    f"{type(optimizer).__name__}, ...)")
