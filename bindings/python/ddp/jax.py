"""JAX's pytrees: any tree of arrays that jax.tree_util knows.

    from ddp.jax import DataParallel

    parallel = DataParallel(params)      # ddprun -n 2 python3 train.py
    params = parallel.params             # every rank starts from rank 0's
    gradients = jax.jit(jax.grad(loss))
    for x, y in batches:
        grads = parallel.mean(gradients(params, x, y))
        updates, state = optimizer.update(grads, state)

With overlap() in the function that is differentiated, each gradient is on its way while JAX computes the others:

    def loss(params, x, y):
        params = parallel.overlap(params)
        ...

Gradients go through CPU memory, wherever JAX computes.
"""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import functools
import itertools
import operator
import weakref

import jax
import numpy
from jax import numpy as jnp

from . import _ddp
from . import numpy as trees

__all__ = ["DataParallel"]


class DataParallel(trees.DataParallel):
    """Averages pytrees of gradients over the ranks of a group: ddp.numpy.DataParallel with JAX's trees and arrays. mean() is not for
    use inside a function that JAX traces: call it between two of them."""

    def __init__(self, params, group=None, **options):
        super().__init__(params, group, **options)
        self._early = set()  # parameters whose gradients compiled code has announced in this step
        self._failure = None
        self._number = next(_numbers)
        _parallels[self._number] = self

    def overlap(self, params):
        """params as they are, for use once in the function that JAX differentiates, on one device, a CPU, and not under jax.vmap. In its
        backward pass the gradient of each array goes to libddp when it is computed, and communication begins. mean() follows once for
        each such pass. Its result is the mean of what the pass computed: what the program has made of those gradients meanwhile is not
        in it."""
        _on_one_cpu()
        leaves, structure = self._flatten_like_params("params", params)
        return self._unflatten(structure, [_watched(self._number, i, leaf) for i, leaf in enumerate(leaves)])

    def discard(self):
        """Forgets the gradients of a backward pass that failed. Collective: call it on every rank, as ddp.Context.discard."""
        self._early, self._failure = set(), None
        self.context.discard()

    def _announced(self, leaves):
        for parameter, leaf in zip(self._parameters, leaves):
            if isinstance(leaf, jax.core.Tracer):
                raise TypeError(f"grads: JAX traces {parameter.name}. Call mean() outside of jax.jit, jax.grad and the like, on their result")
            if not leaf.is_fully_addressable:
                raise ValueError(f"grads: {parameter.name} lies in several processes of JAX, and libddp reduces what this process holds. "
                                 "Let each rank be a JAX of its own, without jax.distributed")
        try:
            jax.block_until_ready(leaves)
        except Exception as error:
            raise self._failure or error from (error if self._failure else None)
        early, self._early = self._early, set()
        return early

    def _announce(self, param, address):
        """Called by compiled code. Returns what went wrong, if something did: JAX reports it, and mean() raises the exception."""
        parameter = self._parameters[param]
        try:
            if parameter in self._early:
                raise ValueError(f"{parameter.name}: this step has a gradient of it already. overlap() is called once in a function, and "
                                 "mean() after each backward pass")
            _ddp.ddp_put(self.context._handle, parameter, address, 0)
            self._early.add(parameter)
        except Exception as error:  # pylint: disable=broad-except
            self._failure = self._failure or error
            return str(error)
        return None

    def _flatten(self, tree):
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
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
        """Where the leaf is: on its devices, in its parts; or wherever JAX wants it."""
        if isinstance(memory, numpy.ndarray):
            result = jnp.array(memory)  # the values that rank 0 has sent
        else:
            result = jnp.from_dlpack(memory)  # a copy: libddp never gives JAX its own memory
        return jax.device_put(result, leaf.sharding) if leaf.committed else jnp.asarray(numpy.asarray(result))


def _text(path):
    """("layers", 0) as layers.0"""
    return ".".join(str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path) or "params"


# COMPILED CODE keeps the number of a DataParallel, which may be gone when it runs.
_numbers = itertools.count()
_parallels = weakref.WeakValueDictionary()


@functools.cache
def _on_one_cpu():
    """A primitive of JAX that does nothing, and refuses what an announcement cannot be part of, before XLA does in words of its own."""
    if not hasattr(jax, "ffi"):
        raise RuntimeError(f"overlap() needs jax.ffi, which JAX {jax.__version__} does not have: install JAX 0.5 or later")
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir
    jax.ffi.register_ffi_target("ddp_announce", _ddp.jax_target(_on_gradient), platform="cpu")
    primitive = Primitive("ddp_on_one_cpu")

    def refuse(what):
        raise NotImplementedError(f"overlap(): {what}. Leave out overlap() there, and give mean() the gradients")

    def check(count, platforms):
        if count > 1:
            refuse(f"the gradients are computed on {count} devices, and it works on one")
        if set(platforms) != {"cpu"}:
            refuse(f"the gradients are computed on {' and '.join(platforms)}, and it works on a CPU")

    @primitive.def_impl
    def _(value):
        check(len(value.devices()), {device.platform for device in value.devices()})
        return value

    def lower(context, value):
        module = context.module_context
        check(_device_count(module.axis_context), module.platforms)
        return [value]

    def batch(_, __):
        refuse("under jax.vmap there are many gradients of each array, and it takes one")

    primitive.def_abstract_eval(lambda value: value)
    mlir.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch
    return primitive


def _device_count(axis_context):
    """The number of devices that JAX compiles for, in any of the ways in which it says so."""
    for path in ("num_devices", "mesh.size", "axis_env.nreps"):
        try:
            return operator.attrgetter(path)(axis_context)
        except AttributeError:
            pass
    return 1


def _on_gradient(number, param, address):
    parallel = _parallels.get(number)
    return parallel._announce(param, address) if parallel else "the ddp.jax.DataParallel of this function is gone"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _watched(number, param, value):
    return value


def _forward(number, param, value):
    return value, None


def _backward(number, param, _, grad):
    announce = jax.ffi.ffi_call("ddp_announce", jax.ShapeDtypeStruct(grad.shape, grad.dtype), has_side_effect=True,
                                input_output_aliases={0: 0})
    grad = _on_one_cpu().bind(grad)
    return (announce(grad, parallel=numpy.int64(number), param=numpy.int64(param)),)


_watched.defvjp(_forward, _backward)
