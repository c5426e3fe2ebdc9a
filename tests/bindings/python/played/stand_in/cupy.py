"""A stand-in for CuPy over the fake device (tests/support/fake_device): as much as examples/python/cupy_minimal.py needs. $FAKE_DEVICE is
that device. Its memory no processor can touch, and its streams are late.
"""
import ctypes
import os

import ddp

fake = ctypes.CDLL(os.environ["FAKE_DEVICE"])


def _function(name, result, *arguments):
    found = fake[f"_ZN4fake{name}"]
    found.restype, found.argtypes = result, arguments
    return found


_allocate = _function("8allocateEim", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_alias = _function("5aliasEPKv", ctypes.c_void_p, ctypes.c_void_p)
_make_stream = _function("11make_streamEi", ctypes.c_void_p, ctypes.c_int)
_wait = _function("4waitEiPv", None, ctypes.c_int, ctypes.c_void_p)


class _Place:
    device, stream = 0, None  # the current ones


class _Device:
    def __init__(self, index):
        self.index = index

    def __enter__(self):
        _Place.device = self.index

    def __exit__(self, *_):
        _Place.device = 0


class _Stream:
    def __init__(self):
        self.ptr = _make_stream(_Place.device)

    def __enter__(self):
        _Place.stream = self
        return self

    def __exit__(self, *_):
        _Place.stream = None


class _Array:
    def __init__(self, count):
        self.device, self.count = _Place.device, count
        self._address = _allocate(self.device, 4 * count)

    def _elements(self):
        """In the order of the current stream."""
        _wait(self.device, _Place.stream.ptr)
        return (ctypes.c_float * self.count).from_address(_alias(self._address))

    def __getitem__(self, i):
        return self._elements()[i]

    def __setitem__(self, i, value):
        self._elements()[i] = value

    def __rmul__(self, factor):
        return [factor * value for value in self._elements()]

    def __isub__(self, others):
        for i, other in enumerate(others):
            self[i] -= other
        return self

    def __dlpack__(self, *, stream):
        return ddp.Memory.at(self._address, ddp.F32, (self.count,), self, False, (1, self.device)).__dlpack__(stream=stream)

    def __dlpack_device__(self):
        return 2, self.device


def zeros(count, dtype):
    assert dtype == "f4"
    return _Array(count)


class cuda:  # pylint: disable=invalid-name
    Device, Stream = _Device, _Stream

    class runtime:  # pylint: disable=invalid-name
        @staticmethod
        def getDeviceCount():  # pylint: disable=invalid-name
            return 2
