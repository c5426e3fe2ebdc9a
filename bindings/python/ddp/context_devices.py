"""The methods of a context for parameters on GPUs (ddp/device.h)."""
from __future__ import annotations

from typing import Any, Iterator, Tuple

from . import _ddp
from ._arrays import device_of, gpu_of, memory_of, same_layout, stream_of
from ._context_state import ContextState
from ._ddp import Memory


class DeviceMethods(ContextState):
    """Part of Context. A stream is a number, a stream of PyTorch's or CuPy's, or None for the legacy default stream."""

    def set_stream(self, device: str, stream: Any) -> None:
        """Sets the stream of this device ("cuda:0") for calls that take none: commit, step_begin, grad_ready. At first
        it is the legacy default stream. It comes after what other libraries have under way for the arrays registered
        there: libddp asks for these arrays again, as DLPack says."""
        place = device_of(device)
        _ddp.ddp_set_stream(self._handle, *place, stream_of(stream))
        self._streams[place] = stream
        for name, array, where in self._registered():
            if where == place and array is not None:
                self._take(name, array, where[1])

    def grad_ready_on(self, param: int, stream: Any) -> None:
        """grad_ready for a parameter on a GPU: the gradient is complete when the stream reaches this point."""
        _ddp.ddp_grad_ready_on(self._handle, param, stream_of(stream))

    def put_on(self, param: int, grad: Any, stream: Any, *, add: bool = False) -> None:
        """put for a parameter on a GPU: copies a gradient from any array there, in the order of the stream, and announces it. The
        stream comes after what the array's library has under way for it. Keep the array until the stream has come here, if its
        library may use the memory on another one."""
        parameter = self.parameters[param]
        what = f"{parameter.name}: grad"
        source = memory_of(what, grad, writable=False, on_gpu=True, stream=stream, index=device_of(parameter.device)[1])
        same_layout(what, source, parameter.shape, parameter.grad_dtype)
        _ddp.ddp_put_on(self._handle, param, source.address, add * _ddp.DDP_PUT_ADD, stream_of(stream))

    def get_on(self, param: int, array: Any, stream: Any) -> None:
        """Copies the gradient from its place to an array on the same device, in the order of the stream, between steps: after
        finalize_on the mean."""
        parameter = self.parameters[param]
        what = f"{parameter.name}: array"
        target = memory_of(what, array, on_gpu=True, stream=stream, index=device_of(parameter.device)[1])
        same_layout(what, target, parameter.shape, parameter.grad_dtype)
        _ddp.ddp_get_on(self._handle, param, target.address, stream_of(stream))

    def finalize_on(self, stream: Any) -> None:
        """finalize that does not wait for the GPU: what is enqueued on the stream afterwards sees the mean."""
        self._end_step(_ddp.ddp_finalize_on, stream_of(stream))

    def finalize_enqueue(self) -> None:
        """The same for parameters on several GPUs, with the streams of set_stream."""
        self._end_step(_ddp.ddp_finalize_enqueue)

    def wait_param_on(self, param: int, stream: Any) -> None:
        """wait_param that does not wait for the GPU: what is enqueued on the stream afterwards sees this parameter's mean."""
        _ddp.ddp_wait_param_on(self._handle, param, stream_of(stream))

    def _take(self, what: str, array: Any, index: int = 0) -> Memory:
        """The memory of an array that calls without a stream use: what its library has under way for it comes before them. index: of
        its GPU, if the array does not say that."""
        place = gpu_of(array, index)
        return memory_of(what, array, on_gpu=True, stream=self._streams.get(place) if place else None, index=index)

    def _registered(self) -> Iterator[Tuple[str, Any, Tuple[int, int]]]:
        for parameter in self.parameters:
            where = device_of(parameter.device)
            yield f"{parameter.name}: data", parameter.data, where
            yield f"{parameter.name}: grad", parameter.grad, where
        for memory, array in zip(self._buffers, self._buffer_arrays):
            yield "a buffer", array, memory.device
