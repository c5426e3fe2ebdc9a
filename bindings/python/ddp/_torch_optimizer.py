"""ddp.torch.ShardedOptimizer: an optimizer of PyTorch's over this rank's share of a module."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import ctypes
import io
import math

import torch
from torch import nn

from ._errors import InvalidStateError, UnsupportedError
from ._torch_groups import group_of
from ._torch_module import in_order
from ._torch_steps import sharded_of
from .group import Group


class ShardedOptimizer(torch.optim.Optimizer):
    """In place of torch.distributed.optim.ZeroRedundancyOptimizer: each rank has the state of its share of the parameters only, and updates
    that share.

        model = DistributedDataParallel(module, shard=True)
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

    The arguments are those of PyTorch's class; params may also be a module. Collective, as are step(), consolidate_state_dict() and
    clip_grad_norm_(). parameters_as_bucket_view changes nothing. overlap_with_ddp=True: step() returns while values are on their way, and the
    next forward pass or state_dict() of the module waits for them; read parameters after wait_values() only.

    `optim` is the optimizer of this rank's pieces.
    """

    def __init__(self, params, optimizer_class, process_group=None, parameters_as_bucket_view=False, overlap_with_ddp=False, **defaults):
        self.optim = None
        if isinstance(params, nn.Module):
            params = params.parameters()
        if isinstance(params, torch.Tensor):
            raise TypeError("params: a module, or tensors or groups of them in a list are expected, not a tensor")
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
            raise TypeError(f"optimizer_class: a class of torch.optim is expected, such as torch.optim.AdamW, not {optimizer_class!r}")
        super().__init__(list(params), defaults)
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        self._steps = sharded_of(tensors)
        if self._steps is None:
            raise ValueError("params: none of them is in a DistributedDataParallel of ddp.torch that was made with shard=True. Make it first, of "
                             "the module with these parameters")
        self._refuse_group(process_group)
        self._shards, self._overlaps = self._steps.shards, overlap_with_ddp
        self._refuse_strangers(tensors)
        _refuse_mixing(optimizer_class, defaults, any(self._shards.owners[index] == "elements" for index in self._indices))
        self._pieces = {piece.index: piece for piece in self._shards.pieces}
        self.optim = optimizer_class([self._own(group) for group in self.param_groups], **defaults)
        self.defaults = self.optim.defaults
        _copy_options(self.optim.param_groups, self.param_groups)
        self._steps._compare([(f"params: group {i}", optimizer_class.__qualname__, self._described(group)) for i, group in enumerate(self.param_groups)],
                             "it has another optimizer, other parameters or options on rank {} than on rank 0")
        self._shards.add(self, self._indices)
        self._consolidated = None

    @property
    def _indices(self):
        known = self._steps._indices
        return {known[id(tensor)] for group in self.param_groups for tensor in group["params"] if id(tensor) in known}

    def _refuse_group(self, process_group):
        if process_group is None:
            return
        group = process_group if isinstance(process_group, Group) else group_of(process_group)
        if group is not self._steps.group:
            raise ValueError("process_group: it is another group than that of the DistributedDataParallel. Leave it out")

    def _refuse_strangers(self, tensors):
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad and id(tensor) not in self._steps._indices:
                raise ValueError(f"params: number {index}, of shape {list(tensor.shape)}, is not among the parameters that the "
                                 "DistributedDataParallel averages. Give it an optimizer of its own")

    def _described(self, group):
        names, known = self._steps.names, self._steps._indices
        options = sorted((key, repr(value.tolist() if isinstance(value, torch.Tensor) else value)) for key, value in group.items() if key not in ("params", "param_names"))
        return [names[known[id(tensor)]] for tensor in group["params"] if id(tensor) in known], options

    def _own(self, group):
        """The group of this rank's pieces."""
        known = self._steps._indices
        pieces = [self._pieces.get(known.get(id(tensor))) for tensor in group["params"]]
        return {**{key: value for key, value in group.items() if key != "param_names"}, "params": [piece.value for piece in pieces if piece]}

    def add_param_group(self, param_group):
        """The parameters are among those that the DistributedDataParallel averages, and in no other group. On all ranks."""
        if self.optim is None:  # the constructor
            super().add_param_group(param_group)
            return
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        self._refuse_strangers([each[1] if isinstance(each, tuple) else each for each in params])
        super().add_param_group({**param_group, "params": params})
        self.optim.add_param_group(self._own(self.param_groups[-1]))
        _copy_options(self.optim.param_groups, self.param_groups)

    # A STEP

    def step(self, closure=None, **kwargs):
        """Updates this rank's pieces, and sends their values to the other ranks. After each synced backward pass, on all ranks. Before the
        first one it does nothing."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._shards.begin_update(self):
            return loss
        self._consolidated = None
        try:
            _copy_options(self.param_groups, self.optim.param_groups)
            self.optim.step(**kwargs)
            _copy_options(self.optim.param_groups, self.param_groups)
        except BaseException as error:
            self._shards.fail(error)
            raise
        self._shards.end_update(self, not self._overlaps)
        return loss

    def zero_grad(self, set_to_none=True):
        """Sets .grad to None, whatever set_to_none says: after a synced backward pass the means are not there, but in pieces on all ranks."""
        for group in self.param_groups:
            for tensor in group["params"]:
                tensor.grad = None

    def wait_values(self):
        """With overlap_with_ddp=True: waits until this rank has all values of the last step."""
        self._shards.wait()

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """As torch.nn.utils.clip_grad_norm_, of all parameters of this optimizer: after the backward pass, before step(). Collective. Returns the
        norm before. On a GPU the host waits for it, to meet the other ranks."""
        if not self._shards.has_gradients(self):
            raise InvalidStateError("clip_grad_norm_: there are no gradients: call it between a synced backward pass and step()")
        norm_type, once = float(norm_type), self._steps.group.rank == 0
        gradients, terms = self._gradients(), {}
        with torch.no_grad():
            for each in self._gradients(replicated=once):
                terms.setdefault(each.device, []).append(torch.linalg.vector_norm(each, norm_type, dtype=_wide(each)).double())
            norms = torch.cat([torch.stack(each).cpu() for each in terms.values()] or [torch.zeros(1, dtype=torch.float64)])
            if norm_type == torch.inf:
                total = norms.max().reshape(1)
                self._steps.group.allreduce(total, "max")
            else:
                total = norms.pow(norm_type).sum().reshape(1)
                self._steps.group.allreduce(total, "sum")
                total = total.pow(1 / norm_type)
            total = total.item()
            if error_if_nonfinite and not math.isfinite(total):
                raise RuntimeError(f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped")
            factor = max_norm / (total + 1e-6)
            if gradients and not factor >= 1:  # also if it is NaN, as with PyTorch
                torch._foreach_mul_(gradients, factor)
        tensor = self._steps.tensors[0]
        return torch.full((), total, dtype=tensor.real.dtype, device=tensor.device)

    def _gradients(self, replicated=True):
        """The means in this rank's pieces. replicated: also those that all ranks have."""
        return [piece.value.grad for index, piece in self._pieces.items()
                if index in self._indices and piece.value.grad is not None and (replicated or not piece.replicated)]

    # STATE

    def consolidate_state_dict(self, to=0):
        """Gathers the state of all ranks on rank `to`, where state_dict() then gives it in the form of the optimizer that is not sharded, on the
        CPU. Collective. Until the next step()."""
        group = self._steps.group
        if not 0 <= to < group.world_size:
            raise ValueError(f"to: a rank below {group.world_size} is expected, not {to!r}")
        whole = {}
        mine = [(index, piece.first, piece.count, piece.whole, _on_cpu(self.optim.state[piece.value])) for index, piece in self._pieces.items()
                if piece.value in self.optim.state and (not piece.replicated or group.rank == 0)]
        for rank in range(group.world_size):
            for entry in mine if rank == to == group.rank else _sent(group, rank, to, mine) if rank != to else ():
                self._join(whole, *entry)
        self._consolidated = {self._steps.tensors[index]: whole[index] for index in sorted(whole)} if group.rank == to else None

    def _join(self, whole, index, first, count, is_whole, state):
        """The state of a piece into that of its parameter."""
        tensor, order = self._steps.tensors[index], self._steps._orders[index]
        known = whole.setdefault(index, {})
        for key, value in state.items():
            if is_whole or not isinstance(value, torch.Tensor) or value.dim() == 0:
                known[key] = value
            elif value.shape == (count,):
                if key not in known:
                    known[key] = torch.zeros_like(tensor, dtype=value.dtype, device="cpu", requires_grad=False)
                in_order(known[key], order).view(-1)[first:first + count].copy_(value)
            else:
                raise UnsupportedError(f"consolidate_state_dict: {key} of {self._steps.names[index]} has the shape {list(value.shape)} for {count} "
                                       "elements, and belongs neither to each nor to all. Make the DistributedDataParallel with shard=\"whole\"")

    def state_dict(self):
        """On the rank of consolidate_state_dict, after it: as that of the optimizer that is not sharded, which loads it, too."""
        if self._consolidated is None:
            raise InvalidStateError(f"state_dict: the state is in pieces on all ranks. Call consolidate_state_dict(to={self._steps.group.rank}) on all "
                                    "ranks before, after the last step()")
        self.state.update(self._consolidated)
        try:
            return super().state_dict()
        finally:
            self.state.clear()

    def load_state_dict(self, state_dict):
        """A whole state, of consolidate_state_dict in any world or of the optimizer that is not sharded. On all ranks."""
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        tensors = [tensor for group in self.param_groups for tensor in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        known, state, groups, place = self._steps._indices, {}, [], 0
        numbered = {id(tensor): number for tensor, number in zip(tensors, numbers)}
        for group in self.param_groups:
            places = []
            for tensor in group["params"]:
                piece = self._pieces.get(known.get(id(tensor)))
                if piece is None:
                    continue
                found = state_dict["state"].get(numbered[id(tensor)])
                if found is not None:
                    state[place] = {key: _part_of(value, piece, tensor) for key, value in found.items()}
                places.append(place)
                place += 1
            groups.append({**{key: value for key, value in group.items() if key != "param_names"}, "params": places})
        self.optim.load_state_dict({"state": state, "param_groups": groups})
        self._consolidated = None

    def __repr__(self):
        return f"ShardedOptimizer of {self.optim!r}"


def _copy_options(groups, to):
    for source, target in zip(groups, to):
        for key, value in source.items():
            if key not in ("params", "param_names"):
                target[key] = value


def _on_cpu(state):
    """A copy."""
    return {key: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _wide(gradient):
    return torch.float32 if gradient.dtype in (torch.float16, torch.bfloat16) else None


def _part_of(value, piece, tensor):
    """The part of a piece in a state of the whole tensor."""
    if piece.whole or not isinstance(value, torch.Tensor) or value.shape != tensor.shape:
        return value
    return piece.part_of(torch.empty_like(tensor, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)).clone()


def _sent(group, rank, to, mine):
    """The entries of another rank, on rank `to`. Collective."""
    data = io.BytesIO()
    if group.rank == rank:
        torch.save(mine, data)
    size = torch.tensor([data.getbuffer().nbytes], dtype=torch.int64)
    group.broadcast(size, rank)
    sent = torch.empty(int(size), dtype=torch.uint8)
    if group.rank == rank:
        sent.copy_(torch.frombuffer(data.getbuffer(), dtype=torch.uint8))
    group.broadcast(sent, rank)
    return torch.load(io.BytesIO(ctypes.string_at(sent.data_ptr(), len(sent))), map_location="cpu", weights_only=True) if group.rank == to else ()


def _refuse_mixing(optimizer_class, defaults, cut):
    """An optimizer whose result for a parameter depends on others, or, where parameters are cut, for an element on others, is not the same
    one on pieces. A few steps on small tensors show that."""
    options = {**defaults, **{key: value for key, value in (("lr", 0.01), ("capturable", False)) if key in defaults}}
    start, gradients = torch.linspace(-1, 1, 96, dtype=torch.float64), torch.sin(torch.arange(288, dtype=torch.float64) ** 2).view(3, 96)

    def moved(shapes, apart):
        parts, at = [], 0
        for shape in shapes:
            count = torch.Size(shape).numel()
            parts.append((start[at:at + count].clone().view(shape), slice(at, at + count)))
            at += count
        optimizers = [optimizer_class([part], **options) for part, _ in parts] if apart else [optimizer_class([part for part, _ in parts], **options)]
        for each in gradients:
            for part, where in parts:
                part.grad = each[where].view(part.shape).clone()
            for optimizer in optimizers:
                optimizer.step()
        return torch.cat([part.reshape(-1) for part, _ in parts]) - start

    name = optimizer_class.__name__
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            whole = moved([(6, 8), (8, 6)], False)
        except Exception as error:  # what it needs, it says itself where it is made for the module
            raise UnsupportedError(f"{name} cannot be sharded: it does not step with a gradient alone, or not on the CPU: {error}") from error
        if not _alike(whole, moved([(6, 8), (8, 6)], True)):
            raise UnsupportedError(f"{name} cannot be sharded: its result for a parameter depends on other parameters, which this rank has not")
        try:
            same = not cut or _alike(whole, moved([(16,), (40,), (40,)], False))
        except Exception as error:
            raise UnsupportedError(f"{name} needs whole parameters: {error}. Make the DistributedDataParallel with shard=\"whole\"") from error
        if not same:
            raise UnsupportedError(f"{name} needs whole parameters: its result for an element depends on others. Make the DistributedDataParallel "
                                   "with shard=\"whole\"")


def _alike(one, other):
    return bool((one - other).abs().max() <= 1e-6 * one.abs().max())
