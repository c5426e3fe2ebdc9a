"""A model's parameters, and the averaging of their gradients over ranks (ddp/context.h and related headers)."""
from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple

from . import _ddp
from ._arrays import DtypeLike, copied, count_of, device_name, device_of, dtype_of, memory_of, same_layout
from ._context_state import Parameter as Parameter
from ._ddp import Memory
from .context_batches import BatchMethods
from .context_devices import DeviceMethods
from .context_hooks import HookMethods
from .context_shards import ShardMethods
from .context_votes import VoteMethods
from .group import Group
from .stats import Stats

_REDUCTIONS = {"mean": _ddp.DDP_REDUCTION_MEAN, "sum": _ddp.DDP_REDUCTION_SUM,
               "weighted_mean": _ddp.DDP_REDUCTION_WEIGHTED_MEAN}
#: Shape, dtype, dtype of the gradient and device of a parameter.
_Layout = Tuple[Tuple[int, ...], int, int, Tuple[int, int]]


class Context(BatchMethods, DeviceMethods, HookMethods, ShardMethods, VoteMethods):
    """Register parameters, commit, and in each step announce gradients and finalize.

    The arguments, the same on every rank, are those of ddp_context_options. Caps are in bytes; reduction is "mean",
    "sum" or "weighted_mean". check: finds mistakes that are otherwise silent (DDP_CONTEXT_CHECK; DDP_DEBUG=check does
    the same). refuse_nonfinite, skip_nonfinite: NaN and infinity in a gradient raise NonfiniteError on all ranks, and break
    the context or skip the step. verify_interval: every so many synced steps ranks compare parameters (ddp/check.h).
    autotune: libddp tries other bucket caps in the first steps and keeps the fastest (DDP_CONTEXT_AUTOTUNE). shard: each rank
    updates a share of the parameters (ddp/shard.h): pieces() says which, and publish() sends the new values to the others.
    votes: bits of each rank travel with each step (ddp/vote.h): vote() casts some, and votes() has those of all ranks.
    """

    #: This step's gradient of the parameter is complete. A step calls it most often: it goes straight to C.
    grad_ready: Callable[[int], None]

    def __init__(self, group: Group, *, bucket_cap: int = 0, first_bucket_cap: int = 0,
                 bucket_caps: Sequence[int] = (), reduction: str = "mean", rebuild_interval: int = 0,
                 rebuild: bool = True, initial_broadcast: bool = True, broadcast_buffers: bool = True,
                 find_unused: bool = False, static_graph: bool = False, keep_local_unused: bool = False,
                 skip_unused_buckets: bool = False, join: bool = False, divide_by_present: bool = False,
                 stop_at_first_join: bool = False, consensus_order: bool = False, accumulate: bool = False, check: bool = False,
                 check_interval: int = 0, refuse_nonfinite: bool = False, skip_nonfinite: bool = False,
                 verify_interval: int = 0, verify_buffers: bool = False, autotune: bool = False,
                 shard: bool = False, votes: bool = False):
        options = _ddp.ddp_context_options()
        options.bucket_cap_bytes = bucket_cap
        options.first_bucket_cap_bytes = first_bucket_cap
        options.set_bucket_caps(list(bucket_caps))
        if reduction not in _REDUCTIONS:
            raise ValueError(f"unknown reduction {reduction!r}; there are {', '.join(_REDUCTIONS)}")
        options.reduction = _REDUCTIONS[reduction]
        options.rebuild_interval = rebuild_interval
        options.check_interval = check_interval
        options.verify_interval = verify_interval
        options.flags = ((not rebuild) * _ddp.DDP_CONTEXT_NO_REBUILD
                         | (not initial_broadcast) * _ddp.DDP_CONTEXT_NO_INITIAL_BROADCAST
                         | (not broadcast_buffers) * _ddp.DDP_CONTEXT_NO_BUFFER_BROADCAST
                         | find_unused * _ddp.DDP_CONTEXT_FIND_UNUSED
                         | static_graph * _ddp.DDP_CONTEXT_STATIC_GRAPH
                         | keep_local_unused * _ddp.DDP_CONTEXT_KEEP_LOCAL_UNUSED
                         | skip_unused_buckets * _ddp.DDP_CONTEXT_SKIP_UNUSED_BUCKETS
                         | join * _ddp.DDP_CONTEXT_JOIN
                         | divide_by_present * _ddp.DDP_CONTEXT_DIVIDE_BY_PRESENT
                         | stop_at_first_join * _ddp.DDP_CONTEXT_STOP_AT_FIRST_JOIN
                         | consensus_order * _ddp.DDP_CONTEXT_CONSENSUS_ORDER
                         | accumulate * _ddp.DDP_CONTEXT_ACCUMULATE
                         | check * _ddp.DDP_CONTEXT_CHECK
                         | refuse_nonfinite * _ddp.DDP_CONTEXT_REFUSE_NONFINITE
                         | skip_nonfinite * _ddp.DDP_CONTEXT_SKIP_NONFINITE
                         | verify_buffers * _ddp.DDP_CONTEXT_VERIFY_BUFFERS
                         | autotune * _ddp.DDP_CONTEXT_AUTOTUNE
                         | shard * _ddp.DDP_CONTEXT_SHARD
                         | votes * _ddp.DDP_CONTEXT_VOTES)
        super().__init__(_ddp.ddp_context_create(group, options))
        self.grad_ready = self._handle.grad_ready

    # REGISTRATION

    def register(self, name: str, data: Any = None, grad: Any = None, *, shape: Optional[Iterable[int]] = None,
                 dtype: Optional[DtypeLike] = None, ignored: bool = False, delayed: bool = False, sparse: bool = False,
                 factored: bool = False, in_place: bool = False, uses: int = 1, device: Optional[str] = None,
                 grad_dtype: Optional[DtypeLike] = None) -> Parameter:
        """Adds a parameter, in the order of the forward pass.

        data: its value, an array that commit overwrites with rank 0's; None: not sent. grad: the array in which its
        gradient will be, which finalize overwrites with the mean; None: the gradient lives in its bucket (grad_view), or is
        copied there (put). Neither may be an array of JAX, which is immutable. Without data and grad, shape and dtype say what
        it is, and device ("cuda:0") where; a dtype with them says how to read their bytes (bfloat16 in an array of float16).
        in_place: grad is reduced where it lies, and not copied (ddp/in_place.h). grad_dtype: the type of the gradient, where it is
        another one than that of the value: "f32" for f32 gradients of bf16 values, which are then summed in f32.
        """
        flags = (ignored * _ddp.DDP_PARAM_IGNORED | delayed * _ddp.DDP_PARAM_DELAYED | sparse * _ddp.DDP_PARAM_SPARSE
                 | factored * _ddp.DDP_PARAM_FACTORED | in_place * _ddp.DDP_PARAM_IN_PLACE)
        desc, layout, kept = self._describe(name, data, grad, shape, dtype, flags, uses, device, grad_dtype)
        index = _ddp.ddp_register_param(self._handle, desc)
        self._handle.keep(kept)
        if in_place and kept[1]:
            self._in_place.append(kept[1])
        return self._add(index, name, layout, data, grad)

    def register_slices(self, name: str, data: Any = None, grad: Any = None, *, shape: Optional[Iterable[int]] = None,
                        dtype: Optional[DtypeLike] = None, delayed: bool = False, in_place: bool = False, uses: int = 1,
                        device: Optional[str] = None, grad_dtype: Optional[DtypeLike] = None) -> List[Parameter]:
        """Adds the n slices of an array of shape [n, ...], such as a weight that all layers keep in one array: slice i, called
        "name[i]", is a parameter of its own. The arguments are those of register."""
        flags = delayed * _ddp.DDP_PARAM_DELAYED | in_place * _ddp.DDP_PARAM_IN_PLACE
        desc, whole, kept = self._describe(name, data, grad, shape, dtype, flags, uses, device, grad_dtype)
        extents, element, of_grad, place = whole
        first = _ddp.ddp_register_slices(self._handle, desc)
        self._handle.keep(kept)
        if in_place and kept[1]:
            self._in_place.append(kept[1])
        layout = extents[1:], element, of_grad, place
        return [self._add(first + i, f"{name}[{i}]", layout, _slice(kept[0], i, extents[1:], element),
                          _slice(kept[1], i, extents[1:], of_grad)) for i in range(extents[0])]

    def _describe(self, name: str, data: Any, grad: Any, shape: Optional[Iterable[int]], dtype: Optional[DtypeLike],
                  flags: int, uses: int, device: Optional[str], grad_dtype: Optional[DtypeLike]) -> Tuple[Any, _Layout, Any]:
        where = device_of(device) if device else (_ddp.DDP_DEVICE_CPU, 0)
        values = None if data is None else self._take(f"{name}: data", data, where[1])
        grads = None if grad is None else self._take(f"{name}: grad", grad, where[1])
        known = values or grads
        extents = tuple(shape) if shape is not None else known.shape if known else ()
        element = dtype_of(dtype) if dtype is not None else known.dtype if known else _ddp.DDP_F32
        if known is None and shape is None:
            raise ValueError(f"{name}: say what it is, with data, grad or shape")
        of_grad = element if grad_dtype is None else dtype_of(grad_dtype)
        for what, memory, expected in (("data", values, element), ("grad", grads, of_grad)):
            if memory is not None:
                try:
                    _check_layout(f"{name}: {what}", memory, extents, expected)
                except TypeError as error:
                    if what == "data" or grad_dtype is not None:
                        raise
                    raise TypeError(f"{error}. If gradients have a type of their own, say grad_dtype="
                                    f"\"{_ddp.ddp_dtype_name(memory.dtype)}\"") from None
        places = {memory.device for memory in (values, grads) if memory} | ({where} if device else set())
        if len(places) > 1:
            raise ValueError(f"{name}: data, grad and device are on {' and '.join(sorted(map(device_name, places)))}; they "
                             "must be in one place")
        place = places.pop() if places else (_ddp.DDP_DEVICE_CPU, 0)
        return (_description(name, extents, element, values, grads, flags, uses, place, of_grad), (extents, element, of_grad, place),
                (values, grads))

    def _add(self, index: int, name: str, layout: _Layout, data: Any, grad: Any) -> Parameter:
        parameter = Parameter(index)
        parameter.name, (parameter.shape, parameter.dtype, parameter.grad_dtype, place) = name, layout
        parameter.device = device_name(place)
        parameter.data, parameter.grad, parameter._context_ref = data, grad, weakref.ref(self)
        self.parameters.append(parameter)
        return parameter

    def register_buffer(self, name: str, data: Any) -> None:
        """Adds state that is not trained, such as running means: rank 0's is sent to every rank."""
        values = self._take(f"{name}: data", data)
        _ddp.ddp_register_buffer(self._handle,
                                 _description(name, values.shape, values.dtype, values, None, 0, 0, values.device))
        self._handle.keep(values)
        self._buffers.append(values)
        self._buffer_arrays.append(data)

    def commit(self) -> None:
        """Ends registration: ranks compare their parameters, and rank 0's values go to everyone."""
        _ddp.ddp_commit(self._handle)

    # A STEP

    def step_begin(self) -> None:
        """Starts a step, before the forward pass. Views may move here."""
        _ddp.ddp_step_begin(self._handle)

    def put(self, param: int, grad: Any, *, add: bool = False) -> None:
        """Copies a gradient, from any readable array on the CPU, to its place (the registered grad, or the view), and
        announces it. add: adds to what was put since the last synced step, in no_sync and for a parameter with several
        uses. Otherwise it replaces that."""
        parameter = self.parameters[param]
        what = f"{parameter.name}: grad"
        source = memory_of(what, grad, writable=False)
        same_layout(what, source, parameter.shape, parameter.grad_dtype)
        _ddp.ddp_put(self._handle, param, source.address, add * _ddp.DDP_PUT_ADD)

    def grad_ready_sparse(self, param: int, indices: Any, values: Any) -> None:
        """The gradient is zero except in these rows (int64). Both arrays are copied."""
        parameter = self.parameters[param]
        whats = f"{parameter.name}: indices", f"{parameter.name}: values"
        rows, each = memory_of(whats[0], indices, False), memory_of(whats[1], values, False)
        same_layout(whats[0], rows, (rows.count,), _ddp.DDP_I64)
        same_layout(whats[1], each, (rows.count, *parameter.shape[1:]), parameter.grad_dtype)
        _ddp.ddp_grad_ready_sparse(self._handle, param, rows.address, each.address, rows.count)

    def grad_ready_factors(self, param: int, left: Any, right: Any) -> None:
        """The gradient, an n x m matrix, is left^T right: rows x n and rows x m; both are copied."""
        parameter = self.parameters[param]
        whats = f"{parameter.name}: left", f"{parameter.name}: right"
        a, b = memory_of(whats[0], left, False), memory_of(whats[1], right, False)
        n, m = parameter.shape[0], count_of(parameter.shape[1:])
        rows = a.count // n if n else 0
        same_layout(whats[0], a, (rows, n), parameter.grad_dtype)
        same_layout(whats[1], b, (rows, m), parameter.grad_dtype)
        _ddp.ddp_grad_ready_factors(self._handle, param, a.address, b.address, rows)

    def finalize(self) -> None:
        """The end of the backward pass: waits until every gradient is the mean over ranks. It raises an
        exception of a hook."""
        self._end_step(_ddp.ddp_finalize)

    def finalize_async(self) -> None:
        """finalize without waiting. wait_param and finalize follow."""
        _ddp.ddp_finalize_async(self._handle)

    def wait_param(self, param: int) -> None:
        """After finalize_async: waits until this gradient is final."""
        _ddp.ddp_wait_param(self._handle, param)

    def discard(self) -> None:
        """Ends a step that went wrong, on every rank; nothing is written back."""
        self._end_step(_ddp.ddp_step_discard)

    def set_sync(self, sync: bool) -> None:
        """Whether the following steps communicate."""
        _ddp.ddp_set_sync(self._handle, int(sync))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """with ctx.no_sync(): steps in here do not communicate. The program adds gradients up, in its own arrays or in views."""
        self.set_sync(False)
        try:
            yield
        finally:
            self.set_sync(True)

    # GRADIENTS

    def grad_view(self, param: int) -> Memory:
        """The gradient's place in its bucket. Write the gradient to numpy.asarray(ctx.grad_view(p)) or
        torch.from_dlpack(...), and nothing is ever copied. Valid until layout_generation changes, in step_begin. An
        array that is kept longer is harmless, but no longer the gradient. On a GPU, taking it makes no stream wait:
        libddp has waited in commit and finalize, and after finalize_on and wait_param_on the mean is there in the order
        of their stream."""
        parameter = self.parameters[param]
        return Memory.at(_ddp.ddp_grad_view(self._handle, param), parameter.grad_dtype, parameter.shape, self._layout(), False,
                         device_of(parameter.device))

    @property
    def layout_generation(self) -> int:
        """Grows when views move."""
        return _ddp.ddp_layout_generation(self._handle)

    def sparse_gradient(self, param: int) -> Tuple[Memory, Memory]:
        """The reduced gradient of a sparse parameter: copies of the rows' indices and values."""
        parameter = self.parameters[param]
        indices, values, count = _ddp.ddp_sparse_gradient(self._handle, param)
        return (copied(indices, _ddp.DDP_I64, (count,)),
                copied(values, parameter.grad_dtype, (count, *parameter.shape[1:])))

    # NORMS

    def track_grad_norm(self, p: float = 2, params: Optional[Iterable[int]] = None) -> int:
        """Before commit: each synced step has the p-norm (1, 2 or math.inf) of the reduced gradients of these parameters, or
        of all that are registered. Returns the norm's number (ddp/norm.h)."""
        chosen = list(range(len(self.parameters)) if params is None else params)
        if not chosen:
            raise ValueError("track_grad_norm: params is empty; give parameters, or None for all")
        return _ddp.ddp_track_grad_norm(self._handle, p, chosen)

    def grad_norm(self, norm: int) -> float:
        """The norm in the last step, before clipping; the same on every rank. After finalize."""
        return _ddp.ddp_grad_norm(self._handle, norm)

    def clip_grad_norm(self, norm: int, max_norm: float) -> float:
        """Multiplies the norm's gradients by min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does.
        Returns the norm before. One that is not finite raises NonfiniteError on all ranks, and nothing is clipped."""
        return _ddp.ddp_clip_grad_norm(self._handle, norm, max_norm)

    def clip_factor(self, norm: int, max_norm: float) -> float:
        """The number by which clip_grad_norm would multiply, for Optimizer.step(scale), which saves a pass over the gradients. Changes
        nothing. Raises the errors of clip_grad_norm."""
        return _ddp.ddp_clip_factor(self._handle, norm, max_norm)

    # WHO TAKES PART

    def mark_unused(self, params: Iterable[int]) -> None:
        """These gradients will not come in this step."""
        _ddp.ddp_mark_unused(self._handle, list(params))

    def param_used(self, param: int) -> bool:
        """Whether any rank used the parameter in the last synced step."""
        return bool(_ddp.ddp_param_used(self._handle, param))

    def set_frozen(self, params: Iterable[int], frozen: bool = True) -> None:
        """Freezes parameters, or thaws them."""
        _ddp.ddp_set_frozen(self._handle, list(params), int(frozen))

    def skip(self, params: Iterable[int], authority: int = -1) -> None:
        """These parameters take no part in the next step. authority: the rank whose choice counts."""
        _ddp.ddp_skip_params(self._handle, list(params), authority)

    def skipped(self, param: int) -> bool:
        """Whether the parameter is skipped in the step under way or in the next one."""
        return _ddp.ddp_skipped(self._handle, param) == 1

    def set_weight(self, weight: float) -> None:
        """This rank's weight in the weighted mean: the samples of its batch."""
        _ddp.ddp_set_weight(self._handle, weight)

    def join(self) -> None:
        """Call it instead of step_begin when this rank has no more inputs. It takes part until all ranks have
        joined."""
        self._require_values("join")
        self._end_step(_ddp.ddp_join)

    # BUCKETS

    @property
    def bucket_count(self) -> int:
        """The number of buckets; -1 before commit."""
        return _ddp.ddp_context_bucket_count(self._handle)

    def param_bucket(self, param: int) -> int:
        """The bucket that a parameter is in."""
        return _ddp.ddp_context_param_bucket(self._handle, param)

    def request_rebuild(self) -> None:
        """Records the ready order again in the next synced step, and rebuilds the buckets in this order."""
        _ddp.ddp_request_rebuild(self._handle)

    def plan(self) -> str:
        """The bucket plan, as JSON."""
        return _ddp.ddp_plan_save(self._handle)

    def adopt_plan(self, plan: str) -> None:
        """Uses a saved plan."""
        _ddp.ddp_plan_adopt(self._handle, plan)

    def bucket_sizes(self, initial: bool = False) -> List[int]:
        """Bytes of gradients in each bucket, now or when committed."""
        capacity = len(self.parameters)
        return _ddp.ddp_stats_bucket_sizes(self._handle, int(initial), capacity)

    def ready_order(self) -> List[Parameter]:
        """The order in which gradients became ready when libddp last recorded it."""
        found = _ddp.ddp_stats_ready_order(self._handle, len(self.parameters))
        return [self.parameters[param] for param in found]

    def stats(self) -> Stats:
        """The counts and times of the context."""
        values = _ddp.ddp_stats()
        _ddp.ddp_stats_get(self._handle, values)
        return Stats.of(values)

    # THE REST

    def average_parameters(self, group: Optional[Group] = None) -> None:
        """Averages the values of all floating-point and complex parameters over the group, in place."""
        self._require_values("average_parameters")
        _ddp.ddp_average_parameters(self._handle, group)

    def set_group(self, group: Group) -> None:
        """Continues in another group, between steps or after a failure."""
        _ddp.ddp_context_set_group(self._handle, group)
        self._handle.end_step(False)

    def abort(self, reason: Optional[str] = None) -> None:
        """Breaks the context and its group on every rank."""
        _ddp.ddp_context_abort(self._handle, reason)

    def close(self) -> None:
        """Frees the context. Never waits for other ranks. Arrays over views stay readable."""
        self._handle.end_step(False)
        self._handle.close()
        self._held = (-1, None)

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _check_layout(what: str, memory: Memory, shape: Tuple[int, ...], dtype: int) -> None:
    """As same_layout, but an array of float16 may hold the bytes of bfloat16, which NumPy does not have."""
    if dtype == _ddp.DDP_BF16 and memory.dtype == _ddp.DDP_F16:
        dtype = _ddp.DDP_F16
    same_layout(what, memory, shape, dtype)


def _slice(memory: Optional[Memory], i: int, shape: Tuple[int, ...], dtype: int) -> Optional[Memory]:
    """The i-th of the parts of this shape."""
    if memory is None:
        return None
    step = count_of(shape) * _ddp.ddp_dtype_size(dtype)
    return Memory.at(memory.address + i * step, dtype, shape, memory, memory.readonly, memory.device)


def _description(name: str, shape: Sequence[int], dtype: int, data: Optional[Memory], grad: Optional[Memory], flags: int,
                 uses: int, device: Tuple[int, int], grad_dtype: int = 0) -> Any:
    desc = _ddp.ddp_param_desc()
    desc.name = name
    desc.set_shape(list(shape))
    desc.dtype = dtype
    desc.grad_dtype = grad_dtype
    desc.device.kind, desc.device.index = device
    desc.data = data.address if data else None
    desc.grad = grad.address if grad else None
    desc.flags = flags
    desc.uses = uses
    return desc
