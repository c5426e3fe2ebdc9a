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

Where all arrays are on one GPU, gradients go from there to the GPUs of the other ranks, or as far as the group's backend can: the host
waits for nothing that the backend does not need. Otherwise they go through CPU memory.
"""
# mypy: ignore-errors
# JAX may not be there.
from __future__ import annotations

import contextlib
import threading

import jax
import numpy
from jax import numpy as jnp

from . import _ddp, _jax_calls
from . import numpy as trees
from ._arrays import dtype_of
from ._jax_leaves import Leaves, group_of_the_job, names_of_devices, require_here, require_values
from ._jax_optimizer import ShardedOptimizer

__all__ = ["DataParallel", "ShardedOptimizer"]


class DataParallel(Leaves, trees.DataParallel):
    """Averages pytrees of gradients over the ranks of a group: ddp.numpy.DataParallel with JAX's trees and arrays. mean() is not for
    use inside a function that JAX traces: call it between two of them."""

    def __init__(self, params, group=None, **options):
        leaves = [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(params)]
        for leaf in leaves:
            require_here("params", "an array", leaf)
        self._kind, self._index = _jax_calls.place_of(leaves)
        self._devices = leaves[0].devices() if leaves else None
        self._likes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self._sends_values = options.get("initial_broadcast", True)
        super().__init__(params, group if group is not None else group_of_the_job(), **options)
        self._early = {}  # by parameter, a sample of the gradient that compiled code has announced in this step
        self._failure = None
        self._number = _jax_calls.number_of(self)
        self._means = {}     # compiled functions, by whether they take the memory of gradients
        self._enqueued = threading.Event()  # by such a function
        self._stream = None  # of JAX's, on a GPU

    def overlap(self, params):
        """params as they are, for use once in the function that JAX differentiates, on one device, and not under jax.vmap. In its
        backward pass the gradient of each array goes to libddp when it is computed, and communication begins. mean() follows once for
        each such pass. Its result is the mean of what the pass computed: what the program has made of those gradients meanwhile is not
        in it, and on the CPU an error."""
        leaves, structure = self._flatten_like_params("params", params)
        return self._unflatten(structure, [_jax_calls.announced(self._kind, self._number, i, leaf) for i, leaf in enumerate(leaves)])

    def mean(self, grads, *, donate=False):
        """The mean over ranks of a tree of gradients, which has the structure of params. Collective: it begins and ends a step. donate:
        the means may take the memory of the gradients, which the program does not use any more. On a GPU mean() returns when all is
        enqueued: the means are there in JAX's order."""
        if self._kind is _jax_calls.CPU:
            return super().mean(grads)
        leaves, structure = self._flatten_like_params("grads", grads)
        self._check(leaves)
        if donate not in self._means:
            self._means[donate] = _jax_calls.mean_function(self._kind, self._number, leaves, donate)
        self._enqueued.clear()
        with self._own_failure():
            means = self._means[donate](*leaves)
            while not self._enqueued.wait(0.02):
                if all(mean.is_ready() for mean in means):  # with an error: JAX has not come to the call
                    jax.block_until_ready(means)
        return self._unflatten(structure, means)

    def discard(self):
        """Forgets the gradients of a backward pass that failed. Collective: call it on every rank, as ddp.Context.discard."""
        self._early, self._failure = {}, None
        self.context.discard()

    def _check(self, leaves):
        for parameter, leaf in zip(self._parameters, leaves):
            require_values("mean()", "grads", parameter.name, leaf)
            if self._kind is not _jax_calls.CPU and leaf.devices() != self._devices:
                raise ValueError(f"grads: {parameter.name} is on {names_of_devices(leaf.devices())}, and params were on {names_of_devices(self._devices)}. "
                                 "Compute gradients where the parameters are, or make a new DataParallel on every rank")

    def _announced(self, leaves):
        self._check(leaves)
        with self._own_failure():
            jax.block_until_ready(leaves)
        for parameter, leaf in zip(self._parameters, leaves):
            if parameter not in self._early:
                continue
            array = numpy.ascontiguousarray(leaf)
            if _jax_calls.sample_of(array.ctypes.data, array) != self._early[parameter]:
                raise ValueError(f"grads: {parameter.name} is not what the backward pass has computed, which overlap() has sent to the other ranks "
                                 "already. Give mean() the gradients of that pass, and change the means instead. Here call discard()")
        early, self._early = self._early, {}
        return early

    @contextlib.contextmanager
    def _own_failure(self):
        """The exception of what compiled code has called, if there is one, in place of JAX's."""
        cause = None
        try:
            yield
        except Exception as error:
            if not self._failure:
                raise
            cause = error
        failure, self._failure = self._failure, None
        if failure:
            raise failure from cause

    def _announce(self, param, address, stream):
        """Called by compiled code in the backward pass. stream: of a GPU."""
        parameter = self._parameters[param]
        if parameter in self._early:
            raise ValueError(f"{parameter.name}: this step has a gradient of it already. overlap() is called once in a function, and "
                             "mean() after each backward pass")
        if stream is None:
            sample = _jax_calls.sample_of(address, self._likes[param])
            _ddp.ddp_put(self.context._handle, parameter, address, 0)
        else:
            sample = None  # nobody asks for it
            _ddp.ddp_put_on(self.context._handle, parameter, address, 0, stream)
        self._early[parameter] = sample

    def _reduce(self, gradients, means, stream):
        """Called by compiled code on a GPU: a step, or what is left of it."""
        context, early = self.context, self._early
        self._early = {}
        if not early:
            if self._stream != stream:
                context.set_stream(f"{self._kind.name}:{self._index}", stream)
                self._stream = stream
            context.step_begin()
        for parameter, address in reversed(list(zip(self._parameters, gradients))):
            if parameter not in early:
                _ddp.ddp_put_on(context._handle, parameter, address, 0, stream)
        context.finalize_on(stream)
        for parameter, address in zip(self._parameters, means):
            _ddp.ddp_get_on(context._handle, parameter, address, stream)

    def _register(self, path, value):
        if self._kind is not _jax_calls.CPU:
            try:
                dtype = dtype_of(value.dtype.name)
            except TypeError as error:
                raise TypeError(f"{path}: {error}") from error
            return self.context.register(path, shape=value.shape, dtype=dtype, device=f"{self._kind.name}:{self._index}")
        return super()._register(path, value)

    def _commit(self, values):
        """On a GPU libddp has gradients only: JAX may move values, and they are sent here, once."""
        super()._commit(values)
        if self._kind is not _jax_calls.CPU and self._sends_values:
            works = [self.group.broadcast(value.reshape(-1).view(numpy.uint8), 0, async_op=True) for value in values if value.size]
            for work in works:
                work.wait()
