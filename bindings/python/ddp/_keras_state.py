"""The variables of a model of Keras and of its optimizer, which ranks have in common."""
# mypy: ignore-errors
# Keras may not be there.
from __future__ import annotations

import zlib

import keras
import numpy

from ._errors import MismatchError


def trained(model):
    """(name, shape, type) of each trainable variable. No two have the same name."""
    names, found = {}, []
    for variable in model.trainable_variables:
        count = names[variable.path] = names.get(variable.path, 0) + 1
        found.append((variable.path if count == 1 else f"{variable.path}#{count}", tuple(variable.shape), _dtype_of(variable)))
    return found


def learned(model):
    """The variables that a step changes alike on all ranks."""
    return [*model.trainable_variables, *model.optimizer.variables]


def kept(model):
    """The weights that each rank's own batches change, such as moving averages, and those that nothing changes. Not the states of seeds."""
    known = {id(variable) for variable in model.trainable_variables}
    return [variable for variable in model.weights if id(variable) not in known]


def require_same(group, model):
    """Refuses models that differ, on all ranks. Collective."""
    lines = [f"{name}, {dtype}{list(shape)}" for name, shape, dtype in trained(model)]
    lines += [f"{variable.path}, not trained, {_dtype_of(variable)}{list(variable.shape)}" for variable in kept(model)]
    lines += [f"variable {index} of the optimizer {type(model.optimizer).__name__}, {_dtype_of(variable)}{list(variable.shape)}"
              for index, variable in enumerate(model.optimizer.variables)]
    mine = "\n".join(lines).encode()
    size = numpy.array([len(mine)])
    group.broadcast(size, 0)
    text = numpy.zeros(size[0], numpy.uint8)
    if group.rank == 0:
        text[:] = numpy.frombuffer(mine, numpy.uint8)
    group.broadcast(text, 0)
    theirs = text.tobytes().decode().split("\n")
    apart = next((index for index, (one, other) in enumerate(zip(lines, theirs)) if one != other), min(len(lines), len(theirs)))
    if lines == theirs:
        apart = -1
    for rank, first in enumerate(gathered(group, apart)):
        if first >= 0:
            said = f"rank 0 has {_line(theirs, first)}"
            if rank == group.rank:
                said += f", and rank {rank} has {_line(lines, first)}"
            raise MismatchError(f"model: rank {rank} has another model than rank 0, or another optimizer: {said}. Build and compile the same model on "
                                "all ranks. Keras numbers layers without a name: give them names if a rank has built others before", rank=rank)


def require_equal(group, model):
    """Refuses values that differ, on all ranks. Collective."""
    variables = learned(model)
    mine = numpy.array([zlib.crc32(numpy.ascontiguousarray(_value_of(variable)).tobytes()) for variable in variables], numpy.int64)
    everyone = gathered(group, mine)
    for rank, theirs in enumerate(everyone):
        for index in numpy.flatnonzero(theirs != everyone[0]):
            raise MismatchError(f"{variables[index].path}: rank {rank} has another value than rank 0. Change variables and the learning rate on all "
                                "ranks alike, and let callbacks decide by the logs, which are the same on all ranks", rank=rank)


def send(group, variables, root):
    """Overwrites variables with those of rank `root`. Collective."""
    values = [numpy.array(_value_of(variable), order="C") for variable in variables]
    works = [group.broadcast(value.reshape(-1).view(numpy.uint8), root, async_op=True) for value in values if value.size]
    for work in works:
        work.wait()
    if group.rank != root:
        for variable, value in zip(variables, values):
            variable.assign(value)


def gathered(group, values):
    """The numbers of all ranks: an array with a row for each. Collective."""
    mine = numpy.asarray(values, order="C")
    everyone = numpy.zeros((group.world_size, *mine.shape), mine.dtype)
    group.allgather(everyone.reshape(-1), mine.reshape(-1))
    return everyone


def _value_of(variable):
    return keras.ops.convert_to_numpy(variable)


def _dtype_of(variable):
    return keras.backend.standardize_dtype(variable.dtype)


def _line(lines, index):
    return lines[index] if index < len(lines) else f"{len(lines)} variables"
