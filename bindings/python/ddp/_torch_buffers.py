"""Sends a module's buffers from one rank to all: those on GPUs in the order of streams, without a wait of the host for the device."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

from ._torch_devices import Streams, shown
from ._torch_module import send
from .context import Context

_ALIGNED = 16  # bytes


class Buffers:
    """The buffers of a module, as long as they are the same."""

    def __init__(self, group, named):
        """Collective, with equal buffers on all ranks."""
        self._group = group
        self._on_cpu = [index for index, (_, tensor) in enumerate(named) if tensor.device.type == "cpu"]
        self._devices = {}  # {device: indices}
        for index, (_, tensor) in enumerate(named):
            if tensor.device.type != "cpu":
                self._devices.setdefault(tensor.device, []).append(index)
        self._root, self._context = [0], None
        if self._devices:
            self._make_context([tensor for _, tensor in named])

    def _make_context(self, tensors):
        """All buffers on a device are one gradient, which a hook broadcasts. Groups send memory of a GPU in hooks only."""
        self._context = Context(self._group, reduction="sum", initial_broadcast=False, rebuild=False, broadcast_buffers=False)
        self._streams = Streams(self._context, [("a buffer", tensors[indices[0]]) for indices in self._devices.values()])
        self._streams.enter()
        for number, (device, indices) in enumerate(self._devices.items()):
            size = sum(_room(tensors[index]) for index in indices)
            self._context.register(f"buffers {number}", shape=(max(size, 1),), dtype="u8", device=self._streams.name(number))
        self._context.commit()
        root = self._root  # and no reference to this object, which would make a circle
        self._context.set_hook(lambda group, bucket: group.broadcast(bucket.buffer, root[0], async_op=True))
        self._places = {}  # {index: where it lies in the bucket}
        for number, (device, indices) in enumerate(self._devices.items()):
            flat, start = shown(self._context.grad_view(number), device), 0
            for index in indices:
                tensor = tensors[index]
                size = tensor.numel() * tensor.element_size()
                self._places[index] = flat[start:start + size].view(tensor.dtype).view(tensor.shape)
                start += _room(tensor)

    def send(self, root, named):
        """On all ranks but the root: (tensor, what was sent)."""
        received = send(self._group, root, [named[index] for index in self._on_cpu])
        if self._context is None:
            return received
        mine = self._group.rank == root
        self._root[0] = root
        self._streams.enter()
        self._context.step_begin()
        for number, indices in enumerate(self._devices.values()):
            for index in indices if mine else ():
                self._places[index].copy_(named[index][1])
            self._streams.ready(number)
        self._streams.finalize()
        return received if mine else received + [(named[index][1], place) for index, place in self._places.items()]

    def close(self):
        """Frees the context."""
        if self._context is not None:
            self._streams.wait()
            self._places = {}
            self._context.close()
            self._context = None


def _room(tensor):
    return -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
