"""Calls from code that JAX has compiled: the only place of ddp.jax that knows devices.

On a GPU a call enqueues on XLA's stream and returns. Gradients leave XLA's memory in the order of that stream, and means come there,
so XLA may use the memory for something else at once. Calls of one process come in any order: libddp reduces buckets in one order on
all ranks. XLA calls each function once in an execution: it has a side effect, and does not say that a command buffer may contain it.
"""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import warnings
import weakref

import jax
import numpy

from . import _ddp
from ._arrays import gpu_of
from ._errors import UnavailableError, UnsupportedError

# COMPILED CODE keeps the number of a DataParallel, which may be gone when it runs.
_numbers = itertools.count()
_parallels = weakref.WeakValueDictionary()


def number_of(parallel):
    """A new number for it."""
    number = next(_numbers)
    _parallels[number] = parallel
    return number


class Kind:
    """Devices of one kind."""

    def __init__(self, name, platform, target):
        self.name = name          # what libddp calls it, and JAX where it compiles
        self.platform = platform  # what XLA calls it
        self.target = target      # the function for compiled code

    @functools.cached_property
    def registered_target(self):
        """Registers the function at the first use."""
        if not hasattr(jax, "ffi"):
            raise RuntimeError(f"overlap() needs jax.ffi, which JAX {jax.__version__} does not have: install JAX 0.5 or later")
        jax.ffi.register_ffi_target(self.target, _ddp.jax_target(_on_call, self is not CPU), platform=self.platform)
        return self.target

    def compiles_for(self, platforms):
        """Whether code for these platforms of JAX is for this kind alone."""
        return set(platforms) == {self.name}

    def index_of(self, leaf):
        """On which GPU an array is, as libddp counts. None: on several devices, or on others."""
        place = gpu_of(leaf) if len(leaf.devices()) == 1 else None
        return place and place[1]


CPU = Kind("cpu", "cpu", "ddp_cpu")
#: Those of GPUs.
KINDS = [Kind("cuda", "CUDA", "ddp_cuda")]


def place_of(leaves):
    """(Kind, index) of the one GPU that holds all arrays; (CPU, 0): gradients go through CPU memory."""
    for kind in KINDS if hasattr(jax, "ffi") else ():
        indices = {kind.index_of(leaf) for leaf in leaves}
        if len(indices) != 1 or None in indices:
            continue
        try:
            _ddp.ddp_device_count(_ddp.DDP_DEVICE_CUDA)
        except (UnavailableError, UnsupportedError) as error:
            warnings.warn(f"ddp.jax: gradients go through CPU memory: {error}", stacklevel=4)
            continue
        return kind, indices.pop()
    return CPU, 0


def _on_call(number, param, arguments, results, stream):
    """Called by compiled code. Returns what went wrong, if something did: JAX reports it, and mean() raises the exception."""
    parallel = _parallels.get(number)
    if parallel is None:
        return "the ddp.jax.DataParallel of this function is gone"
    try:
        if param < 0:
            parallel._reduce(arguments, results, stream)
        else:
            parallel._announce(param, arguments[0], stream)
    except BaseException as error:  # pylint: disable=broad-except # KeyboardInterrupt, too
        parallel._failure = parallel._failure or error
        return str(error) or repr(error)
    finally:
        if param < 0:
            parallel._enqueued.set()
    return None


def sample_of(address, like):
    """Some bytes of an array in memory of the CPU, from all over it: who scales, clips or replaces the array changes them."""
    size = like.size * like.dtype.itemsize
    if not size:
        return b""
    array = numpy.frombuffer((ctypes.c_ubyte * size).from_address(address), numpy.uint8).reshape(-1, like.dtype.itemsize)
    return array[::max(1, len(array) // 256)].tobytes()


def announced(kind, number, param, value):
    """value, whose gradient goes to libddp when the backward pass has computed it."""
    return _watched(kind, kind.registered_target, number, param, value)


def mean_function(kind, number, leaves, donate):
    """A compiled function of gradients that gives their means. donate: in their memory."""
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    aliases = {i: i for i in range(len(shapes))} if donate else {}

    def mean(*grads):
        call = jax.ffi.ffi_call(kind.registered_target, shapes, has_side_effect=True, input_output_aliases=aliases)
        return call(*grads, parallel=numpy.int64(number), param=numpy.int64(-1))

    return jax.jit(mean, donate_argnums=tuple(aliases))


@functools.cache
def _on_one_device():
    """A primitive of JAX that does nothing, and refuses what an announcement cannot be part of, before XLA does in words of its own."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir
    primitive = Primitive("ddp_on_one_device")

    def refuse(what):
        raise NotImplementedError(f"overlap(): {what}. Leave out overlap() there, and give mean() the gradients")

    def check(kind, count, platforms):
        if count > 1:
            refuse(f"the gradients are computed on {count} devices, and it works on one")
        if not kind.compiles_for(platforms):
            refuse(f"the gradients are computed on {' and '.join(platforms)}, and it works on {kind.name} here, where libddp has them")

    @primitive.def_impl
    def _(value, kind):
        device, *_ = value.devices()
        check(kind, len(value.devices()), ["cuda" if gpu_of(value) else device.platform])
        return value

    def lower(context, value, kind):
        module = context.module_context
        check(kind, _device_count(module.axis_context), module.platforms)
        return [value]

    def batch(*_, **__):
        refuse("under jax.vmap there are many gradients of each array, and it takes one")

    def differentiate(*_, **__):
        refuse("the gradients are differentiated again, and it takes them once")

    primitive.def_abstract_eval(lambda value, kind: value)
    mlir.register_lowering(primitive, lower)
    batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[primitive] = differentiate
    return primitive


def _device_count(axis_context):
    """The number of devices that JAX compiles for, in any of the ways in which it says so."""
    for path in ("num_devices", "mesh.size", "axis_env.nreps"):
        try:
            return operator.attrgetter(path)(axis_context)
        except AttributeError:
            pass
    return 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _watched(kind, target, number, param, value):
    return value


def _forward(kind, target, number, param, value):
    return value, None


def _backward(kind, target, number, param, _, grad):
    announce = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(grad.shape, grad.dtype), has_side_effect=True, input_output_aliases={0: 0})
    grad = _on_one_device().bind(grad, kind=kind)
    return (announce(grad, parallel=numpy.int64(number), param=numpy.int64(param)),)


_watched.defvjp(_forward, _backward)
