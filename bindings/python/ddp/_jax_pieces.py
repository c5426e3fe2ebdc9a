"""A gradient transformation, such as optax's, computed for the pieces of a rank.

JAX traces the transformation once, with whole leaves, as on a rank that has all of them. So a mask or a label that goes by a leaf's
name, shape or size is that of the whole leaf. The rank then computes what JAX has traced, with its pieces in place of the leaves. That
gives the same numbers where each element depends on the same element of the same leaf, and on what all ranks have, such as a count of
steps. Any other operation is refused by its name, on all ranks alike.
"""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import zlib
from typing import Any, NamedTuple, Optional

import jax
import numpy
from jax import lax
from jax import numpy as jnp

from ._errors import UnsupportedError

#: Operations that compute each element from the same element of each operand.
_ELEMENTWISE = frozenset(
    "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj convert_element_type "
    "copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log "
    "log1p logistic lt max min mul ne neg nextafter not or polygamma population_count pow real reduce_precision rem round rsqrt select_n "
    "shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor zeta".split())
#: Operations that move elements: of equal ones nothing changes.
_MOVING = frozenset("broadcast_in_dim copy reshape rev slice squeeze transpose".split())
_CALLING = frozenset("checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit pjit remat remat2".split())


class Leaf(NamedTuple):
    """A leaf of the parameters. common: all ranks own it, as they do a count of steps."""

    name: str
    like: Any  # its shape and type
    cut: bool
    common: bool


class _Value(NamedTuple):
    """In the computation of a rank. leaf: the number of the one leaf that it depends on; None: only on what all ranks have. uniform: all
    of its elements are equal, and `array` is a scalar. The array of a cut leaf is flat. None: not on this rank."""

    leaf: Optional[int]
    uniform: bool
    array: Any = None


class Transformation:
    """tx for a tree of parameters: its init, and its update with the sum of parameters and updates."""

    def __init__(self, tx, leaves, structure):
        """structure: of the tree."""
        if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
            raise TypeError(f"tx: a gradient transformation with init and update is expected, such as optax.adamw(1e-3), not {tx!r}")
        self._leaves = leaves
        params = jax.tree_util.tree_unflatten(structure, [leaf.like for leaf in leaves])
        self._init, state = jax.make_jaxpr(tx.init, return_shape=True)(params)

        def step(grads, state, params):
            updates, state = tx.update(grads, state, params)
            return jax.tree_util.tree_map(lambda param, update: jnp.asarray(param + update).astype(param.dtype), params, updates), state

        self._step, (_, after) = jax.make_jaxpr(step, return_shape=True)(params, state, params)
        slots, self.state_structure = jax.tree_util.tree_flatten_with_path(state)
        self.paths = [path for path, _ in slots]
        self.likes = [like for _, like in slots]
        if _described(after) != _described(state):
            raise UnsupportedError("tx: its update returns a state of another structure, or with other shapes or types, than its init. Leave out "
                                   "what changes it")
        self._states = self._find_forms()

    def fingerprint(self):
        """A number that two transformations have in common if they compute the same, also with the same hyperparameters."""
        found = 0
        for traced in self._init, self._step:
            for text in _described_operations(traced.jaxpr, traced.consts):
                found = zlib.crc32(text.encode(), found)
        return found

    # A RANK'S PART

    def owner_of(self, slot):
        """The number of the leaf that an array of the state belongs to. None: all ranks have it."""
        return self._states[slot].leaf

    def slots(self, pieces):
        """The numbers of the arrays of the state that belong to pieces: by the number of each leaf of which a rank has elements, and which is
        not common, how many. None: those that all ranks have."""
        if pieces is None:
            return [slot for slot, form in enumerate(self._states) if form.leaf is None]
        return [slot for slot, form in enumerate(self._states) if form.leaf in pieces]

    def init(self, pieces, params):
        """The arrays of slots(pieces). params: arrays by leaf, also of common ones. A function for jax.jit, as step(). It is computed
        for None by itself: only then has it the same bits on all ranks."""
        computation = _Computation(self._leaves, pieces or {})
        results = computation.run(self._init.jaxpr, self._init.consts, self._inputs(self._with_empty(params)))
        return [jnp.copy(array) for array in self._state_of(computation, pieces, results)]  # two may be one, and are donated later

    def step(self, pieces, grads, own, common, params):
        """New values by leaf, and the new arrays of slots(pieces). own, common: those of slots() for the pieces and for None."""
        computation, states = _Computation(self._leaves, pieces or {}), list(self._states)
        for slot, array in (*zip(self.slots(pieces or {}), own), *zip(self.slots(None), common)):
            states[slot] = states[slot]._replace(array=array)
        grads, params = self._with_empty(grads), self._with_empty(params)
        results = computation.run(self._step.jaxpr, self._step.consts, [*self._inputs(grads), *states, *self._inputs(params)])
        indices = pieces if pieces is not None else [index for index, leaf in enumerate(self._leaves) if leaf.common]
        values = {index: computation.in_form(results[index], self._form_of(index), self._leaves[index].like) for index in indices}
        return values, self._state_of(computation, pieces, results[len(self._leaves):])

    def _state_of(self, computation, pieces, results):
        return [computation.in_form(results[slot], self._states[slot], self.likes[slot]) for slot in self.slots(pieces)]

    def _with_empty(self, arrays):
        """With the common leaves that have no elements."""
        return {**{index: jnp.zeros(leaf.like.shape, leaf.like.dtype) for index, leaf in enumerate(self._leaves)
                   if leaf.common and not leaf.like.size}, **arrays}

    def _form_of(self, index):
        return _Value(None if self._leaves[index].common else index, False)

    def _inputs(self, arrays):
        return [self._form_of(index)._replace(array=arrays.get(index)) for index in range(len(self._leaves))]

    def _find_forms(self):
        """Finds out which leaf each array of the state depends on, after any number of steps. Refuses a tx that is not for pieces."""
        check, inputs, count = _Computation(self._leaves, None), self._inputs({}), len(self._leaves)
        forms = check.run(self._init.jaxpr, self._init.consts, inputs)
        while True:
            results = check.run(self._step.jaxpr, self._step.consts, [*inputs, *forms, *inputs])
            after = [check.joined("update", pair) for pair in zip(forms, results[count:])]
            if after == forms:
                break
            forms = after
        for index, result in enumerate(results[:count]):
            form = check.joined("update", (self._form_of(index), result))
            if form.leaf is not None and self._leaves[index].common:
                check.refuse_two("update", index, form.leaf)
        return forms


class _Computation:
    """Computes what JAX has traced with whole leaves, for pieces: by the number of a leaf, how many elements a rank has. None: it only
    looks whether that can be."""

    def __init__(self, leaves, pieces):
        self._leaves, self._pieces = leaves, pieces

    def run(self, jaxpr, consts, inputs):
        """The results of a jaxpr."""
        known = dict(zip(jaxpr.invars, inputs))
        known.update((var, self._constant(value)) for var, value in zip(jaxpr.constvars, consts))

        def read(atom):
            return self._constant(atom.val) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._results(equation, [read(atom) for atom in equation.invars])))
        return [read(atom) for atom in jaxpr.outvars]

    def joined(self, operation, values):
        """The form that has room for each of these values."""
        leaves = sorted({value.leaf for value in values if value.leaf is not None})
        if len(leaves) > 1:
            self.refuse_two(operation, *leaves[:2])
        if leaves and self._leaves[leaves[0]].cut and any(value.leaf is None and not value.uniform for value in values):
            self._refuse_place(operation, leaves[0])
        return _Value(leaves[0] if leaves else None, all(value.uniform for value in values))

    def in_form(self, value, form, like):
        """The array of a value in a form that has room for it."""
        cut = form.leaf is not None and self._leaves[form.leaf].cut
        if value.array is None or form.uniform or not value.uniform or (not cut and like.shape == ()):
            return value.array
        return jnp.broadcast_to(jnp.asarray(value.array, like.dtype), (self._pieces[form.leaf],) if cut else like.shape)

    def _constant(self, value):
        return _Value(None, jnp.ndim(value) == 0, None if self._pieces is None else value)

    def _has(self, value):
        """Whether this rank computes it."""
        return self._pieces is not None and (value.leaf is None or value.leaf in self._pieces)

    def _results(self, equation, inputs):
        name, params = equation.primitive.name, equation.params
        if name in _CALLING:
            called = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
            return self.run(getattr(called, "jaxpr", called), getattr(called, "consts", ()), inputs)
        if name == "optimization_barrier":
            return inputs
        if name == "cond":
            return self._chosen(equation, *inputs)
        form = self._form(equation, inputs)
        if not self._has(form):
            return [self._form_of_result(form, var) for var in equation.outvars]
        if form.uniform and name in _MOVING:
            return [inputs[0]]
        arrays = [value.array if form.uniform else self.in_form(value, form, atom.aval) for value, atom in zip(inputs, equation.invars)]
        with equation.ctx.manager:
            computed = equation.primitive.bind(*arrays, **params)
        computed = computed if equation.primitive.multiple_results else [computed]
        return [self._form_of_result(form, var)._replace(array=array) for var, array in zip(equation.outvars, computed)]

    @staticmethod
    def _form_of_result(form, var):
        return form._replace(uniform=form.leaf is None and (form.uniform or not var.aval.shape))

    def _form(self, equation, inputs):
        """How to compute an operation: with scalars, with pieces or with whole arrays."""
        name = equation.primitive.name
        leaf = self.joined(name, [value._replace(uniform=True) for value in inputs]).leaf
        if leaf is None:
            return _Value(None, name in _ELEMENTWISE | _MOVING and bool(inputs) and all(value.uniform for value in inputs))
        if self._leaves[leaf].cut:
            shape = self._leaves[leaf].like.shape
            if name not in _ELEMENTWISE or equation.outvars[0].aval.shape != shape:
                self._refuse(name, leaf)
            self.joined(name, inputs)
        return _Value(leaf, False)

    def _chosen(self, equation, index, *inputs):
        """The results of lax.cond and lax.switch."""
        branches = equation.params["branches"]
        if index.leaf is not None and self._leaves[index.leaf].cut:
            self._refuse("cond", index.leaf)
        check = _Computation(self._leaves, None)
        forms = [value._replace(array=None) for value in inputs]
        found = zip(*(check.run(branch.jaxpr, branch.consts, forms) for branch in branches))
        results = [self.joined("cond", values if index.leaf is None else (*values, index._replace(array=None))) for values in found]
        own = [place for place, form in enumerate(results) if self._has(form)]
        if not own:
            return results

        def computed(branch):
            values = self.run(branch.jaxpr, branch.consts, inputs)
            return [jnp.asarray(self.in_form(values[place], results[place], equation.outvars[place].aval), equation.outvars[place].aval.dtype)
                    for place in own]

        arrays = lax.switch(index.array, [lambda branch=branch: computed(branch) for branch in branches])
        for place, array in zip(own, arrays):
            results[place] = results[place]._replace(array=array)
        return results

    def _refuse(self, operation, leaf):
        raise UnsupportedError(f"tx: {operation} computes with several elements of {self._leaves[leaf].name}, of which a rank may own some only. Say "
                               "owner=\"whole\", or a function that says so for this leaf. For clipping by the global norm, leave it out of tx "
                               "and say clip_norm=")

    def _refuse_place(self, operation, leaf):
        raise UnsupportedError(f"tx: {operation} computes elements of {self._leaves[leaf].name} with numbers that depend on their place, and a rank may own "
                               "some of them only. Say owner=\"whole\", or a function that says so for this leaf")

    def refuse_two(self, operation, one, other):
        """Refuses what depends on two leaves."""
        raise UnsupportedError(f"tx: {operation} computes with {self._leaves[one].name} and {self._leaves[other].name}, which different ranks may own. Leave "
                               "it out of tx. For clipping by the global norm say clip_norm=")


def as_numpy(array):
    """Its numbers, also those of keys of jax.random."""
    return numpy.asarray(jax.random.key_data(array) if jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key) else array)


def _described(tree):
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def _described_operations(jaxpr, consts=()):
    """A text for each constant and each operation."""
    for value in consts:
        yield str(as_numpy(value).tolist())
    for equation in jaxpr.eqns:
        yield f"{equation.primitive.name} {[getattr(atom, 'val', None) for atom in equation.invars]} {[str(var.aval) for var in equation.outvars]}"
        for value in equation.params.values():
            for called in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(called, "jaxpr", called)
                if hasattr(inner, "eqns"):
                    yield from _described_operations(inner, getattr(called, "consts", ()))
