"""The bucket that communication hooks see (ddp/hook.h)."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, Optional, Tuple

from . import _ddp
from ._arrays import device_name, memory_of
from ._context_state import ContextState, Parameter
from ._ddp import Memory
from .group import Group
from .work import Work

Hook = Callable[[Group, "Bucket"], Optional[Work]]


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One parameter's gradient inside a bucket; parameter.data is its value."""

    parameter: Parameter
    array: Memory


class Bucket:
    """A bucket of gradients on its way, valid until the step ends.

    A hook leaves in it what every rank's gradients become: the mean, if `op` is ddp.AVG. numpy.asarray(bucket.buffer)
    and torch.from_dlpack(bucket.buffer) are its elements, without a copy. On a GPU whatever is done with them must run on
    the bucket's own stream, and other streams are refused: with torch.cuda.stream(torch.cuda.ExternalStream(bucket.stream)).
    """

    def __init__(self, handle: _ddp.Handle, context: ContextState):
        self._handle = handle
        self._context = context

    @property
    def index(self) -> int:
        """0, 1, ... in launch order."""
        return _ddp.ddp_bucket_index(self._handle)

    @property
    def is_last(self) -> bool:
        """Whether it is the last of the step."""
        return bool(_ddp.ddp_bucket_is_last(self._handle))

    @property
    def step(self) -> int:
        """The number of synced steps before this one."""
        return _ddp.ddp_bucket_step(self._handle)

    @property
    def dtype(self) -> int:
        """The type of its elements, ddp.F32 or another."""
        return _ddp.ddp_bucket_dtype(self._handle)

    @property
    def op(self) -> int:
        """The operation to apply over ranks: ddp.AVG or ddp.SUM."""
        return _ddp.ddp_bucket_op(self._handle)

    @property
    def device(self) -> str:
        """Where it lies: "cpu" or "cuda:0" and so on."""
        return device_name(self._place())

    @property
    def stream(self) -> Optional[int]:
        """For a bucket on a GPU: the gradients are there in the order of this stream, and the result must be too."""
        return _ddp.ddp_bucket_stream(self._handle)

    def _place(self) -> Tuple[int, int]:
        device = _ddp.ddp_bucket_device(self._handle)
        return device.kind, device.index

    @property
    def buffer(self) -> Memory:
        """All gradients as one flat array, with gaps of zeros; gradients in place have no gaps."""
        count = _ddp.ddp_bucket_count(self._handle)
        return self._shown(_ddp.ddp_bucket_buffer(self._handle), self.dtype, (count,))

    @property
    def gradients(self) -> List[Gradient]:
        """Each parameter's gradient."""
        return [self._gradient(i) for i in range(_ddp.ddp_bucket_param_count(self._handle))]

    def _gradient(self, i: int) -> Gradient:
        tensor = _ddp.ddp_tensor()
        _ddp.ddp_bucket_gradient(self._handle, i, tensor)
        shape = tuple(tensor.extent(d) for d in range(tensor.ndim))
        return Gradient(self._context.parameters[tensor.param], self._shown(tensor.data, tensor.dtype, shape))

    def _shown(self, address: Optional[int], dtype: int, shape: Tuple[int, ...]) -> Memory:
        return Memory.at(address or 0, dtype, shape, self._context._layout(), False, self._place(), self.stream or 0)

    def set_buffer(self, array: Any) -> None:
        """Says that the result is in this array: as many elements, in the bucket's layout, perhaps of another
        floating-point type. It is kept until the hook is called for this bucket again."""
        memory = memory_of("array", array, on_gpu=True, stream=self.stream)
        if memory.count != _ddp.ddp_bucket_count(self._handle):
            raise ValueError(f"array: it has {memory.count} elements, the bucket {_ddp.ddp_bucket_count(self._handle)}")
        _ddp.ddp_bucket_set_buffer(self._handle, memory.address, memory.dtype)
        self._context._results[self.index] = memory
