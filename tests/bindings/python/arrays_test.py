"""Arrays of several libraries are used where they lie, and those that cannot be are refused."""
import array
import ctypes
import gc
import subprocess
import sys
import unittest

import numpy as np

import ddp
import support


class Capsule:
    """An array that hands out a capsule that it was given."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return (1, 0)


class Taken(unittest.TestCase):
    """memory of others"""

    def test_no_copy(self):
        holder = array.array("d", [1, 2, 3])
        for name, given, dtype in (("numpy", np.zeros((2, 3), "f4"), ddp.F32), ("array", holder, ddp.F64),
                                   ("bytearray", bytearray(4), ddp.U8), ("ctypes", (ctypes.c_float * 4)(), ddp.F32),
                                   ("memoryview", memoryview(bytearray(8)).cast("q"), ddp.I64),
                                   ("complex", np.zeros(2, "c16"), ddp.C128), ("half", np.zeros(2, "f2"), ddp.F16),
                                   ("scalar", np.zeros((), "i4"), ddp.I32), ("empty", np.zeros((0, 3), "f4"), ddp.F32)):
            with self.subTest(name):
                memory = ddp.Memory(given)
                self.assertEqual(memory.dtype, dtype)
                self.assertFalse(memory.readonly)
                self.assertEqual(memory.shape, np.asarray(given).shape)
                if memory.count:
                    self.assertEqual(memory.address, np.asarray(given).__array_interface__["data"][0])
        with self.assertRaises(BufferError):
            memory = ddp.Memory(holder)
            holder.append(4)  # its memory may not move while it is held

    def test_offsets_and_steps(self):
        base = np.arange(24, dtype="f4").reshape(4, 6)
        self.assertEqual(ddp.Memory(base[2]).address, base[2:].__array_interface__["data"][0])
        for view in (base.T, base[:, 1:], base[::2], base[::-1]):
            with support.raises(self, ValueError, "not contiguous"):
                ddp.Memory(view)
        self.assertEqual(ddp.Memory(base[:1, :]).shape, (1, 6))

    def test_refused(self):
        frozen = np.zeros(3, "f4")
        frozen.flags.writeable = False
        for given, kind, word in ((np.zeros(3, "i2"), TypeError, "elements are int16; libddp has float16"),
                                  (np.zeros(3, "?"), TypeError, "are bool;"), (np.array(["a"]), TypeError, "'1w'"),
                                  (np.zeros(3, ">f4"), TypeError, "are in the byte order of another machine"),
                                  (np.zeros(3, "f4,f4"), TypeError, "of 8 bytes (format 'T{"), ([1.0], TypeError, "list"),
                                  (None, TypeError, "NoneType"), (frozen, ValueError, "read-only"),
                                  (b"abc", ValueError, "read-only"), (np.zeros((1,) * 17, "f4"), ValueError, "17")):
            with self.subTest(given=str(given)), support.raises(self, kind, word):
                ddp.Memory(given)
        ddp.Memory(frozen, writable=False)
        gone = memoryview(bytearray(4))
        gone.release()
        with self.assertRaises(ValueError):
            ddp.Memory(gone)

    def test_kept_alive(self):
        memory = ddp.Memory(np.full(1000, 7, "f4"))
        gc.collect()
        self.assertEqual(np.asarray(memory).sum(), 7000)


class Shown(unittest.TestCase):
    """memory of libddp's, to others"""

    def test_numpy(self):
        group = support.alone()
        for dtype, expected in (("f16", "f2"), ("f32", "f4"), ("f64", "f8"), ("i32", "i4"), ("i64", "i8"), ("u8", "u1"),
                                ("c64", "c8"), ("c128", "c16")):
            memory = group.alloc((3, 4), dtype)
            shown, taken = np.asarray(memory), np.from_dlpack(memory)  # old NumPy takes DLPack as read-only
            for each in (shown, taken):
                self.assertEqual((each.shape, each.dtype), ((3, 4), np.dtype(expected)))
            shown += 1
            self.assertEqual(taken.sum(), 12)
        with self.assertRaises(BufferError):
            memoryview(group.alloc(2, "bf16"))
        group.allreduce(group.alloc(2, "bf16"))  # taken as it is, without a buffer

    def test_memory_of_a_group_outlives_it(self):
        group = support.alone()
        kept = np.asarray(group.alloc(1000))
        group.close()
        del group
        gc.collect()
        kept += 1
        self.assertEqual(kept.sum(), 1000)

    def test_what_dlpack_asks_for(self):
        memory = support.alone().alloc(3)
        for wish in ({}, {"stream": None}, {"max_version": (0, 8)}, {"max_version": (1, 0)}, {"max_version": None}, {"copy": False},
                     {"copy": None}, {"dl_device": (1, 0)}, {"dl_device": memory.__dlpack_device__()}, {"dl_device": None}):
            with self.subTest(wish):
                self.assertIn('"dltensor"', repr(memory.__dlpack__(**wish)))
        for wish, kind, word in (({"dl_device": (2, 0)}, BufferError, "kind 2"),
                                 ({"dl_device": (1, 1)}, BufferError, "number 1"), ({"dl_device": 1}, TypeError, "dl_device"),
                                 ({"stream": 1}, ValueError, "stream"), ({"stream": -1}, ValueError, "stream"),
                                 ({"owner": 1}, TypeError, "owner")):
            with self.subTest(wish), support.raises(self, kind, word):
                memory.__dlpack__(**wish)

    def test_copies(self):
        group = support.alone()
        for dtype in ("f32", "bf16", "c128", "u8"):
            memory = group.alloc((3, 2), dtype)
            copy = ddp.Memory(Capsule(memory.__dlpack__(copy=True)))
            self.assertEqual((copy.shape, copy.dtype), (memory.shape, memory.dtype))
            self.assertNotEqual(copy.address, memory.address)
            self.assertEqual(copy.address % 64, 0)
            self.assertEqual(ddp.Memory(Capsule(memory.__dlpack__())).address, memory.address)
        memory = group.alloc(3)
        copy = ddp.Memory(Capsule(memory.__dlpack__(copy=True)))
        np.asarray(memory)[:] = 7
        gc.collect()
        self.assertEqual((np.asarray(copy).tolist(), np.asarray(memory).tolist()), ([0] * 3, [7] * 3))
        empty = ddp.Memory(np.zeros((0, 3), "f4"))
        self.assertEqual(ddp.Memory(Capsule(empty.__dlpack__(copy=True))).shape, (0, 3))
        constant = np.frombuffer(b"abcd", "u1")
        read_only = ddp.Memory(constant, writable=False)
        with support.raises(self, BufferError, "read-only"):
            read_only.__dlpack__()
        self.assertEqual(bytes(ddp.Memory(Capsule(read_only.__dlpack__(copy=True)))), b"abcd")

    def test_copied_for_a_module_of_jax(self):
        memory = support.alone().alloc(3)
        for name, copied in (("jax", True), ("jax._src.dlpack", True), ("jaxlib.xla", True), ("jaxtyping", False), ("numpy", False)):
            module = {"__name__": name}
            exec("def take(memory, **wish): return memory.__dlpack__(**wish)", module)  # pylint: disable=exec-used
            with self.subTest(name):
                taken = ddp.Memory(Capsule(module["take"](memory)))
                self.assertEqual(taken.address != memory.address, copied)
                if copied:
                    with support.raises(self, BufferError, "copy=False", "JAX"):
                        module["take"](memory, copy=False)

    def test_dropped_after_the_interpreter(self):
        # A consumer in C may hold the memory longer than there is a Python: the C library's exit comes after that.
        program = """
import ctypes, ddp
capsule = ddp.Group(0, 1).alloc(3).__dlpack__()
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
managed = pointer(capsule, b"dltensor")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(capsule))  # for ever: it drops nothing itself
deleter = ctypes.c_void_p.from_address(managed + 56).value  # behind DLTensor's 48 bytes and the manager
ctypes.CDLL(None).__cxa_atexit(ctypes.c_void_p(deleter), ctypes.c_void_p(managed), None)
"""
        done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_pytorch(self):
        try:
            import torch  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("PyTorch (python3-torch) is not installed")
        tensor = torch.arange(6, dtype=torch.float32, requires_grad=True)
        group = support.alone()
        with support.raises(self, ValueError, "recv"):
            group.allreduce(tensor.reshape(2, 3).T.detach())
        group.allreduce(tensor)
        self.assertEqual(ddp.Memory(tensor.detach()).address, tensor.data_ptr())
        view = torch.from_dlpack(group.alloc(5, "bf16"))
        self.assertEqual(view.dtype, torch.bfloat16)
        view += 3
        self.assertEqual(ddp.Memory(view).dtype, ddp.BF16)

    def test_jax(self):
        try:
            import jax  # pylint: disable=import-outside-toplevel
            import jax.numpy as jnp  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("JAX is not installed")
        ones, group = jnp.ones(3), support.alone()
        with support.raises(self, TypeError, "JAX"):
            ddp.Memory(ones)
        self.assertTrue(ddp.Memory(ones, writable=False).readonly)
        self.assertEqual(ddp.Memory(ones.astype(jnp.bfloat16), writable=False).dtype, ddp.BF16)
        with support.raises(self, TypeError, "recv: ", "JAX"):
            group.allreduce(ones)
        with ddp.Context(group) as context:
            with support.raises(self, TypeError, "data: ", "JAX"):
                context.register("w", ones)
            param = context.register("w", shape=ones.shape, dtype=ones.dtype)
            context.commit()
            means = []
            for step in range(3):
                context.put(param, ones * step)
                context.finalize()
                means.append(jnp.from_dlpack(param.view()))
            self.assertEqual([mean.tolist() for mean in means], [[float(step)] * 3 for step in range(3)])
        self.assertEqual(ones.tolist(), [1.0] * 3)

    def test_jax_is_given_copies(self):
        """None of what docs/python.md recommends changes when the bucket does, also where JAX computes later."""
        try:
            import jax  # pylint: disable=import-outside-toplevel
            import jax.numpy as jnp  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("JAX is not installed")

        @jax.jit
        def late(values, matrix):
            for _ in range(4):
                matrix = matrix @ matrix * 1e-3
            return values + 0 * matrix.sum()

        matrix = jnp.ones((400, 400))
        for count in (3, 100000):
            with ddp.Context(support.alone()) as context:
                param = context.register("w", shape=(count,))
                context.commit()
                view = np.asarray(param.view())
                for name, take in (("jnp.from_dlpack", jnp.from_dlpack), ("jax.dlpack.from_dlpack", jax.dlpack.from_dlpack),
                                   ("copy=True", lambda memory: jnp.from_dlpack(memory, copy=True)),
                                   ("jnp.array", lambda memory: jnp.array(np.asarray(memory))),
                                   ("numpy.array", lambda memory: jax.device_put(np.array(memory)))):
                    with self.subTest(name, count=count):
                        view[:] = 1
                        taken = take(param.view())
                        after = late(taken, matrix)
                        view[:] = 7
                        self.assertEqual((set(taken.tolist()), set(after.tolist())), ({1.0}, {1.0}))


if __name__ == "__main__":
    support.main()
