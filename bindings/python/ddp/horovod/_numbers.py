"""Element types of tensors by NumPy's names, over the nine types of libddp, and factors."""
from __future__ import annotations

import enum
import math
from typing import Any, Tuple

import numpy as np

from .. import _ddp
from .._ddp import Memory

Array = Any  # of NumPy, contiguous; elements of bfloat16 are its bits, as uint16

_NATIVE = {
    "float16": _ddp.DDP_F16, "bfloat16": _ddp.DDP_BF16, "float32": _ddp.DDP_F32, "float64": _ddp.DDP_F64, "int32": _ddp.DDP_I32,
    "int64": _ddp.DDP_I64, "uint8": _ddp.DDP_U8, "complex64": _ddp.DDP_C64, "complex128": _ddp.DDP_C128,
}  # yapf: disable
_WIDENED = {"int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}  # sums wrap as in the narrow type
_HALVES = ("float16", "bfloat16")


class ReduceOp(enum.IntEnum):
    """How allreduce and reducescatter combine the tensors of ranks."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


OPS = {ReduceOp.Average: _ddp.DDP_AVG, ReduceOp.Sum: _ddp.DDP_SUM, ReduceOp.Min: _ddp.DDP_MIN, ReduceOp.Max: _ddp.DDP_MAX,
       ReduceOp.Product: _ddp.DDP_PROD}


def stored(array: Any) -> Tuple[Array, str]:
    """An array of NumPy in the form that this package passes around, and the name of its type."""
    name = array.dtype.name
    return (array.view(np.uint16), name) if name == "bfloat16" else (array, name)


def storage(dtype: str) -> Any:
    """The NumPy type that holds elements of this type."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def check_reducible(dtype: str) -> None:
    """Refuses types that have no sum."""
    if dtype not in _NATIVE and dtype not in _WIDENED:
        raise ValueError(f"elements of {dtype} cannot be reduced; there are {', '.join((*_NATIVE, *_WIDENED))}")


def reduced_type(dtype: str) -> str:
    """The type in which libddp reduces elements of this type."""
    return _WIDENED.get(dtype, dtype)


def memory(array: Array, dtype: str) -> Memory:
    """An array as libddp takes it, for a reduction."""
    return Memory.at(array.ctypes.data, _NATIVE[dtype], (array.size,), array)


def bytes_of(array: Array) -> Array:
    """The bytes of a contiguous array, for collectives that do not compute."""
    return array.reshape(-1).view(np.uint8)


def scaled(array: Array, dtype: str, factor: float) -> Array:
    """array * factor: integers in float64 and towards zero, halves in float32. A new array unless the factor is 1."""
    if factor == 1.0:
        return array
    if dtype == "bfloat16":
        return to_bfloat16(from_bfloat16(array) * np.float32(factor))
    if dtype == "float16":
        return (array.astype(np.float32) * np.float32(factor)).astype(np.float16)
    if array.dtype.kind in "iu":
        return np.trunc(array.astype(np.float64) * factor).astype(array.dtype)
    return array * array.dtype.type(factor)


def from_bfloat16(bits: Array) -> Array:
    """bfloat16 as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: Array) -> Array:
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def in_float64(array: Array, dtype: str) -> Array:
    """The values of an array in float64."""
    return (from_bfloat16(array) if dtype == "bfloat16" else array).astype(np.float64)


def from_float64(values: Array, dtype: str) -> Array:
    """Values in float64, rounded to a type."""
    return to_bfloat16(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(storage(dtype))


def adasum(one: Array, other: Array) -> Array:
    """Two gradients in float64 added so that a direction that both have counts once: where they are orthogonal it is their sum, where
    they are equal their mean."""
    dot = float(np.vdot(one, other).real)
    squares = [float(np.vdot(each, each).real) for each in (one, other)]
    first, second = (1.0 - dot / (2.0 * square) if square > 0 else 1.0 for square in squares)
    return first * one + second * other


def is_power_of_two(number: int) -> bool:
    """Whether adasum can pair so many ranks."""
    return math.log2(number).is_integer()
