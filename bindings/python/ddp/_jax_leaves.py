"""Leaves of JAX's pytrees, as parameters of a context."""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import jax
import numpy
from jax import numpy as jnp

from .group import Group


class Leaves:
    """Part of a ddp.numpy.Tree whose arrays are JAX's, or become it."""

    def _flatten(self, tree):
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        return [text_of(path) for path, _ in found], [jnp.asarray(leaf) for _, leaf in found], structure

    def _unflatten(self, structure, leaves):
        return jax.tree_util.tree_unflatten(structure, leaves)

    def _register(self, path, value):
        if value.dtype == jnp.bfloat16:
            return self.context.register(path, value.view(numpy.float16), dtype="bf16")  # libddp reads the same bytes
        return super()._register(path, value)

    def _put(self, parameter, leaf):
        on_cpu = jax.device_put(leaf, jax.local_devices(backend="cpu")[0])
        on_cpu.block_until_ready()
        self.context.put(parameter, on_cpu)

    def _result(self, memory, leaf):
        """Where the leaf is: on its devices, in its parts; or wherever JAX wants it."""
        if isinstance(memory, numpy.ndarray):
            result = jnp.array(memory)  # the values that rank 0 has sent
        else:
            result = jnp.from_dlpack(memory)  # a copy: libddp never gives JAX its own memory
        return jax.device_put(result, leaf.sharding) if leaf.committed else jnp.asarray(numpy.asarray(result))


def group_of_the_job():
    """Under jax.distributed, with its ranks: others would compute on samples of the wrong process, or each alone."""
    group = Group()
    ranks, processes = (group.rank, group.world_size), (jax.process_index(), jax.process_count())
    if processes[1] > 1 and ranks != processes:
        group.close()
        raise ValueError(f"group: this process is {processes[0]} of {processes[1]} for jax.distributed, and rank {ranks[0]} of {ranks[1]} for "
                         "libddp. Start the program with ddprun and give jax.distributed.initialize the ranks of ddp.environment(), or pass "
                         "group=ddp.Group(jax.process_index(), jax.process_count(), 'tcp://HOST:PORT')")
    return group


def require_here(what, name, leaf):
    if not leaf.is_fully_addressable:
        raise ValueError(f"{what}: {name} lies in several processes of JAX, and libddp reduces what this process holds. Under "
                         "jax.distributed each process computes on arrays of its own, on its jax.local_devices()")


def require_values(where, what, name, leaf):
    """Refuses a leaf that has no values yet, or not all of them."""
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"{what}: JAX traces {name}. Call {where} outside of jax.jit, jax.grad and the like, on their result")
    require_here(what, name, leaf)


def names_of_devices(devices):
    return " and ".join(sorted(map(str, devices)))


def text_of(path):
    """("layers", 0) as layers.0"""
    return ".".join(str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path) or "params"
