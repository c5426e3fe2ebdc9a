"""Gradients in fewer bits on their way."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf


class Compressor:
    """Changes a tensor before and after a collective. Programs may write their own."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """The tensor that travels, and what decompress() needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The result in the type of the tensor that compress() was given."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating point travels as float16."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx)


class Compression:
    """The compressors, by the names that programs use."""

    none = NoneCompressor
    fp16 = FP16Compressor
