"""Collectives over tensors of PyTorch. Those that wait are functions of autograd's."""
# mypy: ignore-errors
# PyTorch may not be there.
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch

from .. import _job
from .._calls import Calls, changed, forget_handles
from .._calls import synchronize as _synchronize
from .._job import ProcessSet, global_process_set
from .._numbers import Array, ReduceOp
from .compression import Compression

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product


class _Adapter:
    """Tensors on the processor are used where they lie; others travel through a copy there."""

    def read(self, tensor: torch.Tensor) -> Tuple[Array, str]:
        """See Adapter."""
        if tensor.layout != torch.strided:
            raise ValueError(f"a dense tensor is expected, and this one is {tensor.layout}; there is sparse_allreduce_async")
        here = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if here.dtype == torch.bfloat16:
            return here.view(torch.int16).numpy().view(np.uint16), "bfloat16"
        array = here.numpy()
        return array, array.dtype.name

    def writable(self, tensor: torch.Tensor) -> Tuple[Array, str, Callable[[Array], None]]:
        """See Adapter."""
        array, dtype = self.read(tensor)
        if tensor.numel() == 0 or array.ctypes.data == tensor.data_ptr():
            return array, dtype, lambda result: None
        return array, dtype, lambda result: _copy_back(tensor, result, dtype)

    def make(self, array: Array, dtype: str, like: torch.Tensor) -> torch.Tensor:
        """See Adapter."""
        return _tensor(array, dtype).to(like.device)


def _tensor(array: Array, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _copy_back(tensor: torch.Tensor, result: Array, dtype: str) -> None:
    tensor.detach().copy_(_tensor(result, dtype))


_calls = Calls(_Adapter())
allreduce_, allreduce_async, allreduce_async_ = _calls.allreduce_, _calls.allreduce_async, _calls.allreduce_async_
grouped_allreduce_, grouped_allreduce_async = _calls.grouped_allreduce_, _calls.grouped_allreduce_async
grouped_allreduce_async_ = _calls.grouped_allreduce_async_
allgather_async, grouped_allgather_async = _calls.allgather_async, _calls.grouped_allgather_async
broadcast_, broadcast_async, broadcast_async_ = _calls.broadcast_, _calls.broadcast_async, _calls.broadcast_async_
reducescatter_async, grouped_reducescatter_async = _calls.reducescatter_async, _calls.grouped_reducescatter_async


def shutdown() -> None:
    """Leaves the job. Requests that wait fail. init() may join again."""
    forget_handles()
    _job.shutdown()


class _SparseHandle:
    """Two allgathers under way; called, it waits and returns the sum or mean."""

    def __init__(self, tensor: torch.Tensor, indices: int, values: int, divisor: int):
        self._tensor, self._indices, self._values, self._divisor = tensor, indices, values, divisor

    def __call__(self) -> torch.Tensor:
        indices, values = _synchronize(self._indices), _synchronize(self._values)
        return torch.sparse_coo_tensor(indices.t(), values / self._divisor if self._divisor > 1 else values, self._tensor.shape)


def sparse_allreduce_async(tensor: torch.Tensor, name: Optional[str] = None, op: int = Average,
                           process_set: ProcessSet = global_process_set) -> _SparseHandle:
    """Starts the sum or mean of a sparse tensor over ranks. Call the handle, or synchronize() it, for the result: a sparse tensor
    that may hold an index more than once."""
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async: op must be Average or Sum")
    local = tensor.detach().coalesce()
    prefix = None if name is None else f"sparse.{name}"
    indices = allgather_async(local.indices().t().contiguous(), prefix and prefix + ".indices", process_set)
    values = allgather_async(local.values(), prefix and prefix + ".values", process_set)
    return _SparseHandle(tensor, indices, values, (process_set.size() or 1) if op == Average else 1)


def synchronize(handle: Union[int, _SparseHandle]) -> Any:
    """Waits for the operation and returns its result. Raises HorovodInternalError if it failed."""
    return handle() if isinstance(handle, _SparseHandle) else _synchronize(handle)


# FUNCTIONS OF AUTOGRAD'S. The gradient of a mean is the mean of gradients, and so on.

class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        name, op, prescale, postscale, process_set = options
        return tuple(synchronize(grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, *rest = ctx.options
        return (None, *_Allreduce.apply((None, *rest), *gradients))


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, compression: Any = Compression.none,
              op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The reduction of a tensor over ranks; op: Average by default."""
    options = (name, _job.checked_op(op, average), prescale_factor, postscale_factor, process_set)
    compressed, ctx = compression.compress(tensor)
    result: torch.Tensor = compression.decompress(_Allreduce.apply(options, compressed)[0], ctx)
    return result


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None,
                      compression: Any = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """The reductions of a list of tensors, which become ready together."""
    options = (name, _job.checked_op(op, average), prescale_factor, postscale_factor, process_set)
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = _Allreduce.apply(options, *[tensor for tensor, _ in compressed])
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        means = grouped_allreduce(gradients, op=Average, process_set=ctx.process_set)
        rows = synchronize(allgather_async(torch.tensor([ctx.rows]), process_set=ctx.process_set))
        begins = rows[:ctx.process_set.rank()].sum(0).tolist()
        return (None, None, *[mean.narrow(0, begin, count) for mean, begin, count in zip(means, begins, ctx.rows)])


def allgather(tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensors of all ranks one after another along the first dimension, in which they may differ."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """As allgather, for a list of tensors."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("allgather: a tensor without dimensions cannot be gathered along the first")
    return list(_Allgather.apply(name, process_set, *tensors))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str],
                process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        mean = allreduce(gradient, op=Average, process_set=ctx.process_set)
        return mean if _job.rank() == ctx.root_rank else torch.zeros_like(mean), None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensor of rank root_rank (in the job)."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """As _calls.Calls.alltoall_async; the counts of the result are a tensor."""
    counts = splits.detach().cpu().numpy() if isinstance(splits, torch.Tensor) else splits
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    handle = _calls.alltoall_async(tensor, counts, name, process_set)
    return changed(handle, lambda result: (result[0], torch.tensor(result[1], dtype=like.dtype, device=like.device)))


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Optional[str], process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        return _Alltoall.apply(gradient.contiguous(), ctx.received, None, ctx.process_set)[0], None, None, None


def alltoall(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """The rows that all ranks send to this one; with splits also how many came from each rank."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        name, op, process_set, prescale, postscale = options
        return tuple(synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, op, process_set, prescale, postscale = ctx.options
        factor = prescale * postscale * (process_set.size() if op == Sum else 1)
        return (None, *grouped_allgather([gradient * factor for gradient in gradients], process_set=process_set))


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None, compression: Any = Compression.none, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's rows of the reduction of a tensor over ranks."""
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str] = None, compression: Any = Compression.none,
                          op: int = Average, process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """As reducescatter, for a list of tensors."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    results = _Reducescatter.apply((name, op, process_set, prescale_factor, postscale_factor), *[tensor for tensor, _ in compressed])
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed)]
