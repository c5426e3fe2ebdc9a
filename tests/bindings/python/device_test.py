"""Parameters on a GPU, with the tests' own module for them, whose memory no processor can touch and whose streams are late.

    device_test.py MODULE RANKS        MODULE: libddp-cuda.so of the tests; its folder is $DDP_MODULE_PATH
"""
import contextlib
import ctypes
import sys
import types
import unittest
import unittest.mock

import ddp
import support

MODULE, RANKS = sys.argv[1], int(sys.argv[2])
COUNT = 1000
fake = ctypes.CDLL(MODULE)


def function(name, result, *arguments):
    """One of tests/support/fake_device/fake_device.h, by the name that C++ gives it."""
    found = fake[f"_ZN4fake{name}"]
    found.restype, found.argtypes = result, arguments
    return found


allocate = function("8allocateEim", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
release = function("7releaseEPv", None, ctypes.c_void_p)
alias = function("5aliasEPKv", ctypes.c_void_p, ctypes.c_void_p)
make_stream = function("11make_streamEi", ctypes.c_void_p, ctypes.c_int)
free_stream = function("11free_streamEPv", None, ctypes.c_void_p)
wait = function("4waitEiPv", None, ctypes.c_int, ctypes.c_void_p)


class GpuArray:
    """An array of float32 as a library for GPUs would have it."""

    def __init__(self, value, device=0, count=COUNT):
        self.address, self.count = allocate(device, 4 * count), count
        self.memory = ddp.Memory.at(self.address, ddp.F32, (count,), self, False, (1, device))
        self.streams = []  # with which it was asked for
        self.elements()[:] = [value] * count

    def elements(self):
        return (ctypes.c_float * self.count).from_address(alias(self.address))

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return self.memory.__dlpack__()

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


class NumbaArray:
    """As numba's DeviceNDArray: it has one interface, which names no GPU."""

    def __init__(self, value, device=0, stream=None, **other):
        self.array = GpuArray(value, device)
        self.elements = self.array.elements
        self.facts = {"shape": (COUNT,), "typestr": "<f4", "data": (self.array.address, False), "strides": None, "stream": stream, "version": 3,
                      **other}

    @property
    def __cuda_array_interface__(self):
        return self.facts


class TorchArray(GpuArray):
    """As PyTorch's tensors: shown only while their device is the current one."""

    current = 0
    requires_grad = False

    def __init__(self, value, device):
        super().__init__(value, device)
        self.device = types.SimpleNamespace(type="cuda", index=device)

    def __dlpack__(self, *, stream=None):
        if TorchArray.current != self.device.index:
            raise BufferError("Can't export tensors on a different CUDA device index")
        return super().__dlpack__(stream=stream)


@contextlib.contextmanager
def torch_device(device):
    """As torch.cuda.device."""
    before, TorchArray.current = TorchArray.current, device.index
    try:
        yield
    finally:
        TorchArray.current = before


class ImmutableArray(GpuArray):
    """As JAX's: DLPack's version 0 does not say that it must not be written."""

    __module__ = "jaxlib._jax"


class Stream:
    """As PyTorch's."""

    def __init__(self):
        self.cuda_stream = make_stream(0)


class OnGpu(unittest.TestCase):
    def setUp(self):
        self.group = ddp.Group(backend="tcp")
        self.addCleanup(self.group.close)
        self.stream = Stream()

    def step(self, context, param, write):
        write()
        context.grad_ready_on(param, self.stream)
        context.finalize_on(self.stream)
        wait(0, self.stream.cuda_stream)

    def test_steps(self):
        data, grad = GpuArray(float(10 + support.RANK)), GpuArray(0.0)
        with ddp.Context(self.group) as context:
            context.set_stream("cuda:0", self.stream)
            param = context.register("w", data, grad)
            ready = [self.stream.cuda_stream]  # what commit and gradients are ordered with
            self.assertEqual((param.device, data.streams, grad.streams), ("cuda:0", ready, ready))
            context.commit()
            wait(0, self.stream.cuda_stream)
            self.assertEqual(set(data.elements()), {10.0})
            mean = sum(range(self.group.world_size)) / self.group.world_size
            for step in range(3):
                self.step(context, param, lambda step=step: grad.elements().__setitem__(slice(None), [float(step + support.RANK)] * COUNT))
                self.assertEqual(set(grad.elements()), {step + mean})

    def test_arrays_are_asked_for_in_the_order_of_the_stream_that_is_set(self):
        other = Stream()
        data, grad, buffer, elsewhere = GpuArray(0.0), GpuArray(0.0), GpuArray(0.0), GpuArray(0.0, device=1)
        arrays, expected = (data, grad, buffer), [1]
        with ddp.Context(self.group) as context:
            param = context.register("w", data, grad)
            context.register_buffer("mean", buffer)
            context.register("elsewhere", elsewhere)
            for stream, number in ((None, 1), (0, 1), (self.stream, self.stream.cuda_stream),
                                   (other.cuda_stream, other.cuda_stream), (2, 2), (self.stream, self.stream.cuda_stream)):
                self.assertEqual([array.streams for array in arrays], [expected] * 3)
                context.set_stream("cuda:0", stream)
                expected.append(number)
            self.assertEqual([array.streams for array in arrays], [expected] * 3)
            self.assertEqual(elsewhere.streams, [1])  # of a device whose stream was not set
            context.commit()
            context.grad_ready_on(param, self.stream)
            with self.assertRaises(ddp.InvalidStateError):
                context.set_stream("cuda:0", other)  # in the middle of a step; nothing was asked for
            self.assertEqual(data.streams, expected)
            context.grad_ready(1)
            context.finalize()

    def test_wait_on(self):
        other, grad = Stream(), GpuArray(0.0)
        with ddp.Context(self.group) as context:
            context.set_stream("cuda:0", self.stream)
            param = context.register("w", GpuArray(0.0), grad)
            context.commit()
            grad.elements()[:] = [float(support.RANK)] * COUNT
            context.grad_ready_on(param, self.stream)
            context.finalize_async()
            context.wait_param_on(param, other)
            wait(0, other.cuda_stream)
            self.assertEqual(set(grad.elements()), {(self.group.world_size - 1) / 2})
            context.finalize_enqueue()
            with support.raises(self, ddp.InvalidStateError, "Context.wait_param_on"):
                context.wait_param_on(param, other)

    def test_view_and_hook(self):
        seen = []

        def double(group, bucket):
            seen.append((bucket.device, bucket.stream is not None, bucket.gradients[0].array.device))
            return group.allreduce(bucket.buffer, "avg", async_op=True)

        with ddp.Context(self.group) as context:
            context.set_stream("cuda:0", self.stream)
            param = context.register("w", shape=(COUNT,), dtype="f32", device="cuda:0")
            context.commit()
            context.set_hook(double)
            view = context.grad_view(param)
            self.assertEqual((view.device, view.__dlpack_device__()), ((1, 0), (2, 0)))
            with self.assertRaises(BufferError):
                memoryview(view)
            wait(0, self.stream.cuda_stream)
            elements = (ctypes.c_float * COUNT).from_address(alias(view.address))
            self.step(context, param, lambda: elements.__setitem__(slice(None), [1.0] * COUNT))
            self.assertEqual(set(elements), {1.0})
        self.assertEqual(seen, [("cuda:0", True, (1, 0))])

    def test_shown_in_the_order_of_a_stream(self):
        shown = []

        def take(group, bucket):
            for memory in (bucket.buffer, bucket.gradients[0].array):
                for stream in (bucket.stream, -1):
                    shown.append(repr(memory.__dlpack__(stream=stream, max_version=(1, 0))))
                for stream in (None, 1, self.stream.cuda_stream):
                    with support.raises(self, BufferError, "ExternalStream(bucket.stream)"):
                        memory.__dlpack__(stream=stream)
            return group.allreduce(bucket.buffer, "avg", async_op=True)

        with ddp.Context(self.group) as context:
            param = context.register("w", shape=(COUNT,), dtype="f32", device="cuda:0")
            context.commit()
            context.set_hook(take)
            context.grad_ready_on(param, self.stream)
            context.finalize()
            view = context.grad_view(param)  # libddp has waited: it is there for every stream
            for stream in (None, -1, 1, 2, self.stream.cuda_stream):
                shown.append(repr(view.__dlpack__(stream=stream, dl_device=(2, 0), copy=False)))
            for wish, kind, word in (({"stream": 0}, ValueError, "stream"), ({"stream": -2}, ValueError, "stream"),
                                     ({"stream": "1"}, TypeError, "stream"), ({"stream": 1 << 64}, ValueError, "stream"),
                                     ({"dl_device": (1, 0)}, BufferError, "kind 1"),
                                     ({"dl_device": (2, 1)}, BufferError, "number 1"), ({"copy": True}, BufferError, "copies")):
                with self.subTest(wish), support.raises(self, kind, word):
                    view.__dlpack__(**wish)
        self.assertEqual(len(shown), 9)
        self.assertTrue(all('"dltensor"' in each for each in shown))

    def test_a_hook_asks_for_arrays_in_the_order_of_its_bucket(self):
        small, result, streams = GpuArray(2.0), GpuArray(3.0, count=1008), []  # a bucket ends at a multiple of 64 bytes

        def through_others(group, bucket):
            streams.append(bucket.stream)
            group.allreduce(small, "avg")
            bucket.set_buffer(result)

        with ddp.Context(self.group) as context:
            param = context.register("w", shape=(COUNT,), dtype="f32", device="cuda:0")
            context.commit()
            context.set_hook(through_others)
            context.grad_ready_on(param, self.stream)
            context.finalize()
            elements = (ctypes.c_float * COUNT).from_address(alias(context.grad_view(param).address))
            self.assertEqual(set(elements), {3.0})
        self.assertEqual((small.streams, result.streams), (streams, streams))

    def test_immutable_arrays_are_only_read(self):
        given = ImmutableArray(float(support.RANK))

        def reduce_others(group, bucket):
            gradient = bucket.gradients[0].array
            with support.raises(self, TypeError, "recv: ", "JAX"):
                group.allreduce(given, send=gradient)
            group.allreduce(gradient, bucket.op, send=given)

        with ddp.Context(self.group) as context:
            for what, register in (("data", lambda: context.register("w", given)),
                                   ("grad", lambda: context.register("w", None, given)),
                                   ("data", lambda: context.register_buffer("mean", given))):
                with support.raises(self, TypeError, f"{what}: ", "JAX", "shape, dtype and device"):
                    register()
            self.assertEqual(given.streams, [])  # not even asked for
            param = context.register("w", shape=(COUNT,), dtype="f32", device="cuda:0")
            context.commit()
            with support.raises(self, TypeError, "grad: ", "cuda:0"):
                context.put(param, given)
            context.set_hook(reduce_others)
            context.grad_ready_on(param, self.stream)
            context.finalize()
            elements = (ctypes.c_float * COUNT).from_address(alias(context.grad_view(param).address))
            self.assertEqual(set(elements), {(self.group.world_size - 1) / 2})
        with support.raises(self, TypeError, "JAX"):
            ddp.Memory(given)
        memory = ddp.Memory(given, writable=False)
        self.assertTrue(memory.readonly)
        with self.assertRaises(BufferError):
            memory.__dlpack__()
        self.assertEqual(set(given.elements()), {float(support.RANK)})

    def test_put_and_get(self):
        """From any array there, which is used for something else at once, and back."""
        other = Stream()
        with ddp.Context(self.group) as context:
            param = context.register("w", shape=(COUNT,), dtype="f32", device="cuda:0")
            context.commit()
            for step, (kind, stream) in enumerate([(GpuArray, self.stream), (NumbaArray, other), (ImmutableArray, self.stream)]):
                given, result = kind(float(step + support.RANK)), GpuArray(0.0)
                context.put_on(param, given, stream)
                wait(0, stream.cuda_stream)
                given.elements()[:] = [-1.0] * COUNT
                context.finalize_on(stream)
                context.get_on(param, result, stream)
                wait(0, stream.cuda_stream)
                self.assertEqual(set(result.elements()), {step + (self.group.world_size - 1) / 2})
                if kind is GpuArray:
                    self.assertEqual((given.streams, result.streams), ([stream.cuda_stream],) * 2)
            host = (ctypes.c_float * COUNT)()
            with support.raises(self, ddp.InvalidArgumentError, "gradient is memory of the CPU", "'w' is on cuda:0"):
                context.put_on(param, host, self.stream)
            with support.raises(self, ddp.InvalidArgumentError, "memory is memory of cuda:1", "'w' is on cuda:0"):
                context.get_on(param, GpuArray(0.0, device=1), self.stream)
            with support.raises(self, TypeError, "w: array: ", "JAX"):
                context.get_on(param, ImmutableArray(0.0), self.stream)
            with support.raises(self, ValueError, "w: grad: its shape"):
                context.put_on(param, GpuArray(0.0, count=COUNT - 1), self.stream)
            context.put_on(param, GpuArray(0.0), self.stream)
            with support.raises(self, ddp.InvalidStateError, "under way"):
                context.get_on(param, GpuArray(0.0), self.stream)
            context.finalize()

    def test_put_and_get_of_another_type_than_the_value(self):
        with ddp.Context(self.group) as context:
            param = context.register("w", shape=(COUNT,), dtype="bf16", grad_dtype="f32", device="cuda:0")
            context.commit()
            given, result = GpuArray(float(support.RANK)), GpuArray(0.0)
            context.put_on(param, given, self.stream)
            context.finalize_on(self.stream)
            context.get_on(param, result, self.stream)
            wait(0, self.stream.cuda_stream)
            self.assertEqual(set(result.elements()), {(self.group.world_size - 1) / 2})

    def test_arrays_with_the_interface_of_cuda(self):
        data, grad, there = NumbaArray(float(10 + support.RANK)), NumbaArray(0.0), NumbaArray(float(20 + support.RANK), device=1)
        with ddp.Context(self.group) as context:
            context.set_stream("cuda:0", self.stream)
            param = context.register("w", data, grad)
            second = context.register("v", there, device="cuda:1")
            self.assertEqual((param.device, second.device), ("cuda:0", "cuda:1"))
            context.commit()
            wait(0, self.stream.cuda_stream)
            wait(1, None)
            self.assertEqual((set(data.elements()), set(there.elements())), ({10.0}, {20.0}))
            for step in range(3):
                grad.elements()[:] = [float(step + support.RANK)] * COUNT
                context.grad_ready_on(param, self.stream)
                context.put_on(second, NumbaArray(float(support.RANK), device=1), None)
                context.finalize()
                self.assertEqual(set(grad.elements()), {step + (self.group.world_size - 1) / 2})
        mine = self.stream.cuda_stream
        with ddp.Context(self.group) as context:
            context.set_stream("cuda:0", self.stream)
            context.register("bound", NumbaArray(0.0, stream=mine))
            with support.raises(self, ValueError, "other: data: ", f"stream {mine + 1}", f"stream {mine}", "set_stream"):
                context.register("other", NumbaArray(0.0, stream=mine + 1))
            with support.raises(self, ddp.InvalidArgumentError, "cuda:1", "device says cuda:0"):
                context.register("other", NumbaArray(0.0, device=1))
            for kind, words, facts in ((TypeError, ("<i2", "<f4"), {"typestr": "<i2"}), (TypeError, ("mask",), {"mask": object()}),
                                       (ValueError, ("contiguous",), {"strides": (8,)}),
                                       (ValueError, ("read-only",), {"data": (data.array.address, True)})):
                with support.raises(self, kind, "other: data: ", *words):
                    context.register("other", NumbaArray(0.0, **facts))
            with support.raises(self, ValueError, "bound: data: ", "stream 1", f"stream {mine}"):
                context.set_stream("cuda:0", None)

    def test_a_tensor_whose_device_is_not_the_current_one(self):
        torch = types.SimpleNamespace(Tensor=TorchArray, cuda=types.SimpleNamespace(device=torch_device))
        with unittest.mock.patch.dict(sys.modules, torch=torch):
            ctx = ddp.Context(self.group)
            grad = TorchArray(self.group.rank, 1)
            p = ctx.register("w", TorchArray(1, 1), grad)
            ctx.commit()
            stream = make_stream(1)
            ctx.grad_ready_on(p, stream)
            ctx.finalize_on(stream)
            wait(1, stream)
            self.assertEqual(grad.elements()[0], (self.group.world_size - 1) / 2)
            self.assertEqual(TorchArray.current, 0)
            ctx.close()
            free_stream(stream)
        ctx = ddp.Context(self.group)
        with support.raises(self, ValueError, "w: data", "different CUDA device", "cuda:1", "current device"):
            ctx.register("w", TorchArray(1, 1))  # of a library that nobody knows
        ctx.close()

    def test_errors(self):
        array, host = GpuArray(1.0), (ctypes.c_float * COUNT)()
        with ddp.Context(self.group) as context:
            with support.raises(self, ValueError, "cpu and cuda:0"):
                context.register("w", host, array)
            param = context.register("w", array, GpuArray(0.0))
            with support.raises(self, TypeError, "cuda:0"):
                context.put(param, array)
        with support.raises(self, ddp.UnsupportedError, "communication hooks"):
            self.group.allreduce(array)
        with support.raises(self, ddp.InvalidArgumentError, "one place"):
            self.group.allreduce(host, send=array)
        with support.raises(self, ValueError, "gpu:0"):
            ddp.device_count("gpu:0")

    def test_devices(self):
        self.assertEqual(ddp.device_count(), 2)
        self.assertEqual(ddp.device_count("cpu"), 1)


if __name__ == "__main__":
    if support.RANK < 0:
        print(support.run_ranks(RANKS, sys.executable, "-B", __file__, *sys.argv[1:]))
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
