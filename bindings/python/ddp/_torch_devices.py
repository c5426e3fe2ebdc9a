"""The devices of ddp.torch's tensors: the only place that knows how PyTorch and libddp show each other streams and memory there."""
# mypy: ignore-errors
# PyTorch may not be there, and its types differ between versions.
from __future__ import annotations

import contextlib
import copy
import operator
import threading

import torch
from torch import nn

from ._errors import UnsupportedError

#: PyTorch's compiler uses it, too: it makes no object.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda index: torch.cuda.current_stream(index).cuda_stream)


class Cuda:
    """NVIDIA GPUs."""

    name = "cuda"  # what libddp calls this kind of device

    def stream(self, index):
        """The handle of the current stream of a device."""
        return _raw_stream(index)

    def on(self, index, handle):
        """With another stream as the current one."""
        return torch.cuda.stream(self._named(index, handle))

    def order(self, index, handle):
        """The current stream waits for another one."""
        torch.cuda.current_stream(index).wait_stream(self._named(index, handle))

    def order_other(self, index, handle):
        """Another stream waits for the current one."""
        self._named(index, handle).wait_stream(torch.cuda.current_stream(index))

    def _named(self, index, handle):
        """PyTorch takes 0 for a wish for a new stream."""
        device = torch.device("cuda", index)
        return torch.cuda.ExternalStream(handle, device=device) if handle else torch.cuda.default_stream(device)

    def wait(self, index):
        """The host waits until the device has done all."""
        torch.cuda.synchronize(index)

    def may_wait(self):
        """Not in a child of fork, which has no device, nor while PyTorch captures a graph, which that would spoil."""
        return not torch.cuda._is_in_bad_fork() and not torch.cuda.is_current_stream_capturing()

    def capturing(self, index):
        """Whether the current stream of a device is being captured into a graph."""
        with torch.cuda.device(index):
            return torch.cuda.is_current_stream_capturing()

    def keep(self, tensor):
        """The memory of a tensor of PyTorch's is not used for others before the current stream has come here."""
        tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def current(self, index):
        """With this device as the current one."""
        return torch.cuda.device(index)

    def given(self, tensor):
        """A tensor for libddp to take by DLPack."""
        return tensor

    def shown(self, memory):
        """A tensor over memory of libddp's."""
        return torch.from_dlpack(memory)


#: By the type of a torch.device.
KINDS = {"cuda": Cuda()}


def kind_of(device):
    """None: the CPU."""
    return None if device.type == "cpu" else KINDS[device.type]


def given(tensor):
    """A tensor as libddp takes it by DLPack, on_device_of(tensor)."""
    kind = kind_of(tensor.device)
    return tensor if kind is None else kind.given(tensor)


def on_device_of(tensor):
    """With a tensor's device as the current one: PyTorch lets nobody take the tensor by DLPack while another is."""
    kind = kind_of(tensor.device)
    return contextlib.nullcontext() if kind is None else kind.current(tensor.device.index)


def keep_for_current_stream(tensor):
    """A tensor that may have been made on another stream is used on the current one, and then forgotten."""
    kind = kind_of(tensor.device)
    if kind is not None:
        kind.keep(tensor)


def shown(memory, device):
    """A tensor over memory of libddp's, on this device. A bucket's needs on_stream_of(bucket)."""
    kind = kind_of(device)
    return torch.from_dlpack(memory) if kind is None else kind.shown(memory)


def on_stream_of(bucket, device):
    """With the stream of a bucket on this device as the current one."""
    kind = kind_of(device)
    return contextlib.nullcontext() if kind is None else kind.on(device.index, bucket.stream)


def chosen_devices(devices, device_ids, output_device):
    """([index], index) of device_ids and output_device, or (None, None), by PyTorch's rules for a module on these devices."""
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError(f"device_ids: None or one device is expected, not {device_ids!r}: each GPU has a process of its own")
    types = sorted({device.type for device in devices})
    if len(types) > 1:
        raise ValueError(f"module: its parameters are on devices of several types, {' and '.join(types)}, and one is expected")
    if not devices:
        return None, None  # the error is another one: there is no gradient
    if not device_ids or types == ["cpu"] or len(devices) > 1:
        for name, value in (("device_ids", device_ids), ("output_device", output_device)):
            if value is not None and value != []:
                where = " and ".join(sorted(map(str, devices)))
                raise ValueError(f"{name}: it is for a module on one GPU with device_ids=[GPU], and this one is on {where}: "
                                 f"leave out {name}={value!r}" + (", or say device_ids, too" if not device_ids and types != ["cpu"] else ""))
        return None, None
    device, = devices
    wanted = _index_of(device_ids[0], device.type)
    if wanted != device.index:
        raise ValueError(f"device_ids: the module is on {device}, and not on {device_ids[0]!r}. Move it there first")
    return [wanted], wanted if output_device is None else _index_of(output_device, device.type)


def _index_of(device, kind):
    """The index of 1, "cuda:1" or torch.device("cuda", 1)."""
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != kind:
        raise ValueError(f"device_ids, output_device: {device} is not of the module's type of device, {kind}")
    return torch.empty(0, device=device).device.index if device.index is None else device.index


def moved(value, device):
    """Tensors, and those in tuples, lists and dicts, on this device."""
    return mapped(lambda tensor: tensor.to(device), value)


def mapped(function, value):
    """function(tensor) of a tensor, and of those in tuples, lists and dicts. It is the value itself where it is so for all of them."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, nn.utils.rnn.PackedSequence):
        data = function(value.data)
        return value if data is value.data else value.to(data)
    if not isinstance(value, (tuple, list, dict)):
        return value
    before = list(value.values() if isinstance(value, dict) else value)
    parts = [mapped(function, part) for part in before]
    if all(map(operator.is_, parts, before)):
        return value
    if isinstance(value, dict):
        other = copy.copy(value)  # perhaps of a class with arguments of its own
        other.update(zip(value, parts))
        return other
    if isinstance(value, list):
        return parts
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class Streams:
    """A context's calls, in the order of PyTorch's current streams of the devices that its tensors are on."""

    def __init__(self, context, named):
        """The devices of (name, tensor)s. The first of them have the indices that `ready` takes."""
        self._context = context
        self._places = []  # (kind, index) of each device
        self._set = {}     # the streams that the context knows
        self._programs = {}  # those of the last forward pass, where there are several devices
        self._of = []      # the place of each tensor, None on the CPU
        for name, tensor in named:
            if tensor.device.type != "cpu" and tensor.device.type not in KINDS:
                raise UnsupportedError(f"{name} is on {tensor.device}: this DistributedDataParallel takes modules on the CPU and on NVIDIA GPUs")
            kind = kind_of(tensor.device)
            place = None if kind is None else (kind, tensor.device.index)
            self._of.append(place)
            if place is not None and place not in self._places:
                self._places.append(place)
        self.lock = threading.RLock()  # autograd works on a thread of each GPU, beside that of the CPU

    def __bool__(self):
        """Whether there is a device but the CPU."""
        return bool(self._places)

    def name(self, index):
        """The name that libddp has for the device of a tensor."""
        place = self._of[index]
        return "cpu" if place is None else f"{place[0].name}:{place[1]}"

    def remember(self):
        """Now the current streams are the program's. On a thread that autograd has for a device, those of other devices are not."""
        if len(self._places) > 1:
            self._programs = {(kind, index): kind.stream(index) for kind, index in self._places}

    def of_program(self, index):
        """On autograd's thread of the device of a tensor: with the program's streams of all others as the current ones."""
        own = self._of[index]
        if not self._programs or own is None:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        for place, stream in self._programs.items():
            if place != own:
                stack.enter_context(place[0].on(place[1], stream))
        stack.enter_context(own[0].current(own[1]))
        return stack

    def enter(self):
        """Before calls of the context that take no stream: they are in the order of what are now the current streams."""
        for place in self._places:
            kind, index = place
            stream = kind.stream(index)
            if self._set.get(place) != stream:
                with kind.current(index):  # it takes the tensors there again
                    self._context.set_stream(f"{kind.name}:{index}", stream)
                self._set[place] = stream

    def current(self):
        """The current streams, for follow."""
        return {place: place[0].stream(place[1]) for place in self._places}

    def follow(self, streams):
        """The current streams wait for what is on these."""
        for (kind, index), stream in streams.items():
            if kind.stream(index) != stream:
                kind.order(index, stream)

    def catch_up(self):
        """In a step, before calls that take no stream: what is on the current streams comes before them."""
        for place in self._places:
            kind, index = place
            if kind.stream(index) != self._set[place]:
                kind.order_other(index, self._set[place])

    def ready(self, index):
        """This gradient is complete in the order of the current stream."""
        place = self._of[index]
        if place is None:
            self._context.grad_ready(index)
        else:
            self._context.grad_ready_on(index, place[0].stream(place[1]))

    def begin_end(self):
        """The end of a step without its waits: wait_for and finalize follow."""
        self._context.finalize_async()

    def wait_for(self, index):
        """After begin_end: this mean is there, on a GPU in the order of the current stream."""
        place = self._of[index]
        if place is None:
            self._context.wait_param(index)
        else:
            self._context.wait_param_on(index, place[0].stream(place[1]))

    def wait_for_value(self, index):
        """After publish: this value is there, on a GPU in the order of the current stream."""
        place = self._of[index]
        if place is None:
            self._context.wait_value(index)
        else:
            self._context.wait_value_on(index, place[0].stream(place[1]))

    def finalize(self):
        """The end of a step. On GPUs nothing waits for it but the current streams."""
        if not self._places:
            self._context.finalize()
        elif len(self._places) == 1:
            kind, index = self._places[0]
            self._context.finalize_on(kind.stream(index))
        else:
            self._context.finalize_enqueue()
            for place in self._places:
                kind, index = place
                if kind.stream(index) != self._set[place]:
                    kind.order(index, self._set[place])

    def wait(self):
        """The host waits until the devices have done all."""
        for kind, index in self._places:
            kind.wait(index)

    def captured(self):
        """Whether a current stream is being captured into a graph."""
        return any(kind.capturing(index) for kind, index in self._places)

    def may_wait(self):
        """Whether it can wait now."""
        return all(kind.may_wait() for kind, _ in self._places)
