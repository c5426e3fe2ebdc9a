"""Arrays of any library as memory, element types and operations by any of their names."""
from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, ContextManager, Optional, Sequence, Tuple, Union

from . import _ddp
from ._ddp import Memory

DtypeLike = Union[int, str, Any]

_DTYPES = {
    "f16": _ddp.DDP_F16, "float16": _ddp.DDP_F16, "half": _ddp.DDP_F16,
    "bf16": _ddp.DDP_BF16, "bfloat16": _ddp.DDP_BF16,
    "f32": _ddp.DDP_F32, "float32": _ddp.DDP_F32, "single": _ddp.DDP_F32,
    "f64": _ddp.DDP_F64, "float64": _ddp.DDP_F64, "double": _ddp.DDP_F64, "float": _ddp.DDP_F64,
    "i32": _ddp.DDP_I32, "int32": _ddp.DDP_I32,
    "i64": _ddp.DDP_I64, "int64": _ddp.DDP_I64, "int": _ddp.DDP_I64,
    "u8": _ddp.DDP_U8, "uint8": _ddp.DDP_U8,
    "c64": _ddp.DDP_C64, "complex64": _ddp.DDP_C64,
    "c128": _ddp.DDP_C128, "complex128": _ddp.DDP_C128, "complex": _ddp.DDP_C128,
}  # yapf: disable
_DLPACK_CUDA, _LEGACY_STREAM = 2, 1
_CUDA_TYPES = {
    "<f2": _ddp.DDP_F16, "<f4": _ddp.DDP_F32, "<f8": _ddp.DDP_F64, "<i4": _ddp.DDP_I32, "<i8": _ddp.DDP_I64,
    "|u1": _ddp.DDP_U8, "<c8": _ddp.DDP_C64, "<c16": _ddp.DDP_C128,
}  # yapf: disable
_OPS = {"sum": _ddp.DDP_SUM, "avg": _ddp.DDP_AVG, "mean": _ddp.DDP_AVG, "prod": _ddp.DDP_PROD, "min": _ddp.DDP_MIN,
        "max": _ddp.DDP_MAX}


def dtype_of(dtype: DtypeLike) -> int:
    """A DDP_* type of a name ("f32", "float32"), of a NumPy, PyTorch or JAX dtype, or of itself."""
    if isinstance(dtype, int):
        if not _ddp.ddp_dtype_size(dtype):
            raise ValueError(f"{dtype} is no element type of libddp")
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    found = _DTYPES.get(name.rsplit(".", 1)[-1])
    if found is None:
        raise TypeError(f"the type {name} is not supported; libddp has f16, bf16, f32, f64, i32, i64, u8, c64 and c128")
    return found


def op_of(op: Union[int, str]) -> int:
    """A DDP_* operation of its name."""
    if isinstance(op, int):
        return op
    if op not in _OPS:
        raise ValueError(f"unknown operation {op!r}; there are {', '.join(_OPS)}")
    return _OPS[op]


def milliseconds(seconds: Optional[float]) -> int:
    """Seconds as libddp takes times: 0 for the default, never rounded down to it."""
    if seconds is None:
        return 0
    if not 0 < seconds < 1e9:
        raise ValueError(f"a time of {seconds} s is not positive and finite")
    return max(1, round(seconds * 1000))


def memory_of(what: str, array: Any, writable: bool = True, on_gpu: bool = False, stream: Any = None, index: int = 0) -> Memory:
    """The memory of an array, held; of the CPU, unless it may be on_gpu. `stream` comes after what the array's library has under
    way on a GPU for it. index: of its GPU, if the array does not say that. Errors name `what`."""
    if getattr(array, "requires_grad", False) and hasattr(array, "detach"):
        array = array.detach()  # PyTorch: the same memory, without the history of how it was computed
    try:
        if _shows_cuda_alone(array):
            memory = _of_cuda_interface(array, writable, stream_of(stream) or 0, index)
        else:
            with _current_device_of(array):
                usable = isinstance(array, Memory) and (array.device[0] or not (writable and array.readonly))
                memory = array if usable else Memory(array, writable, stream_of(stream) or 0)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        kind = type(error) if type(error) in (TypeError, ValueError) else ValueError
        place = gpu_of(array) if isinstance(error, BufferError) else None
        advice = f". The array is on {device_name(place)}: some libraries show it only while that is their current device" if place else ""
        raise kind(f"{what}: {error}{advice}") from error
    if memory.device[0] != _ddp.DDP_DEVICE_CPU and not on_gpu:
        raise TypeError(f"{what}: the array is on {device_name(memory.device)}, and memory of the CPU is expected")
    return memory


def _current_device_of(array: Any) -> ContextManager[Any]:
    """With the GPU of a tensor of PyTorch's as its current one, on which alone PyTorch shows the tensor."""
    torch = sys.modules.get("torch")
    if isinstance(array, getattr(torch, "Tensor", ())) and array.device.type == "cuda":
        device: ContextManager[Any] = torch.cuda.device(array.device)  # type: ignore[union-attr]
        return device
    return contextlib.nullcontext()


def _shows_cuda_alone(array: Any) -> bool:
    """numba's arrays have no other interface."""
    return hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__dlpack__")


def _of_cuda_interface(array: Any, writable: bool, stream: int, index: int) -> Memory:
    """Memory of an array that has __cuda_array_interface__, which does not say on which GPU."""
    facts = array.__cuda_array_interface__
    shape, (address, readonly) = tuple(facts["shape"]), facts["data"]
    code = facts["typestr"]
    if code not in _CUDA_TYPES:
        raise TypeError(f"the array's elements are {code}; libddp has {', '.join(sorted(_CUDA_TYPES))}")
    dtype = _CUDA_TYPES[code]
    if facts.get("mask") is not None:
        raise TypeError("the array has a mask; pass one without")
    if not _in_row_major_order(shape, facts.get("strides"), _ddp.ddp_dtype_size(dtype)):
        raise ValueError("the array is not contiguous in row-major order: pass a contiguous one, whose memory libddp can use as it is")
    if writable and readonly:
        raise ValueError("the array is read-only, and libddp has to write into it")
    theirs = facts.get("stream")
    if theirs is not None and theirs != (stream or _LEGACY_STREAM):
        raise ValueError(f"its library has work under way for the array on stream {theirs}, and libddp would use it in the order of stream "
                         f"{stream or _LEGACY_STREAM}: name that stream to libddp, in set_stream, or make the array where no stream is bound "
                         "to it")
    return Memory.at(address or 0, dtype, shape, array, readonly, (_ddp.DDP_DEVICE_CUDA, index))


def _in_row_major_order(shape: Tuple[int, ...], strides: Optional[Sequence[int]], size: int) -> bool:
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != size:
            return False
        size *= extent
    return True


def gpu_of(array: Any, index: int = 0) -> Optional[Tuple[int, int]]:
    """On which GPU an array says that it is, or on that of this index; None for all others."""
    if _shows_cuda_alone(array):
        return _ddp.DDP_DEVICE_CUDA, index
    if isinstance(array, Memory) or not hasattr(array, "__dlpack_device__"):
        return None
    try:
        kind, index = array.__dlpack_device__()
    except (TypeError, ValueError, BufferError, RuntimeError):
        return None  # memory_of says what is wrong with it
    return (_ddp.DDP_DEVICE_CUDA, int(index)) if kind == _DLPACK_CUDA else None


def device_name(device: Tuple[int, int]) -> str:
    """"cpu", or "cuda:1"."""
    return "cpu" if device[0] == _ddp.DDP_DEVICE_CPU else f"cuda:{device[1]}"


def device_of(name: str) -> Tuple[int, int]:
    """Kind and index of "cpu", "cuda" or "cuda:1"."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdigit():
        raise ValueError(f"{name!r} is no device; there are 'cpu' and 'cuda:0' and so on")
    return (_ddp.DDP_DEVICE_CUDA if kind == "cuda" else _ddp.DDP_DEVICE_CPU, int(index or "0"))


def stream_of(stream: Any) -> Optional[int]:
    """The handle of a stream: a number, or what PyTorch's, CuPy's and numba's objects hold. None: the legacy default stream."""
    for name in ("cuda_stream", "ptr", "handle", "value"):
        stream = getattr(stream, name, stream)
    return None if stream is None else int(stream)


def same_layout(what: str, memory: Memory, shape: Tuple[int, ...], dtype: int) -> None:
    """Refuses memory of another shape or type."""
    if memory.shape != tuple(shape):
        raise ValueError(f"{what}: its shape is {memory.shape}, but {tuple(shape)} is expected")
    if memory.dtype != dtype:
        raise TypeError(f"{what}: its type is {_ddp.ddp_dtype_name(memory.dtype)}, but {_ddp.ddp_dtype_name(dtype)} is expected")


def count_of(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)


class Bytes:
    """Memory of Python's own, for results that are copied out of the library."""

    def __init__(self, address: Optional[int], size: int):
        import ctypes  # pylint: disable=import-outside-toplevel
        self._bytes = ctypes.create_string_buffer(ctypes.string_at(address, size) if address and size else b"", max(size, 1))
        self.address = ctypes.addressof(self._bytes)


def copied(address: Optional[int], dtype: int, shape: Tuple[int, ...]) -> Memory:
    """A copy of memory of libddp's."""
    held = Bytes(address, count_of(shape) * _ddp.ddp_dtype_size(dtype))
    return Memory.at(held.address, dtype, tuple(shape), held)
