"""JAX's pytrees: any tree of arrays that jax.tree_util knows.

    from ddp.jax import DataParallel

    parallel = DataParallel(params)      # ddprun -n 2 python3 train.py
    params = parallel.params             # every rank starts from rank 0's
    gradients = jax.jit(jax.grad(loss))
    for x, y in batches:
        grads = parallel.mean(gradients(params, x, y))
        updates, state = optimizer.update(grads, state)

Gradients go through CPU memory, wherever JAX computes.
"""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import jax
import numpy
from jax import numpy as jnp

from . import numpy as trees

__all__ = ["DataParallel"]


class DataParallel(trees.DataParallel):
    """Averages pytrees of gradients over the ranks of a group: ddp.numpy.DataParallel with JAX's trees and arrays. mean() is not for
    use inside a function that JAX traces: call it between two of them."""

    def _flatten(self, tree):
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        for path, leaf in found:
            if isinstance(leaf, jax.core.Tracer):
                raise TypeError(f"{_text(path)}: JAX traces it. mean() is called outside of jax.jit and jax.grad")
        return [_text(path) for path, _ in found], [jnp.asarray(leaf) for _, leaf in found], structure

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
        if isinstance(memory, numpy.ndarray):
            return jnp.array(memory)  # the values that rank 0 has sent
        return jnp.from_dlpack(memory)  # a copy: libddp never gives JAX its own memory


def _text(path):
    """("layers", 0) as layers.0"""
    return ".".join(str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path) or "params"
