"""tinygrad's CUDA, played on its CPU beside the fake device (tests/support/fake_device), whose memory no processor can touch.

load(FAKE_DEVICE): before the first DataParallel. tinygrad's CPU is then a GPU for ddp.tinygrad. A copy beside kernels that nobody has
waited for is an error.
"""
import ctypes


def load(fake_device):
    from tinygrad import Device
    from tinygrad.helpers import GlobalCounters

    from ddp import _tinygrad_ways
    fake = ctypes.CDLL(fake_device)
    alias, wait = fake["_ZN4fake5aliasEPKv"], fake["_ZN4fake4waitEiPv"]
    alias.restype, alias.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    wait.restype, wait.argtypes = None, (ctypes.c_int, ctypes.c_void_p)

    class Played(_tinygrad_ways.Cuda):
        copies = 0

        def __init__(self, device):  # pylint: disable=super-init-not-called # there is no driver
            self.device, self.index, self.waited = device, int(device.partition(":")[2] or 0), -1

        def wait(self):
            wait(self.index, None)
            Device[self.device].synchronize()
            self.waited = GlobalCounters.kernel_count

        def copy(self, memory, buffer, to_libddp):
            assert self.waited == GlobalCounters.kernel_count, "nobody has waited for a kernel of tinygrad's"
            ours, theirs = alias(memory.address), int(buffer.get_buf(buffer.device).va_addr)
            ctypes.memmove(*((ours, theirs) if to_libddp else (theirs, ours)), buffer.nbytes)
            Played.copies += 1

    _tinygrad_ways.KINDS["CPU"] = Played
    return Played
