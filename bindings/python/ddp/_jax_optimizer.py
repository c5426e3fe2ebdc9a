"""ddp.jax.ShardedOptimizer: a gradient transformation over this rank's share of a pytree."""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import contextlib
import functools
import os
import types
import zlib

import jax
import numpy
from jax import numpy as jnp

from . import _ddp
from . import numpy as trees
from ._arrays import dtype_of
from ._errors import InvalidStateError, MismatchError, NonfiniteError, UnsupportedError
from ._gradient_context import GradientContext
from ._jax_leaves import Leaves, group_of_the_job, names_of_devices, require_values, text_of
from ._jax_pieces import Leaf, Transformation, as_numpy
from ._owners import owner_function


class ShardedOptimizer(Leaves, trees.Tree):
    """Each rank has the state of its share of the parameters only, updates that share, and sends its new values to the others.

        sharded = ShardedOptimizer(optax.adamw(1e-3), params)
        params = sharded.params              # every rank starts from rank 0's
        for x, y in batches:
            params = sharded.step(gradients(params, x, y), params)

    tx: a gradient transformation, such as optax's. params: a pytree of arrays on the CPU. group: a ddp.Group; None: that of the job.
    owner: "elements": each rank owns a range of a leaf's elements, for a tx that treats each element alone; "whole": one rank owns a
    leaf; "replicated": all ranks do; or a function of a leaf's name and the leaf that returns an owner, or an owner and a cost.
    clip_norm: gradients are multiplied by min(1, clip_norm / (norm + 1e-6)) before tx gets them, with the 2-norm of all of them together.
    The other arguments are those of ddp.Context, which is `context`.

    A tx that computes with other elements than a rank may own is an UnsupportedError, which names the operation.
    """

    def __init__(self, tx, params, group=None, *, owner="elements", clip_norm=None, **options):
        choose = owner_function("owner", owner)
        if clip_norm is not None and not clip_norm >= 0:
            raise ValueError(f"clip_norm: a norm of 0 or more is expected, not {clip_norm!r}")
        names, leaves, structure = self._flatten(params)
        for name, leaf in zip(names, leaves):
            _require_on_cpu("ShardedOptimizer()", "params", name, leaf)
        self._owners = [choose(name, leaf) for name, leaf in zip(names, leaves)]
        self._leaf_paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
        self._tx = Transformation(tx, [Leaf(name, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), kind == "elements", kind == "replicated")
                                       for name, leaf, (kind, _) in zip(names, leaves, self._owners)], structure)
        self._clip_norm = clip_norm
        self.group = group if group is not None else group_of_the_job()
        _compare(self.group, self._tx.fingerprint())
        super().__init__(params, _ShardContext(self.group, **options))

    def step(self, grads, params):
        """The new parameters, from this rank's gradients. Collective. The values before are those of params: of each leaf, on the rank
        that owns it. Both trees have the structure of the first params. If it raises NonfiniteError, no rank has updated anything."""
        gradients, _ = self._flatten_like_params("grads", grads)
        leaves, structure = self._flatten_like_params("params", params)  # before the others wait for any
        for what, found in ("grads", gradients), ("params", leaves):
            for parameter, leaf in zip(self._parameters, found):
                _require_on_cpu("step()", what, parameter.name, leaf)
        self.context.step_begin()
        for parameter, leaf in reversed(list(zip(self._parameters, gradients))):
            self._put(parameter, leaf)
        self.context.finalize()
        if self._clip_norm is not None:
            self._clip()
        try:
            self._update(leaves)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self.context.abort(f"ShardedOptimizer.step failed in its update: {type(error).__name__}: {error}")
            raise
        self.context.publish()
        return self._unflatten(structure, self._arrived(leaves))

    @property
    def params(self):
        """The values that the last step or load() has given, or rank 0's first ones."""
        return self._unflatten(self._structure, self._arrived(self._places))

    @property
    def state(self):
        """The state of tx, for this rank's pieces: None where it owns nothing of a leaf, and an array of one dimension for a part of
        a leaf."""
        arrays = dict(zip(self._slots, self._state))
        return jax.tree_util.tree_unflatten(self._tx.state_structure, [arrays.get(slot) for slot in range(len(self._tx.likes))])

    @property
    def grad_norm(self):
        """With clip_norm: the norm of the gradients in the last step, before clipping."""
        if self._clip_norm is None:
            raise InvalidStateError("grad_norm: this ShardedOptimizer was made without clip_norm")
        return _ddp.ddp_grad_norm(self.context._handle, self._norm)

    def save(self, folder, params, note=""):
        """Saves params and the state in a folder that all ranks see: Context.save_shards. Collective."""
        leaves, _ = self._flatten_like_params("params", params)
        values = [numpy.ascontiguousarray(self._part(piece, numpy.asarray(leaves[piece.param]))) for piece in self._pieces.values()]
        state = [as_numpy(array) for array in self._state]
        self._name_arrays(values, state)
        _ddp.ddp_shard_save(self.context._handle, os.fspath(folder), note)

    def load(self, folder):
        """Loads what save() has saved in any world, and gives the parameters and the note. Collective."""
        values = [self._part(piece, self._values[piece.param]) for piece in self._pieces.values()]
        state = [numpy.array(as_numpy(array)) for array in self._state]
        self._name_arrays(values, state)
        note = _ddp.ddp_shard_load(self.context._handle, os.fspath(folder))
        with jax.default_device(self._device):
            loaded = [_from_numpy(array, like) for array, like in zip(state, self._state)]
        self._own, self._common = loaded[:len(self._own)], loaded[len(self._own):]
        return self.params, note

    # A STEP

    def _clip(self):
        try:
            _ddp.ddp_clip_grad_norm(self.context._handle, self._norm, self._clip_norm)
        except NonfiniteError:
            self.context.publish()  # the values as they are, on all ranks
            self._wait()
            raise

    def _update(self, leaves):
        """This rank's pieces get new values."""
        with jax.default_device(self._device):
            grads = {index: self._formed(piece, jnp.from_dlpack(piece.gradient)) for index, piece in self._pieces.items()}
            values = self._computed(grads, self._params_of(leaves))
        for index, piece in self._pieces.items():
            self._part(piece, self._values[index])[:] = numpy.asarray(values[index]).reshape(-1)

    def _computed(self, grads, params):
        """New values, and the new state. The part that all ranks have is computed alike on all ranks, and last, because its memory is
        used again."""
        own, shared = {index: params.pop(index) for index in self._counts}, {index: grads[index] for index in grads if index not in self._counts}
        values, self._own = self._step_of_pieces(grads, self._own, self._common, own, params)
        of_all, self._common = self._step_of_all(shared, self._common, params)
        return {**values, **of_all}

    def _params_of(self, leaves):
        """Copies of this rank's pieces."""
        return {index: self._formed(piece, jnp.array(self._part(piece, numpy.asarray(leaves[index])))) for index, piece in self._pieces.items()}

    def _formed(self, piece, array):
        """A piece as tx gets it: a whole leaf has its shape."""
        return array if self._owners[piece.param][0] == "elements" else array.reshape(self._parameters[piece.param].shape)

    @staticmethod
    def _part(piece, array):
        return array.reshape(-1)[piece.first:piece.first + piece.count]

    def _wait(self):
        for parameter in self._parameters:
            self.context.wait_value(parameter)

    def _arrived(self, likes):
        """The values of all leaves as arrays of JAX's, each where the array is to which it is like."""
        results = []
        for parameter, value, like in zip(self._parameters, self._values, likes):
            self.context.wait_value(parameter)
            results.append(self._result(value, like))
        return results

    # THE BEGINNING

    def _commit(self, values):
        for parameter, (owner, cost) in zip(self._parameters, self._owners):
            self.context.set_owner(parameter, owner, cost=cost)
        if self._clip_norm is not None:
            self._norm = _ddp.ddp_track_grad_norm(self.context._handle, 2, self._parameters)
        super()._commit(values)

    def _started(self, values, leaves):
        self._values, self._device = values, jax.local_devices(backend="cpu")[0]
        self._places = [types.SimpleNamespace(committed=leaf.committed, sharding=leaf.sharding) for leaf in leaves]
        self._pieces = {int(piece.param): piece for piece in self.context.pieces()}
        self._counts = {index: piece.count for index, piece in self._pieces.items() if not piece.replicated}
        tx, counts = self._tx, self._counts
        self._slots = [*tx.slots(counts), *tx.slots(None)]
        with jax.default_device(self._device):
            self._own, self._common = (jax.jit(functools.partial(tx.init, which))(self._params_of(values)) for which in (counts, None))
        self._step_of_pieces = jax.jit(lambda grads, own, common, params, shared: tx.step(counts, grads, own, common, {**params, **shared}),
                                       donate_argnums=(1, 3))
        self._step_of_all = jax.jit(lambda grads, common, params: tx.step(None, grads, (), common, params), donate_argnums=(1, 2))

    @property
    def _state(self):
        """The arrays of the state that this rank has, in the order of _slots."""
        return [*self._own, *self._common]

    # STATE ON DISK

    def _name_arrays(self, values, state):
        """For the next call, which uses their memory."""
        named = [("value", piece.param, piece.first, piece.replicated, value) for piece, value in zip(self._pieces.values(), values)]
        for slot, array in zip(self._slots, state):
            leaf = self._tx.owner_of(slot)
            parameter, key = self._name_of(slot)
            first = self._pieces[leaf].first if leaf is not None and self._owners[leaf][0] == "elements" else 0
            named.append((key, parameter, first, leaf is None, array))
        for key, parameter, first, replicated, array in named:
            _ddp.ddp_shard_array(self.context._handle, key, parameter, first, array.size, _saved_type(array.dtype), array.ctypes.data, replicated)

    def _name_of(self, slot):
        """The parameter and the key under which an array of the state is saved, whoever owns what: those of the leaf whose path its own
        ends with."""
        path, size, owner = self._tx.paths[slot], self._tx.likes[slot].size, self._tx.owner_of(slot)
        fitting = [index for index, leaf in enumerate(self._leaf_paths)
                   if len(leaf) <= len(path) and path[len(path) - len(leaf):] == leaf and size <= self._values[index].size and owner in (None, index)]
        if fitting:
            parameter = max(fitting, key=lambda index: len(self._leaf_paths[index]))
            path = path[:len(path) - len(self._leaf_paths[parameter])]
        else:
            sizes = [value.size for value in self._values]
            parameter = sizes.index(max(sizes)) if owner is None else owner
        key = "tx." + text_of(path) if path else "tx"
        key = key.replace("%", "%25").replace("/", "%2F").replace("@", "%40")
        return parameter, key if len(key.encode()) <= 64 else f"tx.{zlib.crc32(key.encode()):08x}"


class _ShardContext(GradientContext):
    """A context with copies of the values, through which new ones travel."""

    _needing_values = ("verify_interval",)

    def __init__(self, group, **options):
        super().__init__(group, shard=True, **options)

    def set_group(self, group):
        raise InvalidStateError("set_group: other ranks own other pieces, and their part of the state is not there. Make a new ShardedOptimizer in the "
                                "new group, and load() a checkpoint")

    def _require_values(self, what):
        raise InvalidStateError(f"{what}: libddp has copies of the parameters, which the program's own arrays do not follow. Use collectives of the group "
                                "on them, between steps")


def _require_on_cpu(where, what, name, leaf):
    require_values(where, what, name, leaf)
    if any(device.platform != "cpu" for device in leaf.devices()):
        raise UnsupportedError(f"{what}: {name} is on {names_of_devices(leaf.devices())}, and shards are for arrays on the CPU. Use ddp.jax.DataParallel, and "
                               "tx on each rank")


def _compare(group, fingerprint):
    """Raises an error where ranks have different transformations. Collective."""
    mine = numpy.array([fingerprint], numpy.int64)
    everyone = numpy.zeros(group.world_size, numpy.int64)
    group.allgather(everyone, mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise MismatchError(f"tx: rank {rank} has another transformation or other hyperparameters than rank 0, or params of other shapes. Give "
                                "all ranks the same", rank=rank)


def _saved_type(dtype):
    """A type of libddp's with as many bits."""
    try:
        return dtype_of(dtype)
    except TypeError:
        return {1: _ddp.DDP_U8, 2: _ddp.DDP_F16, 4: _ddp.DDP_I32, 8: _ddp.DDP_I64}[dtype.itemsize]


def _from_numpy(array, like):
    array = jnp.array(array)
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(like)) if jnp.issubdtype(like.dtype, jax.dtypes.prng_key) else array
