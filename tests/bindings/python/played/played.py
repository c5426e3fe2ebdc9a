"""The device "played" of PyTorch, which tests/bindings/python/played/played.cc is, and how ddp.torch sees it.

    build(COMPILER, FAKE_DEVICE, FOLDER) -> the library, made in FOLDER for this Python's PyTorch
    load(LIBRARY)                        in each process that uses it, before the first tensor there
"""
import contextlib
import os
import pathlib
import sys
import types

from players import TESTS as TESTS
from players import built


def why_not():
    """Why it cannot be played with this Python's PyTorch, or None."""
    try:
        import torch
    except ImportError:
        return "there is no PyTorch"
    if not hasattr(torch, "accelerator"):
        return (f"in PyTorch {torch.__version__}, autograd knows no streams of a device that it does not have itself: 2.6 or newer is "
                "needed. DDP_TORCH_PYTHON names a Python that has it")
    return None


def need():
    """Goes on where it can be played: in this Python, or in that of DDP_TORCH_PYTHON, which then takes over. Skips the test otherwise."""
    reason, python = why_not(), os.environ.get("DDP_TORCH_PYTHON")
    if reason and python:
        del os.environ["DDP_TORCH_PYTHON"]
        os.execv(python, [python, "-B", *sys.argv])
    if reason:
        print(f"skipped: {reason}")
        sys.exit()


def build(compiler, fake_device, folder):
    """Made once for each PyTorch and each source."""
    import torch
    home = pathlib.Path(torch.__file__).parent
    standard = "c++20" if "C++20 or later" in (home / "include/ATen/ATen.h").read_text() else "c++17"
    return built("played.cc", torch.__version__, compiler, fake_device, folder, f"-std={standard}", "-isystem", home / "include", "-isystem",
                 home / "include/torch/csrc/api/include", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                 f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10")


def load(library):
    """The device, its torch.played, and its entry in the seam of ddp.torch."""
    import torch
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("played")
    module = types.ModuleType("torch.played")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device = lambda: torch.accelerator.current_device_index()
    module.device = torch.accelerator.device_index
    module.set_device = torch.accelerator.set_device_index
    module.current_stream = torch.accelerator.current_stream
    module.synchronize = torch.accelerator.synchronize
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda state, device=None: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch._register_device_module("played", module)
    from ddp import _torch_devices
    _torch_devices.KINDS["played"] = Played()


class Shown:
    """A tensor as a library for GPUs shows it by DLPack."""

    def __init__(self, tensor):
        import ddp
        if not tensor.is_contiguous():
            raise BufferError("it is not contiguous")
        self._index = tensor.device.index
        self._memory = ddp.Memory.at(tensor.data_ptr(), ddp._arrays.dtype_of(tensor.dtype), tuple(tensor.shape), tensor, False, (1, self._index))

    def __dlpack__(self, *, stream=None):
        import torch
        if torch.accelerator.current_device_index() != self._index:
            raise BufferError("another device is the current one")  # as PyTorch says for CUDA
        torch.ops.played.order(self._index, 0 if stream in (None, 1) else stream)
        return self._memory.__dlpack__()

    def __dlpack_device__(self):
        return self._memory.__dlpack_device__()


class Played:
    """The counterpart of ddp._torch_devices.Cuda. libddp takes the fake device for CUDA."""

    name = "cuda"

    def __init__(self):
        self._pid = os.getpid()

    def stream(self, index):
        import torch
        return torch.ops.played.current_stream(index)

    @contextlib.contextmanager
    def on(self, index, handle):
        import torch
        before = torch.ops.played.set_current_stream(index, handle)
        try:
            yield
        finally:
            torch.ops.played.set_current_stream(index, before)

    def order(self, index, handle):
        import torch
        torch.ops.played.wait_on_stream(index, handle)

    def order_other(self, index, handle):
        import torch
        torch.ops.played.order(index, handle)

    def wait(self, index):
        import torch
        torch.accelerator.synchronize(index)

    def may_wait(self):
        return os.getpid() == self._pid and not self.capturing(0)

    def capturing(self, index):
        import torch
        return torch.ops.played.capturing(index)

    def keep(self, tensor):
        import torch
        tensor.record_stream(torch.accelerator.current_stream(tensor.device))

    def current(self, index):
        import torch
        return torch.accelerator.device_index(index)

    def given(self, tensor):
        return Shown(tensor)

    def shown(self, memory):
        import ddp
        import torch
        _, index = memory.__dlpack_device__()
        memory.__dlpack__(stream=self.stream(index) or 1)  # which says whether it is for the current stream
        dtype = {ddp._arrays.dtype_of(each): each for each in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8,
                                                               torch.int32, torch.int64)}[memory.dtype]
        return torch.ops.played.at(memory.address, memory.shape, index, dtype, id(memory))


def group_through_the_host():
    """A group of torch.distributed, for PyTorch's hooks with tensors of the device. Collective."""
    import torch
    from torch import distributed

    class Through(distributed.ProcessGroup):
        """Allreduce and broadcast over Gloo, on copies."""

        def __init__(self, store, rank, size, _timeout):
            super().__init__(rank, size)
            self._inner = distributed.ProcessGroupGloo(store, rank, size)

        def getBackendName(self):
            return "through"

        def _on_copies(self, tensors, run):
            copies = [tensor.cpu() for tensor in tensors]
            run(copies).wait()
            for tensor, copied in zip(tensors, copies):
                tensor.copy_(copied)
            done = torch.futures.Future()
            done.set_result(tensors)
            return torch._C._distributed_c10d._create_work_from_future(done)

        def allreduce(self, tensors, options=None):
            return self._on_copies(tensors, lambda copies: self._inner.allreduce(copies, options or distributed.AllreduceOptions()))

        def broadcast(self, tensors, options=None):
            return self._on_copies(tensors, lambda copies: self._inner.broadcast(copies, options or distributed.BroadcastOptions()))

    distributed.Backend.register_backend("through", Through, devices=["played"])
    return distributed.new_group(backend="through")
