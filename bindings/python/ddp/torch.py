"""PyTorch's DistributedDataParallel over libddp: a script changes its import and its launcher.

    from ddp.torch import DistributedDataParallel

    model = DistributedDataParallel(model)      # ddprun -n 2 python3 train.py
    loss = criterion(model(inputs), targets)
    loss.backward()                             # every .grad is now the mean over ranks
    optimizer.step()

Arguments, attributes and methods are those of torch.nn.parallel.DistributedDataParallel. docs/python.md says what differs.
"""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import contextlib
import functools
import weakref

import torch
from torch import distributed, nn

from ._errors import InvalidStateError, UnsupportedError
from ._torch_devices import chosen_devices, moved
from ._torch_groups import group_of, process_group
from ._torch_hooks import GradBucket, allreduce_hook, fp16_compress_hook
from ._torch_join import NO_JOIN, Joined, forward_begins
from ._torch_optimizer import ShardedOptimizer
from ._torch_passes import in_backward_pass
from ._torch_precision import Precision
from ._torch_shards import owner_function, refuse as refuse_with_shards
from ._torch_steps import Options, Reducer, Steps, abandon
from .group import Group

__all__ = ["DistributedDataParallel", "GradBucket", "ShardedOptimizer", "group_of", "process_group"]

_MIB = 1 << 20


class DistributedDataParallel(nn.Module):
    """Averages a module's gradients over the ranks of a group during the backward pass.

    The arguments are those of torch.nn.parallel.DistributedDataParallel. process_group is a ddp.Group or a group of
    torch.distributed; the default is process_group(), the group of the job. bucket_cap_mb="auto" finds the cap in the first
    steps (docs/steps.md). On a GPU, steps are in the order of the current streams, and the host does not wait for it (docs/python.md has
    the exceptions). Arguments that only save time or memory of PyTorch's class (check_reduction,
    batched_grad_copy, lazy_bucket_allocation) change nothing. weighted_mean=True, on all ranks: each step has a weight, of set_weight.

    Each forward pass compares the module with what is registered. Tensors that were replaced or converted are registered again, on all
    ranks.

    shard: each rank gets the mean of a share of the gradients, for a ShardedOptimizer. True, an owner ("elements", "whole", "replicated"), or
    a function of a parameter's name and the parameter that returns an owner, or an owner and a cost (docs/shards.md).

    grad_norm: 1, 2 or math.inf: libddp counts this norm of the means while it reduces them, for clip_grad_norm_.

    votes: bits of each rank travel with each step: model.context.vote(ddp.Vote.CHECKPOINT) before the backward pass, and
    model.context.votes() after it.

    share_batch: the samples of a global batch, or the arguments of Context.share_batch, with weighted_mean=True: model.context.batch_share()
    has this rank's samples, of which a fast rank gets more. libddp takes the time of the backward pass. On a GPU give the time of each step to
    model.context.batch_time(seconds) (docs/steps.md).
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True,
                 process_group=None, bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False,
                 gradient_as_bucket_view=False, static_graph=False, delay_all_reduce_named_params=None,
                 param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None, skip_all_reduce_unused_params=False,
                 bucket_cap_mb_list=None, batched_grad_copy=False, forward_sync_buffers=None, lazy_bucket_allocation=False, *,
                 weighted_mean=False, shard=False, grad_norm=None, votes=False, share_batch=None):
        super().__init__()
        if device_mesh is not None:
            if process_group is not None:
                raise ValueError("device_mesh: give it or process_group, not both")
            if not hasattr(device_mesh, "get_group"):
                raise TypeError("device_mesh: a torch.distributed.device_mesh.DeviceMesh is expected, not "
                                f"{type(device_mesh).__name__}")
            if device_mesh.ndim != 1:
                raise ValueError(f"device_mesh: it has {device_mesh.ndim} dimensions, and 1 is expected. Give one of its parts")
            if device_mesh.get_coordinate() is None:
                raise ValueError(f"device_mesh: rank {distributed.get_rank()} is not in it. The ranks of a mesh make a DistributedDataParallel of it")
            self.device_mesh, process_group = device_mesh, device_mesh.get_group(0)
        self._torch_group = None
        if distributed.is_available() and isinstance(process_group, distributed.ProcessGroup):
            self._torch_group, process_group = process_group, group_of(process_group)
        if process_group is not None and not isinstance(process_group, Group):
            raise TypeError("process_group: a ddp.Group or a group of torch.distributed is expected, not "
                            f"{type(process_group).__name__}")
        autotune = bucket_cap_mb == "auto"
        if bucket_cap_mb is None or autotune:
            bucket_cap_mb = 25
        if isinstance(bucket_cap_mb, str) or bucket_cap_mb < 0:
            raise ValueError(f"bucket_cap_mb: it must not be below 0, or \"auto\", not {bucket_cap_mb!r}")
        if bucket_cap_mb_list and (autotune or min(bucket_cap_mb_list) <= 0):
            raise ValueError(f"bucket_cap_mb_list: caps above 0 are expected, and no bucket_cap_mb=\"auto\", not {bucket_cap_mb_list!r}")
        self.module, self.dim = module, dim
        if broadcast_buffers is None:
            broadcast_buffers = True
        self.forward_sync_buffers = broadcast_buffers if forward_sync_buffers is None else forward_sync_buffers
        self._init_sync_buffers = broadcast_buffers or forward_sync_buffers is not None
        self.gradient_as_bucket_view, self.static_graph = gradient_as_bucket_view, static_graph
        self.find_unused_parameters, self.skip_all_reduce_unused_params = find_unused_parameters, skip_all_reduce_unused_params
        self.bucket_bytes_cap_list = [max(1, int(cap * _MIB)) for cap in bucket_cap_mb_list or ()]
        self.bucket_bytes_cap = max(self.bucket_bytes_cap_list, default=int(bucket_cap_mb * _MIB))
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.device_ids, self.output_device = chosen_devices(
            {tensor.device for name, tensor in module.named_parameters() if name not in self.parameters_to_ignore}, device_ids, output_device)
        self.mixed_precision = mixed_precision
        self._precision = None if mixed_precision is None else Precision(mixed_precision, module, self.parameters_to_ignore)
        self._delayed = {name for name, _ in delay_all_reduce_named_params or ()}
        unknown = sorted(self._delayed.difference(name for name, _ in module.named_parameters()))
        if unknown:
            raise ValueError(f"delay_all_reduce_named_params: the module has no parameter {unknown[0]}")
        if param_to_hook_all_reduce is not None and not self._delayed:
            raise ValueError("param_to_hook_all_reduce: it belongs to delay_all_reduce_named_params, which names no parameter")
        self._shard, self._grad_norm, self._votes = shard, grad_norm, votes
        self._share_batch = (share_batch,) if isinstance(share_batch, int) else share_batch
        if grad_norm is not None and shard:
            raise ValueError("grad_norm: with shard, ShardedOptimizer.clip_grad_norm_ computes any norm, and needs no grad_norm")
        if owner_function(shard) is not None:
            refuse_with_shards(self)
        self._autotune, self._hook, self._optimizer, self._has_joined, self._weighted = autotune, None, None, False, weighted_mean
        self._start(process_group, init_sync)

    def _start(self, group, init_sync):
        abandon(self.module, group)
        if group is None:
            group = globals()["process_group"]()
        self.process_group, self._steps = group, None
        self._register(init_sync)
        self._join_config, self._divide_by_present = NO_JOIN, False

    def _register(self, init_sync=False, join=None):
        """Registers the module as it is now. Collective, as all that ends in a commit."""
        old = self._steps
        options = Options(
            ignored=self.parameters_to_ignore, delayed=self._delayed, find_unused=self.find_unused_parameters,
            skip_unused=self.skip_all_reduce_unused_params, static_graph=self.static_graph, as_views=self.gradient_as_bucket_view or bool(self._shard), shard=owner_function(self._shard),
            bucket_bytes=max(1, self.bucket_bytes_cap), bucket_caps=self.bucket_bytes_cap_list, autotune=self._autotune,
            send_buffers=self.forward_sync_buffers if join else self._init_sync_buffers, weighted=self._weighted, grad_norm=self._grad_norm, votes=self._votes, share_batch=self._share_batch,
            reduce_dtype=self._precision and self._precision.reduce_dtype, join=join or {})
        if old is not None:
            old.end()
        steps = Steps(self.module, self.process_group, options, init_sync, functools.partial(_in_no_sync, weakref.ref(self)))
        if self._hook is not None:
            steps.set_hook(*self._hook)
        if old is not None:
            steps.carry(old)
        self._steps = steps
        self.device, self.device_type = steps.tensors[0].device, steps.tensors[0].device.type

    def _check(self):
        """That the module is what was registered. It is registered again, where that can be."""
        sentence = self._steps.check()
        if sentence is None:
            return
        if self._steps.options.join:
            raise InvalidStateError(f"{sentence} now, and was registered as it was at the beginning of join(). Change it outside of join()")
        if self._steps.open:
            raise InvalidStateError(f"{sentence} now, and was registered as it was when this step began. Change it between steps")
        self._refuse_with_optimizer(sentence + " now, and the ShardedOptimizer has the state of the module as it was. Change it before the optimizer "
                                    "is made; or make a DistributedDataParallel and a ShardedOptimizer again, on all ranks, and load its state")
        self._register()

    @property
    def context(self):
        """The ddp.Context, for hooks, plans and statistics. Steps begin and end in the backward pass. A forward pass after a change of
        the module's tensors makes another one."""
        sentence, _ = self._steps.registered.change()
        if sentence is not None:
            raise InvalidStateError(f"{sentence} now, and the context knows what was there before. The next forward pass, model(x), registers "
                                    "the module again")
        return self._steps.context

    def __getstate__(self):
        state = self.__dict__.copy()
        for name in ("process_group", "_steps", "_join_config", "_torch_group", "device_mesh", "_precision"):
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._torch_group = None
        self._precision = self.mixed_precision and Precision(self.mixed_precision, self.module, self.parameters_to_ignore)
        self._start(None, False)

    def _set_static_graph(self):
        """Before the first step: as static_graph=True. Collective."""
        if self._steps.stepped:
            raise InvalidStateError("_set_static_graph should be called before training loop starts, and a step has begun already")
        if not self.static_graph:
            self._refuse_with_optimizer("_set_static_graph: it registers the module again. Make the DistributedDataParallel with static_graph=True")
            self.static_graph = True
            self._register()

    def _refuse_with_optimizer(self, sentence):
        """State of an optimizer for the pieces of the module would be lost."""
        if self._steps.shards is not None and self._steps.shards.used:
            raise InvalidStateError(sentence)

    def _refuse_shards(self, method):
        if self._shard:
            raise UnsupportedError(f"{method}: not with shard")

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, params_and_buffers_to_ignore):
        """Before a DistributedDataParallel of the module is made: these names stay each rank's own."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in params_and_buffers_to_ignore:
                tensor._ddp_ignored = True  # which PyTorch's other modules look for

    @staticmethod
    def _get_data_parallel_params(module, named_params=False):
        """The parameters that do not stay each rank's own."""
        for name, tensor in module.named_parameters():
            if not hasattr(tensor, "_ddp_ignored"):
                yield (name, tensor) if named_params else tensor

    # A STEP

    def forward(self, *inputs, **kwargs):
        """The module's forward pass."""
        if self.device_ids:
            inputs, kwargs = moved((inputs, kwargs), torch.device(self.device_type, self.device_ids[0]))
        if self._precision is not None:
            inputs, kwargs = self._precision.cast((inputs, kwargs))
        again = self._before_forward()
        output = self.module(*inputs, **kwargs)
        if not again:
            self._after_forward(output)
        return output

    def _before_forward(self):
        """Whether torch.utils.checkpoint repeats a forward pass in the backward pass that is under way."""
        steps, with_gradients = self._steps, torch.is_grad_enabled()
        if steps.in_pass and in_backward_pass():
            return True
        present = forward_begins(self)
        if self.will_sync_module_buffers():
            self._send_buffers(present.root)
        by_present = self._divide_by_present and present.count and not self._weighted
        steps.scale = self.process_group.world_size / present.count if by_present else 1
        if with_gradients:
            self.require_forward_param_sync = self.require_backward_grad_sync
            if self.require_backward_grad_sync and steps.options.join:
                self._check()
            steps.forward_begins()
            if self.require_backward_grad_sync and steps.options.join and not steps.open:
                steps.begin()  # in which ranks learn who still has inputs
        return False

    def _after_forward(self, output):
        if torch.is_grad_enabled():
            self._arm(output, self.require_backward_grad_sync)

    def _arm(self, output, synced):
        if synced and not self._steps.options.join:
            self._check()
        self._steps.forward_ends(output, synced)

    @property
    def reducer(self):
        """The part of PyTorch's reducer that other libraries call: prepare_for_backward(outputs) begins a step without forward()."""
        return Reducer(lambda outputs: self._arm(outputs, True))

    def will_sync_module_buffers(self):
        """Whether the next forward pass sends buffers."""
        return bool(self.require_forward_param_sync and self.forward_sync_buffers and not self._steps.options.join
                    and self._steps.registered.buffers())

    @property
    def broadcast_buffers(self):
        """The older name of forward_sync_buffers."""
        return self.forward_sync_buffers

    @broadcast_buffers.setter
    def broadcast_buffers(self, value):
        self.forward_sync_buffers = value

    def _send_buffers(self, root):
        """A rank's to all ranks. The context would do so at the beginning of a step; but a forward pass may have no backward pass, and
        then there must be no step that misses gradients."""
        if self.process_group.world_size == 1:
            return
        if self._steps.captured():
            raise UnsupportedError("the module has buffers, which rank 0 sends in each forward pass, and a graph that is being captured "
                                   "cannot hold that: make the DistributedDataParallel with broadcast_buffers=False")
        with torch.no_grad():
            for owner, tensor, sent in self._steps.send_buffers(root):
                on_cpu = tensor.device.type == "cpu"
                if on_cpu and torch.equal(tensor, sent):
                    continue  # autograd may need it as it is
                if not on_cpu or (isinstance(owner, nn.modules.batchnorm._NormBase) and owner.training):
                    tensor = tensor.data  # no change for autograd: it does not use running values, and on a device only a wait could tell
                tensor.copy_(sent)

    @contextlib.contextmanager
    def no_sync(self):
        """Forward passes in here have backward passes that add to .grad of this rank only."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def set_weight(self, weight):
        """With weighted_mean=True: what this rank's gradients count in the next synced backward pass, such as the tokens of its batch.
        .grad becomes the sum over ranks of weight * gradient, divided by the sum of the weights. Call it once for each such pass, on all
        ranks, before backward(); in join() before model(x)."""
        if not self._weighted:
            raise InvalidStateError("set_weight: this DistributedDataParallel averages without weights. Make it with weighted_mean=True, on "
                                    "all ranks")
        if not self.require_backward_grad_sync:
            raise InvalidStateError("set_weight: gradients of no_sync() are added up, and have no weight of their own. Call it outside of "
                                    "no_sync(), with the weight of all micro-batches together, and multiply each loss by its part of that")
        self._steps.set_weight(weight)

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        """As FullyShardedDataParallel.clip_grad_norm_: multiplies the gradients of all parameters that this DistributedDataParallel averages
        by min(1, max_norm / (norm + 1e-6)), and returns their norm before. It needs grad_norm=norm_type: then it reads no gradient but to
        multiply it. Once, after a synced backward pass and before any change of a .grad. Ranks have the same norm, and need not meet. A norm
        of NaN makes all gradients NaN, and an infinite one those zero that are finite."""
        if self._grad_norm is None:
            raise InvalidStateError("clip_grad_norm_: no norm is counted. "
                                    + ("Use ShardedOptimizer.clip_grad_norm_" if self._shard else
                                       f"Make the DistributedDataParallel with grad_norm={float(norm_type)}, or use torch.nn.utils.clip_grad_norm_"))
        return self._steps.norm.clip(float(max_norm), float(norm_type))

    # UNEVEN INPUTS

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """Ranks may have different numbers of inputs: one without more takes part with gradients of zero until all are here.
        Collective, at its beginning and at its end."""
        if not enable:
            yield
            return
        self._refuse_shards("join")
        self._has_joined = True
        self._register(join={"join": True, "divide_by_present": not divide_by_initial_world_size,
                             "broadcast_buffers": self.forward_sync_buffers, "stop_at_first_join": throw_on_early_termination})
        yield
        self._steps.join()
        self._register()

    def join_hook(self, divide_by_initial_world_size=True, **_):
        """For torch.distributed.algorithms.Join."""
        self._refuse_shards("join_hook")
        self._has_joined = True
        return Joined(self, divide_by_initial_world_size)

    @property
    def join_device(self):
        """For torch.distributed.algorithms.Join."""
        return self.device

    @property
    def join_process_group(self):
        """For torch.distributed.algorithms.Join, which communicates through it."""
        return self._torch_group or distributed.group.WORLD

    # HOOKS

    def register_comm_hook(self, state, hook):
        """hook(state, bucket) returns a torch.futures.Future of a tensor, or the tensor: what each rank's bucket becomes. bucket is a
        GradBucket; a hook that communicates uses process_group, or torch.distributed where the program has initialised it."""
        if not callable(hook):
            raise TypeError(f"hook: a function is expected, not {type(hook).__name__}")
        if self._precision is not None:
            raise InvalidStateError("register_comm_hook: with mixed_precision buckets are reduced in its reduce_dtype, and no other hook is "
                                    "there")
        if self._hook is not None:
            raise InvalidStateError("register_comm_hook was called before: a module has one hook")
        self._hook, self._hook_name = (state, hook), getattr(hook, "__qualname__", repr(hook))
        self._steps.set_hook(state, hook)

    def _register_builtin_comm_hook(self, comm_hook_type):
        """One of torch.distributed.BuiltinCommHookType."""
        name = getattr(comm_hook_type, "name", str(comm_hook_type))
        hooks = {"ALLREDUCE": allreduce_hook, "FP16_COMPRESS": fp16_compress_hook}
        if name not in hooks:
            raise ValueError(f"comm_hook_type: {name} is none of {', '.join(hooks)}")
        self.register_comm_hook(self.process_group, hooks[name])
        self._hook_name = str(comm_hook_type)

    def _register_fused_optim(self, optim, *args, optim_params=None, **kwargs):
        """An optimizer, made here, that steps at the end of each synced backward pass."""
        self._refuse_shards("_register_fused_optim")
        if self._optimizer is not None:
            raise InvalidStateError("_register_fused_optim was called before: a module has one such optimizer")
        self._optimizer = optim(list(self._steps.tensors if optim_params is None else optim_params), *args, **kwargs)
        self._steps.after_mean = self._optimizer.step

    def _get_ddp_logging_data(self):
        """The facts that PyTorch's class logs, as far as there is such a thing here. Times are in nanoseconds."""
        tensors, context, stats = self._steps.tensors, self._steps.context, self._steps.context.stats()
        data = {
            "world_size": self.process_group.world_size, "rank": self.process_group.rank, "backend_name": self.process_group.backend,
            "module_name": type(self.module).__name__, "device_ids": ", ".join(map(str, self.device_ids or ())),
            "output_device": -1 if self.output_device is None else self.output_device, "broadcast_buffers": int(self.broadcast_buffers),
            "bucket_cap_bytes": self.bucket_bytes_cap, "find_unused_parameters": int(self.find_unused_parameters),
            "gradient_as_bucket_view": int(self.gradient_as_bucket_view), "static_graph": int(self.static_graph),
            "num_parameter_tensors": len(tensors), "total_parameter_size_bytes": sum(t.numel() * t.element_size() for t in tensors),
            "dtypes": ", ".join(sorted({str(t.dtype).rpartition(".")[2] for t in tensors})),
            "bucket_sizes": ", ".join(map(str, context.bucket_sizes())), "has_rebuilt_buckets": int(stats.rebuilds > 0),
            "num_buckets_reduced": stats.bucket_count - stats.unsent_buckets, "unused_parameter_size": stats.unused_bytes,
            "has_sync_bn": any(isinstance(part, nn.SyncBatchNorm) for part in self.module.modules()),
            "join_uneven_inputs": self._has_joined, "iteration": stats.steps, "can_set_static_graph": False}
        for kind in ("", "avg_"):
            steps = max(1, stats.synced_steps)
            for name, last, total in (("backward_compute_time", stats.backward_ns, stats.total_backward_ns),
                                      ("backward_comm_time", stats.comm_ns, stats.total_comm_ns),
                                      ("backward_compute_comm_overlap_time", stats.overlap_ns, stats.total_overlap_ns)):
                data[kind + name] = total // steps if kind else last
        if self._hook is not None:
            data["comm_hook"] = self._hook_name
        return data

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate):
        """PyTorch's class measures one step in so many. This one measures each step."""
        if sample_rate < 1:
            raise ValueError(f"sample_rate: it must be 1 or more, not {sample_rate!r}")


def _in_no_sync(reference):
    parallel = reference()
    return parallel is not None and not parallel.require_backward_grad_sync


if hasattr(nn.parallel.DistributedDataParallel, "register"):  # an abstract base class, as one of PyTorch's Joinables
    nn.parallel.DistributedDataParallel.register(DistributedDataParallel)  # isinstance takes ours for it
