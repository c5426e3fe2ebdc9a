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
import dataclasses
import secrets
import socket
import weakref

import torch
from torch import distributed, nn

from ._errors import InvalidArgumentError, InvalidStateError, UnavailableError, UnsupportedError
from .context import Context
from .group import Group, environment
from .store import Store

__all__ = ["DistributedDataParallel", "GradBucket", "group_of", "process_group"]

_MIB = 1 << 20
# libddp's rows are right. PyTorch of 2026 warns where nobody says whether it is to check them; PyTorch 1.13 does not know the word.
_UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}
_default_group = None
_groups_of_torch = weakref.WeakKeyDictionary()


def process_group() -> Group:
    """The group of this process's job, which is joined by the first call. It is the default of DistributedDataParallel.

    In a program that has called torch.distributed.init_process_group, it is the group of those ranks.
    """
    global _default_group  # pylint: disable=global-statement
    if distributed.is_available() and distributed.is_initialized() and not _launcher_agrees():
        return group_of(distributed.group.WORLD)
    if _default_group is None:
        _default_group = Group()
    return _default_group


def _launcher_agrees():
    """Whether a launcher gave this process the rank that it has in torch.distributed. The launcher's store is then at hand."""
    try:
        told = environment()
    except InvalidArgumentError:  # torch.distributed needs fewer variables
        return False
    return told is not None and (told.rank, told.world_size) == (distributed.get_rank(), distributed.get_world_size())


def group_of(torch_group) -> Group:
    """A group of the ranks of a torch.distributed.ProcessGroup, which carries the first messages. Later calls with the same
    ProcessGroup return the same group. Collective over those ranks."""
    if distributed.get_rank(torch_group) < 0:
        raise ValueError("process_group: this process is not in it")
    group = _groups_of_torch.get(torch_group)
    if group is None:
        group = _groups_of_torch[torch_group] = _joined(torch_group)
    return group


def _joined(torch_group):
    rank, size = distributed.get_rank(torch_group), distributed.get_world_size(torch_group)
    hosts = [None] * size
    distributed.all_gather_object(hosts, socket.gethostname(), group=torch_group)
    answer, server = [None], None
    if rank == 0:
        try:
            address, secret = "127.0.0.1" if len(set(hosts)) == 1 else _own_address(), secrets.token_hex(16)
            server = Store(f"tcp://{address}:0", server=True, secret=secret)
            answer = [(f"tcp://{address}:{server.port}", secret)]
        except Exception as failure:  # pylint: disable=broad-except
            answer = [failure]  # which ends the others' wait, too
    distributed.broadcast_object_list(answer, distributed.get_global_rank(torch_group, 0), group=torch_group)
    if isinstance(answer[0], Exception):
        raise answer[0]
    uri, secret = answer[0]
    store = server or Store(uri, secret=secret)
    return Group(rank, size, store=store, secret=secret)


def _own_address():
    """The address of this host's name. A host may give its name an address that others cannot reach."""
    address = socket.gethostbyname(socket.gethostname())
    if address.startswith("127."):
        raise UnavailableError(
            f"process_group: the address of this host's name, {socket.gethostname()}, is {address}, which other hosts cannot reach. "
            "Give process_group a ddp.Group: ddp.Group(rank, world_size, 'tcp://HOST:PORT', secret=...)")
    return address


class GradBucket:
    """What a hook of register_comm_hook sees: torch.distributed.GradBucket."""

    def __init__(self, bucket, tensors):
        self._bucket, self._tensors = bucket, tensors
        self._result = self._own = torch.from_dlpack(bucket.buffer)

    def index(self):
        """0, 1, ... in the order in which buckets are reduced."""
        return self._bucket.index

    def buffer(self):
        """All gradients as one flat tensor, with gaps of zeros."""
        return self._result

    def gradients(self):
        """Each parameter's gradient, a view of the buffer."""
        return [torch.from_dlpack(gradient.array) for gradient in self._bucket.gradients]

    def parameters(self):
        """The parameters, in the order of gradients()."""
        return [self._tensors[int(gradient.parameter)] for gradient in self._bucket.gradients]

    def is_last(self):
        """Whether it is the step's last bucket."""
        return self._bucket.is_last

    def set_buffer(self, tensor):
        """Replaces the buffer, by a tensor with as many elements."""
        self._result = tensor

    def _finish(self, result):
        if isinstance(result, (list, tuple)):
            result, = result
        if result.data_ptr() != self._own.data_ptr():
            self._own.copy_(result.reshape(-1))


class DistributedDataParallel(nn.Module):
    """Averages a module's gradients over the ranks of a group during the backward pass.

    The arguments are those of torch.nn.parallel.DistributedDataParallel. process_group is a ddp.Group or a group of
    torch.distributed; the default is process_group(), the group of the job. bucket_cap_mb="auto" finds the cap in the first
    steps (docs/steps.md). A module on a GPU, mixed_precision, device_mesh,
    param_to_hook_all_reduce and delay_all_reduce_named_params are not supported.
    """

    _listeners = ()  # hooks in the autograd graph
    _autotune = False

    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True, init_sync=True,
                 process_group=None, bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False,
                 gradient_as_bucket_view=False, static_graph=False, delay_all_reduce_named_params=None,
                 param_to_hook_all_reduce=None, mixed_precision=None, device_mesh=None):
        super().__init__()
        for name, value in (("device_ids", device_ids), ("output_device", output_device),
                            ("delay_all_reduce_named_params", delay_all_reduce_named_params),
                            ("param_to_hook_all_reduce", param_to_hook_all_reduce), ("mixed_precision", mixed_precision),
                            ("device_mesh", device_mesh)):
            if value is not None and value != []:
                raise UnsupportedError(f"{name}: this DistributedDataParallel has only None here, not {value!r}")
        if distributed.is_available() and isinstance(process_group, distributed.ProcessGroup):
            process_group = group_of(process_group)
        if process_group is not None and not isinstance(process_group, Group):
            raise TypeError("process_group: a ddp.Group or a group of torch.distributed is expected, not "
                            f"{type(process_group).__name__}")
        self._autotune = bucket_cap_mb == "auto"
        if bucket_cap_mb is None or self._autotune:
            bucket_cap_mb = 25
        if isinstance(bucket_cap_mb, str) or bucket_cap_mb <= 0:
            raise ValueError(f"bucket_cap_mb: it must be above 0, or \"auto\", not {bucket_cap_mb!r}")
        self.module, self.dim = module, dim
        self.broadcast_buffers, self.gradient_as_bucket_view = broadcast_buffers, gradient_as_bucket_view
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.bucket_bytes_cap = int(bucket_cap_mb * _MIB)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self._hook = None
        self._build(process_group, init_sync, {})

    # THE CONTEXT

    def _build(self, group, init_sync, options):
        """Registers the module in a context. Collective, as all that ends in a commit."""
        self.process_group = group if group is not None else globals()["process_group"]()
        self._tensors, self._sparse = _parameters_of(self.module, self.parameters_to_ignore)
        if not self._tensors:
            raise ValueError("module: it has no parameter that requires a gradient, so there is nothing to average")
        self.device = next(iter(self._tensors.values())).device
        self.device_type = self.device.type
        self.context = Context(
            self.process_group, bucket_cap=0 if self._autotune else self.bucket_bytes_cap,
            first_bucket_cap=0 if self._autotune else min(_MIB, self.bucket_bytes_cap),
            initial_broadcast=init_sync, broadcast_buffers=self.broadcast_buffers and bool(options),
            find_unused=self.find_unused_parameters and not self.static_graph, static_graph=self.static_graph,
            accumulate=self.find_unused_parameters or self.static_graph, autotune=self._autotune, **options)
        self._joining = bool(options)
        self._copies = []  # of tensors that are not contiguous, which the context knows instead of them
        for name, tensor in self._tensors.items():
            if tensor.device.type != "cpu":
                raise UnsupportedError(f"{name} is on {tensor.device}: this DistributedDataParallel takes modules on the CPU")
            self.context.register(name, self._contiguous(name, tensor), sparse=name in self._sparse)
        for name, tensor in self.module.named_parameters():
            if not tensor.requires_grad and name not in self.parameters_to_ignore:
                self.context.register_buffer(name, self._contiguous(name, tensor))  # becomes rank 0's, as the others
        self._buffers_sent = list(_buffers_of(self.module, self.parameters_to_ignore))
        for owner, key, name, tensor in self._buffers_sent:
            self.context.register_buffer(name, self._contiguous(name, tensor))
        self.context.commit()
        self._read_copies()
        if self._hook is not None:
            self._install_hook()
        self._names, self._tensors = list(self._tensors), list(self._tensors.values())
        self._views, self._generation = [None] * len(self._tensors), -1
        self._armed = self._open = self._marked = self._stepped = False
        self._unused = ()  # by the last forward pass
        self._missing = set()
        self._accumulated = set()  # got gradients in no_sync
        self._never = None if self.static_graph else ()  # unused in every step; None: the first step will show
        self._watched = False
        self._listen()

    def _contiguous(self, name, tensor):
        """The tensor, or a copy of it where its elements lie in another order, as in torch.channels_last."""
        if tensor.layout != torch.strided:
            raise UnsupportedError(f"{name} is {tensor.layout}: this DistributedDataParallel takes dense tensors")
        tensor = _bytes_if_bool(tensor.data)  # autograd does not count what is written there, nor what libddp writes
        if tensor.is_contiguous():
            return tensor
        copied = tensor.contiguous()
        try:
            tensor.copy_(copied)
        except RuntimeError as error:  # its elements share memory
            raise UnsupportedError(f"{name}: {error}") from error
        self._copies.append((tensor, copied))
        return copied

    def _write_copies(self):
        for tensor, copied in self._copies:
            copied.copy_(tensor)

    def _read_copies(self):
        for tensor, copied in self._copies:
            tensor.copy_(copied)

    def _listen(self):
        """A hook of the node that adds to .grad runs after that, once in each backward pass. A hook of the tensor would run before."""
        reference = weakref.ref(self)
        for handle in self._listeners:
            handle.remove()  # the graph of a loss may keep its node
        self._listeners, self._nodes = [], []  # PyTorch does not keep the nodes, and the hooks go with them
        for index, tensor in enumerate(self._tensors):
            with torch.enable_grad():
                node = tensor.expand_as(tensor).grad_fn.next_functions[0][0]

            def ready(*_, index=index):
                parallel = reference()
                if parallel is not None:
                    parallel._ready(index)

            self._listeners.append(node.register_hook(ready))
            self._nodes.append(node)

    def __getstate__(self):
        state = self.__dict__.copy()
        for name in ("process_group", "context", "_nodes", "_listeners", "_views", "_tensors", "_names", "_sparse", "_missing",
                     "_buffers_sent", "_copies"):
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self._build(None, False, {})

    def _set_static_graph(self):
        """Before the first step: as static_graph=True. Collective."""
        if self._stepped:
            raise InvalidStateError("_set_static_graph should be called before training loop starts, and a step has begun already")
        if not self.static_graph:
            self.static_graph = True
            self._rebuild({})

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, params_and_buffers_to_ignore):
        """Before a DistributedDataParallel of the module is made: these names stay each rank's own."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore

    # A STEP

    def forward(self, *inputs, **kwargs):
        """The module's forward pass."""
        if self.require_forward_param_sync and not self._joining:
            self._send_buffers()
        if torch.is_grad_enabled():
            self._armed = self.require_forward_param_sync = self.require_backward_grad_sync
            self._watched = False  # after a backward pass that failed
            if self._open and len(self._missing) < len(self._tensors):
                self._report_missing()
            if self._armed and self._joining and not self._open:
                self._begin()  # in which ranks learn who still has inputs
        output = self.module(*inputs, **kwargs)
        if self._armed and torch.is_grad_enabled():
            if self._may_miss():
                for tensor in _tensors_in(output):
                    if tensor.requires_grad:
                        tensor.register_hook(self._watch)
            if self.find_unused_parameters and not self.static_graph:
                used = _parameters_behind(output)
                self._unused = [index for index, tensor in enumerate(self._tensors) if id(tensor) not in used]
        return output

    def _may_miss(self):
        """Whether a backward pass may end without gradients of some parameters."""
        return self._never is None if self.static_graph else self.find_unused_parameters

    def _watch(self, _):
        """A backward pass begins that may miss some."""
        if self._armed and self._may_miss() and not self._watched:
            self._watched = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_with_missing)

    def _finish_with_missing(self):
        self._watched = False
        if not self._open:
            self._begin()
        if not self._marked:
            self._mark(self._unused)
        if self.static_graph:
            self._never = self._missing - self._accumulated
        self._mark(sorted(self._missing))
        self._finish()

    def _mark(self, indices):
        """This step does not use these. What no_sync left in a .grad counts all the same."""
        self._marked = True
        unused = [index for index in indices if index not in self._accumulated]
        if unused:  # a context that does not look for them takes no list
            self._lay_down(unused)
            self.context.mark_unused(unused)
        for index in indices:
            if index in self._accumulated:
                self._announce(index)
        self._missing.difference_update(indices)

    def _lay_down(self, indices):
        """What this step does not use counts with what its .grad holds: the mean of backward passes since zero_grad()."""
        for index in indices:
            if self._names[index] in self._sparse:
                continue
            grad, view = self._tensors[index].grad, self._view(index)
            if grad is None:
                view.zero_()
            elif grad.data_ptr() != view.data_ptr():
                view.copy_(grad.detach())

    def _send_buffers(self):
        """Rank 0's to all ranks. The context would do so at the beginning of a step; but a forward pass may have no backward pass, and
        then there must be no step that misses gradients."""
        by_type = {}
        for owner, key, _, _ in self._buffers_sent if self.broadcast_buffers and self.process_group.world_size > 1 else ():
            tensor = owner._buffers.get(key)
            if tensor is not None:
                by_type.setdefault(tensor.dtype, []).append(_bytes_if_bool(tensor.detach()))
        with torch.no_grad():
            for tensors in by_type.values():
                flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
                self.process_group.broadcast(flat, 0)
                for tensor, sent in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
                    tensor.copy_(sent.view_as(tensor))

    def _begin(self):
        """Buckets may move here; a .grad that was in one is then memory like any other."""
        if self._joining:
            self._write_copies()
        self.context.step_begin()
        if self._joining:  # it sends buffers
            self._read_copies()
        self._open, self._stepped, self._marked = True, True, False
        self._missing = set(range(len(self._tensors))).difference(self._never or ())
        self._lay_down(self._never or ())

    def _report_missing(self):
        names = [self._names[index] for index in sorted(self._missing)]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InvalidStateError(
            f"the backward pass before this one gave no gradient for {shown}, so it was not finished. Where a forward pass does not "
            "use each parameter, say find_unused_parameters=True, and let the loss depend on everything that forward returns")

    def _ready(self, index):
        """In the backward pass: .grad of a parameter is complete."""
        if not self._armed:
            self._accumulated.add(index)
            return
        if not self._open:
            self._begin()
        if not self._marked:
            self._mark(self._unused)
        if self._watched and self._tensors[index].grad is None:
            return  # the backward pass came here without a gradient
        if index not in self._missing and index not in (self._never or ()):
            raise InvalidStateError(
                f"{self._names[index]} has got a gradient twice in one step, or was marked unused by the last forward pass: each forward "
                "pass has a backward pass of its own, or torch.utils.checkpoint needs use_reentrant=False")
        self._announce(index)
        self._missing.discard(index)
        if not self._missing and not self._watched:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _announce(self, index):
        grad = self._tensors[index].grad
        grad = torch.zeros_like(self._tensors[index]) if grad is None else grad.detach()
        if self._names[index] in self._sparse:
            grad = grad.coalesce()
            self.context.grad_ready_sparse(index, grad.indices()[0].contiguous(), grad.values().contiguous())
            return
        view = self._view(index)
        if grad.data_ptr() != view.data_ptr():
            view.copy_(grad)
        self.context.grad_ready(index)

    def _view(self, index):
        """A gradient's place in its bucket."""
        if self._generation != self.context.layout_generation:
            self._views, self._generation = [None] * len(self._tensors), self.context.layout_generation
        if self._views[index] is None:
            self._views[index] = torch.from_dlpack(self.context.grad_view(index))
        return self._views[index]

    def _finish(self):
        """The end of the backward pass: every .grad becomes the mean over ranks."""
        self._open = False
        self._never = self._never or ()
        self._accumulated.clear()
        self.context.finalize()
        for index, tensor in enumerate(self._tensors):
            if (self.find_unused_parameters or self.static_graph) and not self.context.param_used(index):
                continue  # by no rank
            if self._names[index] in self._sparse:
                indices, values = map(torch.from_dlpack, self.context.sparse_gradient(index))
                tensor.grad = torch.sparse_coo_tensor(indices[None], values, tensor.shape, **_UNCHECKED)
                continue
            view = self._view(index)
            if self.gradient_as_bucket_view:
                tensor.grad = view
            elif tensor.grad is None:
                tensor.grad = torch.empty_like(tensor.detach()).copy_(view)  # with its strides
            elif tensor.grad.data_ptr() != view.data_ptr():
                with torch.no_grad():
                    tensor.grad.copy_(view)

    @contextlib.contextmanager
    def no_sync(self):
        """Forward passes in here have backward passes that add to .grad of this rank only."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """Ranks may have different numbers of inputs: one without more takes part with gradients of zero until all are here.
        Collective, at its beginning and at its end."""
        if not enable:
            yield
            return
        self._rebuild({"join": True, "divide_by_present": not divide_by_initial_world_size,
                       "stop_at_first_join": throw_on_early_termination})
        yield
        self._write_copies()
        self.context.join()
        self._read_copies()
        self._rebuild({})

    def _rebuild(self, options):
        old = self.context
        self._build(self.process_group, False, options)
        old.close()

    # HOOKS

    def register_comm_hook(self, state, hook):
        """hook(state, bucket) returns a torch.futures.Future of a tensor, or the tensor: what each rank's bucket becomes. bucket is a
        GradBucket; a hook that communicates uses process_group, or torch.distributed where the program has initialised it."""
        if not callable(hook):
            raise TypeError(f"hook: a function is expected, not {type(hook).__name__}")
        if self._hook is not None:
            raise InvalidStateError("register_comm_hook was called before: a module has one hook")
        self._hook = state, hook
        self._install_hook()

    def _install_hook(self):
        state, hook = self._hook
        tensors = list(self._tensors.values()) if isinstance(self._tensors, dict) else self._tensors

        def call(_, bucket):
            given = GradBucket(bucket, tensors)
            with torch.no_grad():
                result = hook(state, given)
                given._finish(result.wait() if isinstance(result, torch._C.Future) else result)

        self.context.set_hook(call)


def _parameters_of(module, ignored):
    """{name: tensor} of what is trained, and the names of those whose gradients are sparse."""
    tensors = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad and name not in ignored}
    sparse = {id(part.weight) for part in module.modules()
              if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse}
    return tensors, {name for name, tensor in tensors.items() if id(tensor) in sparse}


def _buffers_of(module, ignored):
    """(the module that owns it, its name there, its full name, tensor) of each buffer, once."""
    seen = set()
    for prefix, part in module.named_modules():
        for key, tensor in part._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if tensor is not None and id(tensor) not in seen and name not in ignored:
                seen.add(id(tensor))
                yield part, key, name, tensor


def _bytes_if_bool(tensor):
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _tensors_in(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for field in dataclasses.fields(output):
            yield from _tensors_in(getattr(output, field.name))


def _parameters_behind(output):
    """The ids of the tensors that a backward pass from there reaches."""
    found, seen = set(), set()
    todo = [tensor.grad_fn for tensor in _tensors_in(output) if tensor.grad_fn is not None]
    found.update(id(tensor) for tensor in _tensors_in(output) if tensor.grad_fn is None)  # a parameter itself
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
