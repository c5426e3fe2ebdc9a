"""The gradients of a model of TensorFlow or Keras, reduced over ranks."""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

import dataclasses
from typing import Any, List, Optional, Sequence, Tuple, Union

import tensorflow as tf

from ._job import ProcessSet
from ._numbers import ReduceOp
from ._tensorflow_ops import grouped_allreduce

Groups = Union[int, Sequence[Sequence[Any]], None]


@dataclasses.dataclass(frozen=True)
class Gradients:
    """How gradients are reduced: the arguments of DistributedOptimizer and DistributedGradientTape."""

    compression: Any
    op: ReduceOp
    process_set: ProcessSet
    sparse_as_dense: bool = False
    predivide: float = 1.0

    @classmethod
    def checked(cls, compression: Any, op: int, process_set: ProcessSet, sparse_as_dense: bool, predivide: float) -> "Gradients":
        """Refuses what cannot be combined."""
        if predivide != 1.0 and op != ReduceOp.Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        return cls(compression, ReduceOp(op), process_set, sparse_as_dense, predivide)

    @property
    def active(self) -> bool:
        """Whether there is another rank."""
        return bool(self.process_set.included()) and (self.process_set.size() or 1) > 1

    def reduce(self, gradients: Sequence[Any]) -> List[Any]:
        """The gradients of all ranks, in one call. None stays None: it must be so on all ranks."""
        if not self.active:
            return list(gradients)
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(each) if isinstance(each, tf.IndexedSlices) else each for each in gradients]
        results: List[Any] = list(gradients)
        for sparse in (False, True):  # factors are for dense ones
            places = [index for index, each in enumerate(gradients) if each is not None and isinstance(each, tf.IndexedSlices) == sparse]
            if places:
                factors: Tuple[float, float] = (1.0, 1.0) if sparse else (1 / self.predivide, self.predivide)
                reduced = grouped_allreduce([gradients[index] for index in places], compression=self.compression, op=self.op,
                                            prescale_factor=factors[0], postscale_factor=factors[1], process_set=self.process_set)
                for index, each in zip(places, reduced):
                    results[index] = each
        return results


class Accumulator:
    """Adds up the gradients of several backward passes before they travel."""

    def __init__(self, passes: int, average: bool):
        self._passes, self._average = passes, average
        self._sums: Optional[List[Any]] = None
        self._count: Any = None

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the sums."""
        with tf.init_scope():
            self._sums = [tf.Variable(tf.zeros(variable.shape, tf.as_dtype(variable.dtype)), trainable=False) for variable in variables]
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def add(self, gradients: Sequence[Any], apply: Any) -> None:
        """Adds gradients, and calls apply(sums) with every so manieth ones."""
        assert self._sums is not None
        for total, gradient in zip(self._sums, gradients):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))
        self._count.assign_add(1)

        def travel() -> Any:
            apply([total / self._passes if self._average else tf.convert_to_tensor(total) for total in self._sums or ()])
            for total in self._sums or ():
                total.assign(tf.zeros_like(total))
            return tf.constant(0)

        tf.cond(tf.equal(self._count % self._passes, 0), travel, lambda: tf.constant(0))
