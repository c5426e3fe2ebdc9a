"""The steps of a DistributedDataParallel: its module in a context, and the hooks in the autograd graph that begin and end steps."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import weakref
import zlib

import torch

from ._errors import InvalidStateError, MismatchError, UnsupportedError
from ._torch_buffers import Buffers
from ._torch_devices import Streams, given, on_device_of, on_stream_of, shown
from ._torch_hooks import GradBucket, has_run_hooks, step_in_backward, take_hooks, take_optimizers
from ._torch_module import (Registered, as_bytes, from_order, grad_dtype_of, has_parts, in_order, order_of, parameters_behind, sparse_of,
                            tensors_in)
from ._torch_norm import GradientNorm
from ._torch_passes import at_end, before_error, in_backward_pass
from ._torch_shards import Shards
from .context import Context

_MIB = 1 << 20
# libddp's rows are right. PyTorch of 2026 warns where nobody says whether it is to check them; PyTorch 1.13 does not know the word.
_UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}

#: What the last forward pass with gradients was.
NONE, SYNCED, LOCAL = range(3)

_alive = weakref.WeakSet()  # all Steps of this process


@dataclasses.dataclass
class Options:
    """Arguments of DistributedDataParallel, and those of join()."""

    ignored: set  # names
    delayed: set  # names of parameters that are reduced after the others
    find_unused: bool
    skip_unused: bool  # buckets that no rank uses are not sent
    static_graph: bool
    as_views: bool
    bucket_bytes: int
    bucket_caps: list  # of each bucket, instead of bucket_bytes
    autotune: bool
    send_buffers: bool  # at commit, or in join()
    weighted: bool  # the mean, by set_weight
    shard: object  # a function of a parameter's name and the parameter: its owner and cost; None: no shards
    grad_norm: float  # the p of the norm that libddp counts; None: no norm
    votes: bool  # ranks have votes
    share_batch: tuple  # arguments of Context.share_batch; None: ranks share no batch
    reduce_dtype: torch.dtype  # of buckets on their way; None: their own
    join: dict = dataclasses.field(default_factory=dict)  # empty: outside


class Steps:
    """A module that is registered in a context. A change of the module's tensors, or of the options, needs another one."""

    _settled = True  # no stream of a device uses memory of the context

    def __init__(self, module, group, options, init_sync, no_sync):
        """Collective. no_sync() says whether the program is in no_sync now."""
        self.options, self.group, self._no_sync = options, group, no_sync
        self.open = False  # a step has begun
        self.registered = Registered(module, options.ignored)
        trained = {name: tensor for name, tensor in module.named_parameters()
                   if tensor.requires_grad and name not in options.ignored}
        if not trained:
            raise InvalidStateError("module: it has no parameter that requires a gradient, so there is nothing to average")
        self.names, self.tensors = list(trained), list(trained.values())
        self._indices = {id(tensor): index for index, tensor in enumerate(self.tensors)}
        sparse = sparse_of(module)
        self._sparse = {index for index, tensor in enumerate(self.tensors) if id(tensor) in sparse}
        cap = 0 if options.autotune else options.bucket_bytes
        find_unused = options.find_unused and not options.static_graph
        self.context = Context(group, bucket_cap=cap, first_bucket_cap=min(_MIB, cap), bucket_caps=options.bucket_caps,
                               initial_broadcast=init_sync, find_unused=find_unused,
                               skip_unused_buckets=find_unused and options.skip_unused, static_graph=options.static_graph,
                               autotune=options.autotune, shard=options.shard is not None, votes=options.votes, reduction="weighted_mean" if options.weighted else "mean", **{"broadcast_buffers": False, **options.join})
        try:
            self._streams = Streams(self.context, [*trained.items(), *((name, tensor) for name, tensor in (
                *module.named_parameters(), *module.named_buffers()) if name not in options.ignored)])
            self._streams.enter()
            self._register(module)
        except BaseException:
            self.context.close()
            raise
        if options.reduce_dtype is not None:
            self._compress(options.reduce_dtype)
        self._hook_names = {self.context.hook_name, "user"}
        self._settled = not self._streams
        self._complete = self._streams.ready if self._streams else self.context.grad_ready
        self._views, self._addresses, self._generation = [], [], -1
        self._sent = self._sender = None  # names, types, shapes and devices of the buffers that are sent, and what sends them

        self._mode = NONE
        self._fresh = False  # a synced forward pass has been made, and no step has ended since
        self._blind = False  # ... and nobody knows the tensors that it returned
        self.in_pass = False  # _end_of_pass will run
        self._reached, self._waiting, self._next_output = set(), set(), 0  # outputs, by this backward pass, and by none
        self.stepped = False  # a step has begun once
        self._begun = 0  # steps of this context
        self._marked = False  # it knows which parameters the forward pass did not use
        self._unused = ()    # by the last forward pass
        self._frozen = set()
        self._uses = [1] * len(self.tensors)  # gradients of a parameter in a step: more than 1 only in a static graph
        self._learning = options.static_graph  # ... whose first step shows that
        self._came = []  # meanwhile
        self._of_others = []  # in a static graph: what only other ranks use
        self._left, self._missing = [], set()  # in this step
        self._accumulated = set()  # got gradients in no_sync
        self._weight, self._strays, self._weighed = None, 0, 0  # of the next step; gradients of no_sync so far, and at set_weight
        self.scale = 1  # of the mean
        self.after_mean = None  # a function that ends each step
        self._stepping = set()  # have an optimizer that steps in the backward pass
        self._hooked = set()  # have a hook that wants the mean there
        self._listeners, self._nodes = [], []
        self.shards = None if options.shard is None else Shards(self, module, self._owners)
        self._find_views()
        self._listen()
        _alive.add(self)

    # REGISTRATION

    def _register(self, module):
        self._owners = []  # of shards
        self._copies = []  # (a tensor with gaps, the copy that the context knows instead)
        self._orders = [None if index in self._sparse else order_of(tensor) for index, tensor in enumerate(self.tensors)]
        named = list(zip(self.names, self._orders))  # with all that commit sends
        for index, (name, tensor) in enumerate(zip(self.names, self.tensors)):
            if index in self._sparse and tensor.device.type != "cpu":
                raise UnsupportedError(f"{name} is on {tensor.device}, and belongs to an embedding with sparse=True: sparse gradients are "
                                       "averaged on the CPU only. Make the embedding with sparse=False, or leave it on the CPU")
            with on_device_of(tensor):
                self.context.register(name, given(self._memory(name, tensor, self._orders[index])), sparse=index in self._sparse,
                                      delayed=name in self.options.delayed, grad_dtype=grad_dtype_of(tensor))
            if self.options.shard is not None:
                owner, cost = self.options.shard(name, tensor)
                self.context.set_owner(index, owner, cost=cost)
                self._owners.append(owner)
        self._buffers = []  # (owner, key, name, order, the copy that the context sends in join)
        for name, tensor in module.named_parameters():
            if not tensor.requires_grad and name not in self.options.ignored and not self.options.join:
                named.append((name, order_of(tensor)))
                memory = self._memory(name, tensor, named[-1][1])
                self._register_buffer(name, as_bytes(name, memory))  # becomes rank 0's, as the others
        for owner, key, name, tensor in self.registered.buffers() if self.options.send_buffers else ():
            order = order_of(tensor)
            named.append((name, order))
            if self.options.join:
                memory = as_bytes(name, in_order(tensor.data, order).contiguous()).clone()
            else:
                memory = as_bytes(name, self._memory(name, tensor, order))
            self._buffers.append((owner, key, name, order, memory))
            self._register_buffer(name, memory)
        self.norm = None if self.options.grad_norm is None else GradientNorm(self.context, self.options.grad_norm, self.names, self.tensors)
        if self.options.share_batch is not None:
            self.context.share_batch(*self.options.share_batch)
        self.context.commit()
        for tensor, copied in self._copies:
            tensor.copy_(copied)
        if not self.options.join:
            self._compare(named,
                          "its elements lie in memory in another order on rank {} than on rank 0. Give it one memory format on all ranks: "
                          ".contiguous(), or .to(memory_format=...)")

    def _compress(self, dtype):
        """Buckets travel in another type. So their gradients do in a type with fewer digits only."""
        others = {grad_dtype_of(tensor) for tensor in self.tensors} - {dtype}
        if not others:
            return
        narrows = dtype in (torch.float16, torch.bfloat16) and others <= {torch.float32, torch.float64}
        if not narrows or self._sparse:
            what = f"gradients of {' and '.join(sorted(map(str, others)))}" if not narrows else "sparse gradients"
            raise UnsupportedError(f"mixed_precision: reduce_dtype={dtype}: {what} cannot be reduced in it. It may be their own type, or "
                                   "float16 or bfloat16 for dense gradients of float32 or float64")
        self.context.compress_hook(dtype)

    def _register_buffer(self, name, memory):
        with on_device_of(memory):
            self.context.register_buffer(name, given(memory))

    def _memory(self, name, tensor, order):
        """The memory of a tensor with its dimensions in their own order, or a copy of it where elements leave gaps."""
        if tensor.layout != torch.strided:
            raise UnsupportedError(f"{name} is {tensor.layout}: this DistributedDataParallel takes dense tensors")
        if has_parts(tensor):
            raise UnsupportedError(f"{name} is a {type(tensor).__name__}: this DistributedDataParallel takes plain tensors, and has no tensor "
                                   "parallelism. PyTorch's class has")
        tensor = in_order(tensor.data, order)  # autograd does not count what is written there, nor what libddp writes
        if tensor.is_contiguous():
            return tensor
        if self.options.shard is not None and name in self.names:
            raise UnsupportedError(f"{name} has gaps between its elements, or they share memory: shard needs a tensor that is .contiguous()")
        copied = tensor.contiguous()
        try:
            tensor.copy_(copied)
        except RuntimeError as error:  # its elements share memory
            raise UnsupportedError(f"{name}: {error}") from error
        self._copies.append((tensor, copied))
        return copied

    def _compare(self, named, difference):
        """Raises an error where ranks have different tuples, each of a name and what belongs to it. Collective."""
        if self.group.world_size == 1:
            return
        mine = torch.tensor([zlib.crc32(repr(entry).encode()) for entry in named], dtype=torch.int64)
        all_ranks = torch.empty(self.group.world_size * len(named), dtype=torch.int64)
        self.group.allgather(all_ranks, mine)
        for rank, theirs in enumerate(all_ranks.view(self.group.world_size, -1)):
            for (name, *_), one, first in zip(named, theirs.tolist(), all_ranks.tolist()):
                if one != first:
                    raise MismatchError(f"{name}: {difference.format(rank)}", rank=rank)

    def _listen(self):
        """A hook of the node that adds to .grad runs after that, once in each backward pass. A hook of the tensor would run before."""
        reference = self._reference = weakref.ref(self)

        def ready(*_, index):
            steps = reference()
            if steps is not None:
                steps._ready(index)

        def ready_in_turn(*_, index):
            steps = reference()
            if steps is not None:
                with steps._streams.lock:
                    steps._ready(index)

        hook = ready_in_turn if self._streams else ready  # one thread adds to gradients on the CPU
        for index, tensor in enumerate(self.tensors):
            with torch.enable_grad():
                node = tensor.expand_as(tensor).grad_fn.next_functions[0][0]
            self._listeners.append(node.register_hook(functools.partial(hook, index=index)))
            self._nodes.append(node)  # PyTorch does not keep the nodes, and the hooks go with them
        self._stepping = take_optimizers(self.names, self.tensors) or set()

    def set_hook(self, state, hook):
        """hook(state, GradBucket) reduces the buckets."""
        tensors, orders, group = self.tensors, self._orders, self.group

        def call(lent, bucket):
            device = tensors[int(bucket._gradient(0).parameter)].device
            with torch.no_grad(), on_stream_of(bucket, device):
                seen = GradBucket(bucket, device, tensors, orders)
                seen._finish(hook, hook(lent if state is group else state, seen))

        self.context.set_hook(call)

    def carry(self, old):
        """Goes on where other Steps of the same module have ended: what no_sync has accumulated, by tensor."""
        accumulated = {id(old.tensors[index]): old.names[index] for index in old._accumulated}
        self._accumulated = {self._indices[tensor] for tensor in accumulated if tensor in self._indices}
        self.stepped, self.after_mean, self.scale = old.stepped, old.after_mean, old.scale
        self._weight, self._strays, self._weighed = old._weight, old._strays, old._weighed

    def end(self):
        """Before other Steps of the same module are made, so that there are not two copies of all gradients."""
        if self not in _alive:
            return  # the others could not be made, and this is another try
        if self.open:
            self.report_missing("The step before has not ended")
        if self.context.hook_name not in self._hook_names:
            raise InvalidStateError(f"the context's hook, {self.context.hook_name}, would end here, where the module is registered again. "
                                    "Make a new DistributedDataParallel, or use register_comm_hook")
        self._leave_buckets()
        self.close()

    def _leave_buckets(self):
        """On a GPU, the order of the streams in which buckets are freed would end with the context: gradients get memory of their own."""
        if self._streams and self.options.as_views:
            for tensor, view in zip(self.tensors, self._views):
                if view is not None and tensor.grad is not None and tensor.grad.data_ptr() == view.data_ptr():
                    tensor.grad = tensor.grad.clone()

    def close(self):
        """Ends listening, and frees the context."""
        if self.shards is not None:
            self.shards.forget()
        self._settle()
        for handle in self._listeners:
            handle.remove()  # the graph of a loss may keep its node
        self._listeners, self._nodes = [], []
        self._close_sender()
        _alive.discard(self)
        self.context.close()

    def __del__(self):
        if not self._settled and not sys.is_finalizing() and self._streams.may_wait():
            self._settle()
            if self.options.as_views:
                self._leave_buckets()
                self._streams.wait()  # for the copies, and the copies are there for whatever stream comes next

    def _settle(self):
        """Before the context frees memory that streams still use: the host waits for them. Other ranks are not to wait with it for the rest
        of a step."""
        if self._settled:
            return
        self._settled = True
        if self.open and self._missing and self.group.world_size > 1:
            self.context.abort("its DistributedDataParallel went in the middle of a step")
        self._streams.wait()

    def captured(self):
        """Whether the forward pass is being captured into a graph."""
        return self._streams.captured()

    def buffers_to_send(self):
        """The same on all ranks. Collective, where they are others than the last time."""
        buffers = self.registered.buffers()
        described = [(name, tensor.dtype, tensor.shape, tensor.device.type) for _, _, name, tensor in buffers]
        if described != self._sent:
            self._compare(described, "at this place among its buffers, the module on rank {} has another one than on rank 0. Ranks register the "
                          "same buffers, of the same types and shapes, on devices of the same type, in the same order")
            self._close_sender()
            self._sender = Buffers(self.group, [(name, tensor) for _, _, name, tensor in buffers])
            self._sent = described
        return buffers

    def send_buffers(self, root):
        """A rank's to all ranks. On the others: (owner, tensor, what was sent) of each."""
        buffers = self.buffers_to_send()
        owners = {id(tensor): owner for owner, _, _, tensor in buffers}
        return [(owners[id(tensor)], tensor, sent)
                for tensor, sent in self._sender.send(root, [(name, tensor) for _, _, name, tensor in buffers])]

    def _close_sender(self):
        if self._sender is not None:
            self._sender.close()
            self._sent = self._sender = None

    # CHANGES OF THE MODULE

    def check(self):
        """A sentence about what is no longer as it was registered, if these Steps cannot go on. Of the registered parameters, those that
        are frozen now get no gradient."""
        sentence, turned = self.registered.change()
        if self not in _alive:
            sentence = sentence or "the module is not registered"
        if self.options.join and self.options.send_buffers and len(self.registered.buffers()) != len(self._buffers):
            sentence = sentence or "the module has other buffers"
        if sentence is not None or not (turned or self._frozen):
            return sentence
        for name, tensor in turned:
            if tensor.requires_grad:
                return f"{name} requires a gradient"
            if self.options.static_graph or self.options.join:
                return f"{name} is frozen"
        if not self.options.find_unused and not self.open:  # to them a frozen parameter is an unused one
            self._freeze({self._indices[id(tensor)] for _, tensor in turned})
        return None

    def _freeze(self, frozen):
        for index in sorted(frozen & self._accumulated):
            if self.tensors[index].grad is not None:
                raise InvalidStateError(
                    f"{self.names[index]} was frozen with a gradient from no_sync that is this rank's own. Freeze it before, or after the "
                    "step that averages its gradient, or set its .grad to None")
        for indices, now in ((frozen - self._frozen, True), (self._frozen - frozen, False)):
            if indices:
                self.context.set_frozen(sorted(indices), now)
        self._frozen = frozen

    # FORWARD PASSES

    def forward_begins(self):
        """Ends the traces of a backward pass that failed."""
        self.in_pass = False
        if self.open and (len(self._missing) < len(self.tensors)):
            self.report_missing("The backward pass before this forward pass did not end, or")
        if self.shards is not None:
            self.shards.before_forward()

    def forward_ends(self, output, synced):
        """After a forward pass with gradients."""
        self._mode = SYNCED if synced else LOCAL
        self._hooked = take_hooks(self.tensors, self._reference)
        if not synced:
            return
        self._streams.remember()
        taken = take_optimizers(self.names, self.tensors)
        if taken:
            self._stepping |= taken
        if self.shards is not None and (self._stepping or self._hooked):
            raise UnsupportedError(f"{self.names[min(self._stepping or self._hooked)]} has an optimizer or a hook that wants its gradient in the backward "
                                   "pass, and with shard the mean is in pieces on all ranks. Use ShardedOptimizer alone")
        tensors = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        results = [tensor for tensor in tensors if not tensor.is_leaf]  # a parameter would keep the hooks of all steps
        if not self._fresh:
            self._waiting, self._blind = set(), False
        self._blind = self._blind or not results
        for tensor in results:
            tensor.register_hook(functools.partial(_reach, self._reference, self._next_output))
            self._waiting.add(self._next_output)
            self._next_output += 1
        if self.options.find_unused and not self.options.static_graph:
            used = parameters_behind(tensors)
            unused = [] if not tensors else [index for index, tensor in enumerate(self.tensors) if id(tensor) not in used]
            self._unused = unused if not self._fresh else sorted(set(unused) & set(self._unused))
        self._fresh = True

    # BACKWARD PASSES

    def _may_miss(self):
        """Whether a backward pass may end without gradients of some parameters."""
        return self._learning if self.options.static_graph else self.options.find_unused

    def _enter(self):
        self.in_pass = True
        self._reached = set()
        at_end(functools.partial(_end_of_pass, self._reference))  # autograd may be the last to drop it

    def _reach(self, output):
        """A backward pass has come to a tensor that a synced forward pass returned. It is the outermost one."""
        if not self.in_pass or output in self._reached:  # reached before: in a pass that failed
            self._enter()
        self._reached.add(output)
        self._waiting.discard(output)

    def _ready(self, index):
        """.grad of a parameter is complete."""
        if has_run_hooks(self.tensors[index]):
            before_error()
            raise InvalidStateError(
                f"{self.names[index]} has a hook of register_post_accumulate_grad_hook that was not there in the forward pass, so it got this "
                "rank's own gradient instead of the mean. Register it before model(x)")
        if not self.in_pass and not (self._mode == SYNCED and self._fresh):
            self._stray(index)
            return
        if not self.in_pass:
            self._enter()
        if not self.open or not self._marked:
            with self._streams.of_program(index):
                if not self.open:
                    self.begin()
                if not self._marked:
                    self._mark(self._unused)
        if self.tensors[index].grad is None and self._may_miss():
            return  # the backward pass came here without a gradient
        if self._learning:
            self._came.append(index)
            if self.options.as_views and index not in self._sparse:
                self._to_place(index)  # else all gradients of this step would have memory of their own at once
            return
        if not self._left[index]:
            raise InvalidStateError(
                f"{self.names[index]} has got a gradient more often in this step than its graph shows: it was marked unused by the last "
                "forward pass, or two segments of torch.utils.checkpoint use it (use_reentrant=False or static_graph=True allows that), or "
                "a backward pass follows one that failed. Each forward pass has one backward pass")
        self._left[index] -= 1
        if not self._left[index]:
            self._announce(index)
            self._missing.discard(index)

    def _stray(self, index):
        """A gradient of this rank only: wanted in no_sync."""
        if self._mode == LOCAL or self._no_sync():
            self._accumulated.add(index)
            self._strays += 1
            if self.norm is not None:
                self.norm.forget()
            return
        tensor = id(self.tensors[index])
        if any(tensor in other._indices and (other.in_pass or other._fresh or other._mode == LOCAL or other._no_sync())
               for other in list(_alive) if other is not self):
            return  # another DistributedDataParallel of the module takes it
        before_error()
        raise InvalidStateError(
            f"{self.names[index]} has got a gradient in a backward pass that no forward pass of this DistributedDataParallel belongs to, so it "
            "is this rank's own. Call model(x), not model.module(x). In model.no_sync() gradients may be this rank's own")

    def _end_pass(self):
        self.in_pass = False
        if not self.open:
            if not self._may_miss():
                return  # no gradient: all is frozen, or it was torch.autograd.grad
            self.begin()
        if self._learning and (self._reached or self._blind):
            self._learn()
        elif self._missing and self._may_miss():
            if not self._reached and not self._blind:
                return  # of a pass inside
            self._mark(sorted(self._missing.union(() if self._marked else self._unused)))
        elif self._missing:
            if self._waiting or self._blind:
                return  # a backward pass from another output may bring them
            self.report_missing("This backward pass")
        for index in self._of_others:
            self._announce(index)
        self._finish()

    def set_weight(self, weight):
        """The weight of this rank in the next step."""
        if not 0 <= float(weight) < math.inf:
            raise ValueError(f"set_weight: a finite weight of 0 or more is expected, not {weight!r}")
        if self.open:
            raise InvalidStateError("set_weight: the step has begun, and all ranks know its weights. Call it before backward(); in join() "
                                    "before model(x)")
        if self._weight is not None and self._strays != self._weighed:
            raise InvalidStateError("set_weight: it was called for this step before, and no_sync() has added up gradients since. A step has "
                                    "one weight, that of all its micro-batches together: multiply each loss by its part of that")
        self._weight, self._weighed = float(weight), self._strays

    def _learn(self):
        """The first step of a static graph: how often each parameter gets a gradient, and which of them no rank uses."""
        self._learning = False
        self._uses = [0] * len(self.tensors)
        last = {}
        for place, index in enumerate(self._came):
            self._uses[index] += 1
            last[index] = place
        self._came, self._missing = [], set()
        used = torch.tensor([int(uses > 0 or tensor.grad is not None) for uses, tensor in zip(self._uses, self.tensors)],
                            dtype=torch.int32)
        self.group.allreduce(used, "max")
        self._of_others = [index for index, uses in enumerate(self._uses) if not uses and used[index]]
        unused = [index for index in range(len(self.tensors)) if not used[index]]
        if unused:
            self._streams.catch_up()
            self.context.mark_unused(unused)
        for index in sorted(last, key=last.get):  # the order in which they were complete
            self._announce(index)

    def begin(self):
        """Buckets may move here; a .grad that was in one is then memory like any other."""
        self._refuse_shared_views()
        if self.options.join:
            self._write_copies()
        self._streams.enter()
        if self.options.weighted:
            self._tell_weight()
        if self._begun == 1 or self.options.autotune:  # buckets are built anew then
            self._forget_views()
        self._begun += 1
        self.context.step_begin()
        self._find_views()
        if self.options.join:  # it sends buffers
            self._read_copies()
        self.open, self.stepped, self._marked = True, True, False
        if self.norm is not None:
            self.norm.forget()
        self._left = [0 if index in self._frozen else uses for index, uses in enumerate(self._uses)]
        self._missing = {index for index, left in enumerate(self._left) if left}
        self._came = []

    def _tell_weight(self):
        if self._weight is None:
            raise InvalidStateError("this step has no weight, and its DistributedDataParallel was made with weighted_mean=True: call "
                                    "model.set_weight(...) before backward(), in each step and on all ranks")
        self.context.set_weight(self._weight)
        self._weight = None

    def _refuse_shared_views(self):
        """A .grad that lies in a bucket is reduced there, while the backward pass of another DistributedDataParallel reads it."""
        for other in list(_alive):
            if other is not self and other.open and other.in_pass and (self.options.as_views or other.options.as_views):
                shared = self._indices.keys() & other._indices.keys()
                if shared:
                    raise InvalidStateError(
                        f"{self.names[min(self._indices[tensor] for tensor in shared)]} is in two DistributedDataParallel that share this "
                        "backward pass, and gradient_as_bucket_view=True does not allow that. Say gradient_as_bucket_view=False, give each "
                        "a backward pass of its own, or wrap one module that holds both")

    def _mark(self, indices):
        """This step does not use these. What earlier passes left in a .grad counts all the same."""
        self._marked = True
        held = {index for index in indices if self.tensors[index].grad is not None}
        unused = [index for index in indices if index not in held]
        if unused:  # a context that does not look for them takes no list
            self._mark_unused(unused)
        for index in sorted(held):
            self._announce(index)
        for index in indices:
            self._left[index] = 0
        self._missing.difference_update(indices)

    def _mark_unused(self, indices):
        """Their place in a bucket may still hold the mean of a step before, which .grad no longer does."""
        for index in indices:
            if index not in self._sparse:
                self._views[index].zero_()
        self._streams.catch_up()
        self.context.mark_unused(indices)

    def report_missing(self, when):
        names = [self.names[index] for index in sorted(self._missing)]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        advice = ("A static graph uses the same parameters in each step" if self.options.static_graph else
                  "Freeze parameters that are not trained: requires_grad=False before the model is wrapped. Where a forward pass uses only "
                  "some of the others, say find_unused_parameters=True, and let the loss depend on everything that forward returns")
        raise InvalidStateError(f"{when} gave no gradient for {shown or 'any parameter'}, so the step was not finished. {advice}")

    def _announce(self, index):
        tensor = self.tensors[index]
        if index in self._sparse:
            self._announce_rows(index, tensor.grad)
            return
        if tensor.grad is None:
            self._views[index].zero_()
        else:
            self._to_place(index)
        self._complete(index)

    def _to_place(self, index):
        view, grad = self._views[index], self.tensors[index].grad
        if grad.layout != torch.strided or grad.data_ptr() != view.data_ptr():
            self._copy_to(view, index, grad.detach())

    def _copy_to(self, view, index, grad):
        """A gradient in memory of its own goes to its place."""
        if grad.layout != torch.strided:
            raise UnsupportedError(f"{self.names[index]} has got a gradient that is {grad.layout}. Of sparse gradients this "
                                   "DistributedDataParallel takes those of nn.Embedding and nn.EmbeddingBag with sparse=True")
        if grad.dtype is not view.dtype:
            raise UnsupportedError(f"{self.names[index]} has got a gradient of {grad.dtype}, and {view.dtype} was registered. Set the "
                                   "parameter's grad_dtype to the type of its gradients, on all ranks")
        view.copy_(grad)
        if self.options.as_views:
            self.tensors[index].grad = view  # frees the other memory now

    def _announce_rows(self, index, grad):
        """A sparse gradient. None: without rows."""
        tensor = self.tensors[index].detach()
        if grad is None:
            self.context.grad_ready_sparse(index, torch.empty(0, dtype=torch.int64), tensor.new_empty(0, *tensor.shape[1:], dtype=grad_dtype_of(self.tensors[index])))
            return
        if grad.layout != torch.sparse_coo:
            raise UnsupportedError(f"{self.names[index]} belongs to an embedding with sparse=True, and has got a dense gradient: the model "
                                   "uses it elsewhere, too. Make the embedding with sparse=False")
        grad = grad.detach().coalesce()
        values = grad.values().reshape(grad._nnz(), *tensor.shape[1:])  # PyTorch 1.13 has another shape of none, after zero_()
        self.context.grad_ready_sparse(index, grad.indices()[0].contiguous(), values.contiguous())

    def _find_views(self):
        """Each gradient's place in its bucket, with the strides of its parameter. All are made at once: small memory that stays would else
        lie between gradients that go, and malloc would keep theirs."""
        if self._generation == self.context.layout_generation:
            return
        self._views = [None if index in self._sparse else from_order(shown(self.context.grad_view(index), tensor.device), self._orders[index])
                       for index, tensor in enumerate(self.tensors)]
        for tensor, view, before in zip(self.tensors, self._views, self._addresses) if self.options.as_views else ():
            if view is not None and tensor.grad is not None and tensor.grad.data_ptr() == before:
                tensor.grad = view  # the gradient has moved there
        self._addresses = [0 if view is None else view.data_ptr() for view in self._views]
        self._generation = self.context.layout_generation

    def _forget_views(self):
        """So that they do not keep the memory of buckets that move."""
        self._views, self._generation = [], -1
        self.context.forget_layout()

    def _finish(self):
        """The end of the backward pass: every .grad becomes the mean over ranks."""
        self.open = self._fresh = False
        self._waiting = set()
        self._accumulated.clear()
        may_be_unused = self.options.find_unused or self.options.static_graph
        waiting = self._stepping | self._hooked
        done = self._step_in_turn(waiting - self._sparse - self._frozen) if waiting and not may_be_unused else ()
        self._streams.finalize()
        if self.shards is not None:
            self._leave_gradients(may_be_unused)
            return
        copies, stepping, means = [], [], {}
        for index, tensor in enumerate(self.tensors):
            if index in done or index in self._frozen or (may_be_unused and not self.context.param_used(index)):
                continue  # by no rank
            self._take_mean(index, tensor, copies)
            means[index] = tensor
            if index in waiting:
                stepping.append(tensor)
        _copy_all(copies)
        if self.norm is not None and not waiting:
            self.norm.backward_ended(means, self.scale)
        for tensor in stepping:
            step_in_backward(tensor)
        if self.after_mean is not None:
            self.after_mean()

    def _leave_gradients(self, may_be_unused):
        """The means stay in the buckets, in pieces."""
        absent = {index for index in range(len(self.tensors)) if index in self._frozen or (may_be_unused and not self.context.param_used(index))}
        for index, tensor in enumerate(self.tensors):
            if index not in absent:
                tensor.grad = self.shards.nowhere(index)
        self.shards.backward_ended(absent)

    def _step_in_turn(self, waiting):
        """Optimizers and hooks of a parameter go on when its mean is there, while later buckets travel."""
        self._streams.begin_end()
        try:
            for index in sorted(waiting, key=self.context.param_bucket):
                self._streams.wait_for(index)
                copies = []
                self._take_mean(index, self.tensors[index], copies)
                _copy_all(copies)
                step_in_backward(self.tensors[index])
        except BaseException:
            with contextlib.suppress(Exception):
                self._streams.finalize()  # the other ranks have gone on
            raise
        return waiting

    def _take_mean(self, index, tensor, copies):
        """.grad becomes the mean, now or by one of the copies (to, from)."""
        if index in self._sparse:
            indices, values = map(torch.from_dlpack, self.context.sparse_gradient(index))
            tensor.grad = torch.sparse_coo_tensor(indices[None], values * self.scale, tensor.shape, **_UNCHECKED)
            return
        view = self._views[index]
        if self.scale != 1:
            view.mul_(self.scale)
        if self.options.as_views:
            tensor.grad = view
        elif tensor.grad is None:
            tensor.grad = torch.empty_like(tensor.detach(), dtype=view.dtype).copy_(view)  # with its strides
        elif tensor.grad.data_ptr() != view.data_ptr():
            copies.append((tensor.grad, view))

    # JOINING

    def follow(self):
        """Takes part in a step of other ranks with gradients of zero. No .grad changes."""
        self._streams.enter()
        if self.options.weighted:
            self.context.set_weight(0)
        self.context.step_begin()
        self._find_views()
        if self._learning:
            raise UnsupportedError("join: with a static graph, each rank needs inputs for one step at least")
        if self._may_miss():
            self._mark_unused(range(len(self.tensors)))
        else:
            for index in range(len(self.tensors)):
                if index in self._frozen or not (self._uses[index] or index in self._of_others):
                    continue
                if index in self._sparse:
                    self._announce_rows(index, None)
                else:
                    self._views[index].zero_()
                    self._complete(index)
        self._streams.finalize()

    def join(self):
        """This rank has no more inputs."""
        self._write_copies()
        self._streams.enter()
        self.context.join()
        self._read_copies()

    def _write_copies(self):
        for tensor, copied in self._copies:
            copied.copy_(tensor)
        for owner, key, name, order, copied in self._buffers:
            tensor = owner._buffers.get(key)
            if tensor is not None:
                copied.copy_(as_bytes(name, in_order(tensor.data, order).contiguous()))

    def _read_copies(self):
        for tensor, copied in self._copies:
            tensor.copy_(copied)
        for owner, key, _, order, copied in self._buffers:
            tensor = owner._buffers.get(key)
            if tensor is not None:
                memory = in_order(tensor.data, order)
                memory.copy_(copied if copied.dtype == memory.dtype else copied.view(memory.dtype).view(memory.shape))


def _copy_all(copies):
    """(to, from) of each."""
    if not copies:
        return
    with torch.no_grad():
        if hasattr(torch, "_foreach_copy_"):  # on a GPU a few launches instead of one for each; PyTorch 1.13 does not have it
            torch._foreach_copy_(*zip(*copies))
        else:
            for target, source in copies:
                target.copy_(source)


def _reach(reference, output, _):
    steps = reference()
    if steps is not None:
        with steps._streams.lock:
            steps._reach(output)


class Reducer:
    """The part of PyTorch's reducer that other libraries call."""

    def __init__(self, begin):
        self.prepare_for_backward = begin

    def prepare_for_forward(self):
        """Nothing is left to do."""

    def _rebuild_buckets(self):
        return False  # libddp does it


def abandon(module, group):
    """Before another registration: closes contexts whose backward passes have failed, so that nothing meets the rest of such a step. Of
    those in groups of the program's own, only where the module is now registered in another group."""
    tensors = {id(tensor) for tensor in module.parameters()}
    for steps in list(_alive):
        if steps.open and not in_backward_pass() and (group is None or (steps.group is not group and not tensors.isdisjoint(steps._indices))):
            steps.close()


def _end_of_pass(reference):
    """One inside another pass, as in torch.utils.checkpoint, may end before it."""
    steps = reference()
    if steps is not None:
        with steps._streams.lock:
            if steps.in_pass:
                steps._end_pass()


def sharded_of(tensors):
    """The last Steps with shards among those that most of the tensors are in; None: no tensor is in any."""
    def known(steps):
        return sum(id(tensor) in steps._indices for tensor in tensors)

    found = max((steps for steps in list(_alive) if steps.shards is not None), key=lambda steps: (known(steps), steps.shards.number), default=None)
    return found if found is not None and known(found) else None


def _refuse_open_step(optimizer, *_):
    for steps in list(_alive):
        if steps.shards is not None and steps.shards.waiting and any(id(tensor) in steps._indices for group in optimizer.param_groups for tensor in group["params"]):
            steps.shards.refuse_optimizer(optimizer)
        if steps.open and len(steps._missing) < len(steps.tensors) and not in_backward_pass():
            stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            if not stepped.isdisjoint(steps._indices):
                steps.report_missing("An optimizer steps, and the backward pass before")


def _watch_steps(kind):
    """Has step() of a class of optimizers, and of those derived from it now or later, call _refuse_open_step first."""
    step = vars(kind).get("step")
    if step is not None:
        @functools.wraps(step)
        def checked(optimizer, *arguments, **options):
            _refuse_open_step(optimizer)
            return step(optimizer, *arguments, **options)
        kind.step = checked
    for derived in kind.__subclasses__():
        _watch_steps(derived)


try:
    from torch.optim.optimizer import register_optimizer_step_pre_hook
except ImportError:  # PyTorch 1.13 has no hooks of optimizers
    torch.optim.Optimizer.__init_subclass__ = classmethod(_watch_steps)
    _watch_steps(torch.optim.Optimizer)
else:
    register_optimizer_step_pre_hook(getattr(torch, "_disable_dynamo", lambda function: function)(_refuse_open_step))
