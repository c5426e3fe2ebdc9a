"""Trees of NumPy arrays: a model's parameters and gradients as nested dicts, lists and tuples.

    from ddp.numpy import DataParallel

    parallel = DataParallel(params)      # ddprun -n 2 python3 train.py
    params = parallel.params             # every rank starts from rank 0's
    for x, y in batches:
        grads = parallel.mean(gradients_of(params, x, y))
"""
# mypy: ignore-errors
# NumPy may not be there, and trees have no type.
from __future__ import annotations

import numpy

from ._gradient_context import GradientContext
from .group import Group

__all__ = ["DataParallel"]


class Tree:
    """A tree of arrays whose leaves are the parameters of a context, which this object closes."""

    def __init__(self, params, context):
        self.context = context
        paths, leaves, self._structure = self._flatten(params)
        if not leaves:
            raise ValueError("params: the tree has no arrays")
        values = [self._writable(leaf) for leaf in leaves]
        self._dtypes = [value.dtype for value in values]
        self._parameters = [self._register(path, value) for path, value in zip(paths, values)]
        self._commit(values)
        self._started(values, leaves)

    def close(self):
        """Frees the context."""
        self.context.close()

    def _flatten_like_params(self, what, tree):
        """The leaves of a tree that must have the structure, types and shapes of params, and what is left without them."""
        paths, leaves, structure = self._flatten(tree)
        if structure != self._structure:
            known = {parameter.name for parameter in self._parameters}
            apart = [f"{text} {', '.join(sorted(names)[:5])}{' and more' if len(names) > 5 else ''}"
                     for text, names in (("it lacks", known - set(paths)), ("params has no", set(paths) - known)) if names]
            raise ValueError(f"{what}: the tree is not that of params: "
                             f"{' and '.join(apart) or 'the order, the keys or the types of its branches differ'}")
        for parameter, dtype, leaf in zip(self._parameters, self._dtypes, leaves):
            if (leaf.dtype, tuple(leaf.shape)) != (dtype, parameter.shape):
                raise ValueError(f"{what}: {parameter.name} is {leaf.dtype}{list(leaf.shape)}, "
                                 f"and was {dtype}{list(parameter.shape)} in params. Make a new {type(self).__name__} if the model has changed")
        return leaves, structure

    # WHAT OTHER KINDS OF TREES AND ARRAYS DO IN THEIR WAY

    def _flatten(self, tree):
        """The path of each leaf as a text, the leaves, and what is left without them."""
        paths, leaves = [], []
        structure = _strip(tree, "", paths, leaves)
        return paths, [numpy.asarray(leaf) for leaf in leaves], structure

    def _unflatten(self, structure, leaves):
        return _fill(structure, iter(leaves))

    def _writable(self, leaf):
        return numpy.array(leaf, order="C")

    def _register(self, path, value):
        return self.context.register(path, value)

    def _commit(self, _):
        self.context.commit()

    def _started(self, values, leaves):
        """values: copies of the leaves, which are rank 0's now."""

    def _put(self, parameter, leaf):
        self.context.put(parameter, numpy.ascontiguousarray(leaf).reshape(leaf.shape))

    def _result(self, memory, _):
        return numpy.array(memory)


class DataParallel(Tree):
    """Averages trees of gradients over the ranks of a group.

    params: a tree with the parameters: dicts, lists, tuples and named tuples of arrays, and None. Its arrays are copied. group: a
    ddp.Group; None: that of the job. The other arguments are those of ddp.Context, which is `context`: for hooks, statistics and so on.

    params is afterwards the tree of rank 0's values, which the program keeps itself from then on.
    """

    def __init__(self, params, group=None, **options):
        self.group = group if group is not None else Group()
        super().__init__(params, GradientContext(self.group, **options))

    def mean(self, grads):
        """The mean over ranks of a tree of gradients, which has the structure of params. Collective: it begins and ends a step. The
        arrays that it returns are the program's own."""
        leaves, structure = self._flatten_like_params("grads", grads)  # before the others wait for any
        announced = self._announced(leaves)
        if not announced:
            self.context.step_begin()
        for parameter, leaf in reversed(list(zip(self._parameters, leaves))):
            if parameter not in announced:
                self._put(parameter, leaf)
        self.context.finalize()
        return self._unflatten(structure, [self._result(parameter.view(), leaf) for parameter, leaf in zip(self._parameters, leaves)])

    # WHAT OTHER KINDS OF TREES AND ARRAYS DO IN THEIR WAY

    def _announced(self, _):
        """The parameters whose gradients the backward pass has announced already."""
        return ()

    def _started(self, values, leaves):
        self.params = self._unflatten(self._structure, [self._result(value, leaf) for value, leaf in zip(values, leaves)])

_LEAF = object()


class _Branch:
    """A part of a tree without its arrays, to compare and to fill again. Dictionaries compare, and count, in the order of their keys,
    whatever their own order is: that is the same on every rank and in every language."""

    def __init__(self, kind, keys, parts):
        self.kind, self.keys, self.parts = kind, keys, parts

    def __eq__(self, other):
        return isinstance(other, _Branch) and (self.kind, self.parts) == (other.kind, other.parts)


def _strip(tree, path, paths, leaves):
    """The tree as nested branches, with _LEAF for each array."""
    def part(key, value):
        return _strip(value, f"{path}.{key}" if path else str(key), paths, leaves)

    if tree is None:
        return None
    if isinstance(tree, dict):
        return _Branch(type(tree), list(tree), {key: part(key, tree[key]) for key in sorted(tree, key=str)})
    if isinstance(tree, (list, tuple)):
        keys = getattr(tree, "_fields", range(len(tree)))
        return _Branch(type(tree), list(keys), {key: part(key, value) for key, value in zip(keys, tree)})
    paths.append(path or "params")
    leaves.append(tree)
    return _LEAF


def _fill(structure, leaves):
    if structure is None:
        return None
    if structure is _LEAF:
        return next(leaves)
    filled = {key: _fill(part, leaves) for key, part in structure.parts.items()}
    values = [filled[key] for key in structure.keys]
    if issubclass(structure.kind, dict):
        return structure.kind(zip(structure.keys, values))
    return structure.kind(*values) if hasattr(structure.kind, "_fields") else structure.kind(values)
