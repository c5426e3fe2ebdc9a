"""Collectives over tensors of TensorFlow: eager ones, and those of a tf.function.

In a tf.function each call is one operation of Python's, so a function with jit_compile=True refuses them. TensorFlow runs them in the order
of the program. So the gradients of a model travel in one call, and none waits for a thread that waits for another rank.
"""
# mypy: ignore-errors
# TensorFlow may not be there.
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

from . import _job
from . import numpy as arrays
from ._job import ProcessSet, global_process_set
from ._numbers import ReduceOp
from ._tensorflow_compression import Compression
from .exceptions import HorovodInternalError

Average, Sum, Adasum = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Adasum
Min, Max, Product = ReduceOp.Min, ReduceOp.Max, ReduceOp.Product

Tensors = Sequence[Any]


class FailedError(HorovodInternalError, tf.errors.FailedPreconditionError):
    """A collective failed in eager mode. In a tf.function TensorFlow makes an UnknownError of it, with the same message."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class WrongArgumentError(ValueError, tf.errors.InvalidArgumentError):
    """A collective has wrong arguments in eager mode. In a tf.function it is TensorFlow's InvalidArgumentError."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def _called(function: Callable[[List[Any]], List[Any]], tensors: Tensors, types: Sequence[Any], shapes: Sequence[Any]) -> List[Any]:
    """function(list of arrays), which returns a list of arrays, on tensors; now, or when the tf.function runs."""
    if tf.executing_eagerly():
        try:
            results = function([tensor.numpy() for tensor in tensors])
        except HorovodInternalError as error:
            raise FailedError(str(error)) from error
        except ValueError as error:
            raise WrongArgumentError(str(error)) from error
        return [tf.convert_to_tensor(result) for result in results]
    if not tf.compat.v1.get_default_graph().building_function:
        raise NotImplementedError("ddp.horovod.tensorflow: a session runs collectives in any order and in few threads, so ranks could wait "
                                  "for each other for ever; call them in eager mode or in a tf.function")
    found = tf.numpy_function(lambda *given: function(list(given)), tensors, list(types))
    for result, shape in zip(found, shapes):
        result.set_shape(shape)
    return list(found)


def _tensors(tensors: Tensors) -> List[Any]:
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def _first_unknown(tensors: Tensors) -> List[Any]:
    return [tf.TensorShape([None]).concatenate(tensor.shape[1:]) if tensor.shape.rank else tensor.shape for tensor in tensors]


def _reduced(tensors: Tensors, name: Optional[str], op: ReduceOp, prescale: float, postscale: float,
             process_set: ProcessSet) -> List[Any]:
    @tf.custom_gradient
    def reduce(*given: Any) -> Any:
        def gradient(*gradients: Any) -> Any:
            return _reduced(gradients, None, op, prescale, postscale, process_set)

        results = _called(lambda each: arrays.grouped_allreduce(each, None, name, op, prescale, postscale, process_set), given,
                          [tensor.dtype for tensor in given], [tensor.shape for tensor in given])
        return results, gradient

    return list(reduce(*tensors))


def grouped_allreduce(tensors: Tensors, average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
                      compression: Any = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                      name: Optional[str] = None) -> List[Any]:
    """The reductions of a list of tensors, which become ready together. tf.IndexedSlices are gathered. device_dense, device_sparse
    and ignore_name_scope: not needed, and taken because Horovod takes them."""
    del device_dense, device_sparse, ignore_name_scope
    checked = _job.checked_op(op, average)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    results: List[Any] = [None] * len(tensors)
    if dense:
        compressed = [compression.compress(tensor) for tensor in _tensors([tensors[index] for index in dense])]
        reduced = _reduced([tensor for tensor, _ in compressed], name, checked, prescale_factor, postscale_factor, process_set)
        for index, tensor, (_, ctx) in zip(dense, reduced, compressed):
            results[index] = compression.decompress(tensor, ctx)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            if checked not in (Average, Sum) or (prescale_factor, postscale_factor) != (1.0, 1.0):
                raise NotImplementedError("tf.IndexedSlices are reduced with Sum and Average and without factors only; "
                                          "sparse_as_dense=True makes them dense")
            values, indices = grouped_allgather([tensor.values, tensor.indices], process_set=process_set)
            if checked == Average:
                values = values / tf.cast(process_set.size(), values.dtype)
            results[index] = tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)
    return results


def allreduce(tensor: Any, average: Optional[bool] = None, device_dense: str = "", device_sparse: str = "",
              compression: Any = Compression.none, op: Optional[int] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              name: Optional[str] = None, process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False) -> Any:
    """The reduction of a tensor over ranks; op: Average by default."""
    return grouped_allreduce([tensor], average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor,
                             process_set, ignore_name_scope, name)[0]


def grouped_allgather(tensors: Tensors, name: Optional[str] = None, ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> List[Any]:
    """The tensors of all ranks one after another along the first dimension, in which they may differ."""
    del ignore_name_scope
    @tf.custom_gradient
    def gather(*given: Any) -> Any:
        def gradient(*gradients: Any) -> Any:
            means = _reduced(gradients, None, Average, 1.0, 1.0, process_set)
            rows = [tf.shape(tensor)[:1] for tensor in given]
            everyones = grouped_allgather(rows, process_set=process_set)
            begins = [tf.reduce_sum(each[:process_set.rank()]) for each in everyones]
            return [mean[begin:begin + count[0]] for mean, begin, count in zip(means, begins, rows)]

        results = _called(lambda each: arrays.grouped_allgather(each, name, process_set), given, [tensor.dtype for tensor in given],
                          _first_unknown(given))
        return results, gradient

    return list(gather(*_tensors(tensors)))


def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """As grouped_allgather, for a tensor."""
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """The tensor of rank root_rank (in the job)."""
    del ignore_name_scope
    @tf.custom_gradient
    def send(given: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            mean = _reduced([upstream], None, Average, 1.0, 1.0, process_set)[0]
            return mean if _job.rank() == root_rank else tf.zeros_like(mean)

        result = _called(lambda each: [arrays.broadcast(each[0], root_rank, name, process_set)], [given], [given.dtype], [given.shape])[0]
        return result, gradient

    return send(tf.convert_to_tensor(tensor))


def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None, ignore_name_scope: bool = False,
             process_set: ProcessSet = global_process_set) -> Union[Any, Tuple[Any, Any]]:
    """The rows that all ranks send to this one; with splits also how many came from each rank."""
    del ignore_name_scope
    output, received = _exchanged(tf.convert_to_tensor(tensor), [] if splits is None else splits, name, process_set)
    return output if splits is None else (output, received)


def _exchanged(tensor: Any, splits: Any, name: Optional[str], process_set: ProcessSet) -> Tuple[Any, Any]:
    counts = tf.cast(tf.convert_to_tensor(splits), tf.int32)

    @tf.custom_gradient
    def exchange(given: Any) -> Any:
        def call(each: List[Any]) -> List[Any]:
            output, received = arrays.synchronize(arrays.alltoall_async(each[0], each[1] if each[1].size else None, name, process_set))
            return [output, np.array(received, np.int32)]

        output, received = _called(call, [given, counts], [given.dtype, tf.int32], [*_first_unknown([given]), [process_set.size()]])

        def gradient(upstream: Any, _: Any) -> Any:
            return _exchanged(upstream, received, None, process_set)[0]

        return (output, received), gradient

    output, received = exchange(tensor)
    return output, received


def grouped_reducescatter(tensors: Tensors, device_dense: str = "", compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                          name: Optional[str] = None) -> List[Any]:
    """This rank's rows of the reductions of a list of tensors."""
    del device_dense
    compressed = [compression.compress(tensor) for tensor in _tensors(tensors)]

    @tf.custom_gradient
    def scatter(*given: Any) -> Any:
        def gradient(*gradients: Any) -> Any:
            factor = prescale_factor * postscale_factor * ((process_set.size() or 1) if op == Sum else 1)
            return grouped_allgather([each * tf.cast(factor, each.dtype) for each in gradients], process_set=process_set)

        results = _called(lambda each: arrays.grouped_reducescatter(each, name, op, process_set, prescale_factor, postscale_factor), given,
                          [tensor.dtype for tensor in given], _first_unknown(given))
        return results, gradient

    results = scatter(*[tensor for tensor, _ in compressed])
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed)]


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none, op: int = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the reduction of a tensor over ranks."""
    del ignore_name_scope
    return grouped_reducescatter([tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name)[0]


def broadcast_variables(variables: Tensors, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False) -> None:
    """Overwrites variables with those of rank root_rank. inplace: not needed, and taken because Horovod takes it."""
    del inplace
    listed = list(variables)
    values = [tf.convert_to_tensor(variable) for variable in listed]
    def send(each: List[Any]) -> List[Any]:
        handles = [arrays.broadcast_async(value, root_rank, None, process_set) for value in each]
        return [arrays.synchronize(handle) for handle in handles]

    for variable, value in zip(listed, _called(send, values, [value.dtype for value in values], [value.shape for value in values])):
        variable.assign(value)


def broadcast_(variables: Tensors, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """As broadcast_variables, and returns them."""
    del name
    broadcast_variables(variables, root_rank, process_set)
    return list(variables)


# FACTS as tensors, which a tf.function asks for again whenever it runs: in an elastic job they change.

def _fact(function: Callable[[], int]) -> Any:
    return _called(lambda _: [np.array(function(), np.int32)], [tf.constant(0)], [tf.int32], [[]])[0]


def rank_op(name: Optional[str] = None) -> Any:
    """This process's rank in the job."""
    del name
    return _fact(_job.rank)


def local_rank_op(name: Optional[str] = None) -> Any:
    """This process's rank on its host."""
    del name
    return _fact(_job.local_rank)


def local_size_op(name: Optional[str] = None) -> Any:
    """The number of ranks on this host."""
    del name
    return _fact(_job.local_size)


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """The number of ranks of a process set."""
    del name
    return _fact(lambda: len(_job.ranks_of(process_set_id)))


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """1 if this process is in a process set, and 0 if not."""
    del name
    return _fact(lambda: int(_job.rank() in _job.ranks_of(process_set_id)))
