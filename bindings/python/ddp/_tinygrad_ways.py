"""How ddp.tinygrad's gradients come to libddp and their means back: through the host, or on the GPU where they are.

tinygrad's CUDA works in a context that it has made, on the legacy default stream there, and libddp in the device's primary context. No
stream of one waits for those of the other, so the host waits for both before and after it copies.
"""
# mypy: ignore-errors
# tinygrad may not be there.
from __future__ import annotations

import ctypes
import warnings

import numpy
from tinygrad import Device, Tensor, dtypes

from . import _ddp
from ._errors import UnavailableError, UnsupportedError

#: The names that libddp has for elements on a GPU.
_DTYPES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.float32: "f32", dtypes.float64: "f64"}


class Host:
    """CPU memory, wherever tinygrad computes."""

    def register(self, context, name, tensor, value):
        return context.register(name, value)

    def commit(self, context, group, values):
        """values: of the trained tensors. All become rank 0's."""
        context.commit()

    def give(self, context, grads):
        """Begins a step, and announces realized gradients, by parameter."""
        arrays = {parameter: numpy.ascontiguousarray(grad.numpy()).reshape(grad.shape) for parameter, grad in grads.items()}
        context.step_begin()
        for parameter, array in reversed(arrays.items()):
            context.put(parameter, array)

    def means(self, likes):
        """The gradients that are in libddp's memory, by parameter, as tensors like these."""
        return {parameter: tensor_of(numpy.array(parameter.view()), like) for parameter, like in likes.items()}


class Cuda:
    """Memory of one GPU, by CUDA's driver."""

    def __init__(self, device):
        from tinygrad.runtime.autogen import cuda
        self.device = device
        self.index = int(device.partition(":")[2] or 0)
        self._cuda = cuda
        self._primary = cuda.CUcontext()
        self._check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._primary), Device[device].cu_device))

    def register(self, context, name, tensor, value):
        return context.register(name, shape=tensor.shape, dtype=_DTYPES[tensor.dtype], device=f"cuda:{self.index}")

    def commit(self, context, group, values):
        context.commit()
        for value in values:
            group.broadcast(value, 0)

    def give(self, context, grads):
        sources = {parameter: grad.contiguous() for parameter, grad in grads.items()}
        Tensor.realize(*sources.values())
        context.step_begin()
        self.wait()  # for what computes them
        for parameter, source in sources.items():
            self.copy(parameter.view(), source.uop.buffer, to_libddp=True)
        self.wait()
        for parameter in reversed(sources):
            context.grad_ready(parameter)

    def means(self, likes):
        made = {parameter: Tensor.empty(*like.shape, device=like.device, dtype=like.dtype).realize() for parameter, like in likes.items()}
        self.wait()  # for what used the memory of these before
        for parameter, mean in made.items():
            self.copy(parameter.view(), mean.uop.buffer.ensure_allocated(), to_libddp=False)
        self.wait()
        return made

    def wait(self):
        """The host waits until tinygrad and libddp have done all on the GPU."""
        self._check(self._cuda.cuCtxSetCurrent(self._primary))
        self._check(self._cuda.cuCtxSynchronize())
        Device[self.device].synchronize()  # with tinygrad's context as the current one, which it expects

    def copy(self, memory, buffer, to_libddp):
        """A whole tensor, between libddp's memory and a buffer of tinygrad's."""
        if not buffer.nbytes:
            return
        ours = memory.address, self._primary
        theirs = buffer.get_buf(buffer.device), Device[self.device].context
        target, source = (ours, theirs) if to_libddp else (theirs, ours)
        self._check(self._cuda.cuMemcpyPeer(*target, *source, buffer.nbytes))

    @staticmethod
    def _check(status):
        if status != 0:
            raise UnavailableError(f"CUDA's driver has failed with status {status} where ddp.tinygrad copies gradients")


#: By the name of tinygrad's device.
KINDS = {"CUDA": Cuda}


def way_for(tensors):
    """For the tensors that are trained."""
    devices = {tensor.device for tensor in tensors}
    device = devices.pop() if len(devices) == 1 else None
    kind = KINDS.get(device.partition(":")[0]) if isinstance(device, str) else None
    if kind is None or not all(tensor.dtype in _DTYPES for tensor in tensors):
        return Host()
    try:
        _ddp.ddp_device_count(_ddp.DDP_DEVICE_CUDA)
    except (UnavailableError, UnsupportedError) as error:
        warnings.warn(f"ddp.tinygrad: gradients go through CPU memory: {error}", stacklevel=3)
        return Host()
    return kind(device)


def tensor_of(array, like):
    """NumPy has no bfloat16: of such a tensor, the array is of float32."""
    if isinstance(like.device, tuple):  # in parts, or copied
        return Tensor(array, device=like.device[0]).cast(like.dtype).shard(like.device, like.uop.axis)
    return Tensor(array, device=like.device).cast(like.dtype)
