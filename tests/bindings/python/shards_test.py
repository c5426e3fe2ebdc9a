"""A context whose ranks update a share of the parameters each: the values are those of ranks that update all. On 2 and on 3 ranks."""
import gc
import importlib.util
import unittest
import weakref

import numpy as np

import ddp
import support

SIZES = (1000, 3, 257, 20_000, 0, 1, 64, 9001)
OWNERS = "whole", "elements", "replicated"


class AdamW:
    """Element by element."""

    def __init__(self, value, gradient):
        self.value, self.gradient, self.step_count = value, gradient, 0
        self.m, self.v = np.zeros_like(value), np.zeros_like(value)

    def step(self, rate=0.01, beta1=0.9, beta2=0.999, decay=0.1):
        self.step_count += 1
        self.m += (1 - beta1) * (self.gradient - self.m)
        self.v += (1 - beta2) * (self.gradient * self.gradient - self.v)
        self.value *= 1 - rate * decay
        self.value -= rate * (self.m / (1 - beta1**self.step_count)) / (np.sqrt(self.v / (1 - beta2**self.step_count)) + 1e-8)


class Shards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.group = ddp.Group(timeout=30, deterministic=True)
        cls.rank, cls.world = cls.group.rank, cls.group.world_size

    def make(self, *, views=False, owners=(), sizes=SIZES, dtype="f4", **options):
        ctx = ddp.Context(self.group, bucket_cap=8000, first_bucket_cap=8000, **{"shard": True, **options})
        for i, size in enumerate(sizes):
            value = (np.arange(size) % 97 * 0.01).astype(dtype)
            parameter = ctx.register(f"p{i}", value, None if views else np.zeros_like(value))
            if owners:
                ctx.set_owner(parameter, owners[i % len(owners)])
        ctx.commit()
        return ctx

    def backward(self, ctx, step):
        for parameter in reversed(ctx.parameters):
            elements = np.arange(len(parameter.data), dtype="f4")
            gradient = parameter.data * np.float32(1.37 + self.rank - 0.1 * step) + np.sin(elements * (self.rank + 1))
            if parameter.grad is None:
                np.asarray(parameter.view())[:] = gradient
            else:
                parameter.grad[:] = gradient
            ctx.grad_ready(parameter)
        ctx.finalize()

    def train(self, ctx, sharded):
        if sharded:
            optimizers = [AdamW(np.asarray(piece.value), np.asarray(piece.gradient)) for piece in ctx.pieces()]
        else:
            optimizers = [AdamW(p.data, p.grad) for p in ctx.parameters]
        for step in range(6):
            ctx.step_begin()
            self.backward(ctx, step)
            for optimizer in optimizers:
                optimizer.step()
            if sharded:
                ctx.publish()
                for parameter in ctx.parameters:
                    ctx.wait_value(parameter)
        return [parameter.data.tobytes() for parameter in ctx.parameters]

    def test_what_was_saved_is_loaded_in_pieces_and_whole(self):
        folder = support.shared_folder(self, self.group) / "save"
        ctx = self.make(owners=OWNERS)
        pieces = ctx.pieces()
        m = [np.arange(piece.first, piece.first + piece.count, dtype="f8") for piece in pieces]
        ctx.save_shards(folder, {"value": [piece.value for piece in pieces], "m": m}, note="step 7")
        self.assertEqual(len(list(folder.glob("*.safetensors"))), self.world)
        again = [np.zeros(piece.count) for piece in pieces]
        self.assertEqual(ctx.load_shards(folder, {"m": again}), "step 7")
        for one, other in zip(m, again):
            np.testing.assert_array_equal(one, other)
        whole = {parameter.name: np.zeros(len(parameter.data)) for parameter in ctx.parameters if len(parameter.data)}
        ctx.load_shards(folder, {"m": whole} if self.rank == 0 else {})
        for array in whole.values():
            np.testing.assert_array_equal(array, np.arange(len(array)) if self.rank == 0 else 0)
        if importlib.util.find_spec("safetensors"):
            from safetensors import safe_open
            for path in folder.glob("*.safetensors"):
                with safe_open(path, framework="np") as file:
                    self.assertEqual(file.metadata()["note"], "step 7")
                    for name in file.keys():
                        key, first = name.split("/")[1].split("@")
                        if key == "m":
                            array = file.get_tensor(name)
                            np.testing.assert_array_equal(array, int(first) + np.arange(len(array)))

    def test_mistakes_in_saving(self):
        ctx = self.make()
        folder = support.shared_folder(self, self.group)
        with self.assertRaisesRegex(ValueError, "m: there are 0 arrays"):
            ctx.save_shards(folder, {"m": []})
        with self.assertRaisesRegex(ValueError, "m: 'x' is not registered"):
            ctx.save_shards(folder, {"m": {"x": np.zeros(2)}})
        with self.assertRaisesRegex(ValueError, "there are 0 elements, and"):
            ctx.save_shards(folder, {"m": [np.zeros(0)] * len(ctx.pieces())})
        with support.raises(self, ddp.Error, "holds no complete save"):
            ctx.load_shards(folder, {})

    def test_bits_of_ranks_that_update_all(self):
        with self.make(shard=False, rebuild=False) as ctx:
            expected = self.train(ctx, False)
        for views in (False, True):
            for owners in ((), OWNERS, ("whole",), ("replicated",)):
                with self.subTest(views=views, owners=owners), self.make(views=views, owners=owners) as ctx:
                    self.assertEqual(self.train(ctx, True), expected)

    def test_pieces_are_all_elements_once(self):
        with self.make(owners=OWNERS) as ctx:
            owned = [np.zeros(size, "i4") for size in SIZES]
            for piece in ctx.pieces():
                self.assertEqual((piece.name, piece.count), (f"p{int(piece.param)}", np.asarray(piece.value).size))
                self.assertEqual(piece.value.address, piece.param.data.ctypes.data + 4 * piece.first)
                self.assertEqual(piece.gradient.address, piece.param.grad.ctypes.data + 4 * piece.first)
                self.assertEqual(piece.replicated, piece.param % 3 == 2)
                self.assertIn(piece.count, (SIZES[piece.param],) if piece.param % 3 != 1 else range(1, 10**6))
                owned[piece.param][piece.first:piece.first + piece.count] += 1
            for i, counts in enumerate(owned):
                self.group.allreduce(counts)
                self.assertEqual(set(counts), {self.world if i % 3 == 2 else 1} if SIZES[i] else set())

    def test_gradients_of_another_type(self):
        with ddp.Context(self.group, shard=True) as ctx:
            ctx.register("w", np.zeros(1000, "f2"), dtype="bf16", grad_dtype="f32")
            ctx.commit()
            piece, = ctx.pieces()
            self.assertEqual((piece.value.dtype, piece.gradient.dtype), (ddp.BF16, ddp.F32))
            np.asarray(ctx.grad_view(0))[:] = self.rank
            ctx.grad_ready(0)
            ctx.finalize()
            np.testing.assert_array_equal(np.asarray(piece.gradient), np.float32((self.world - 1) / 2))
            with self.assertRaisesRegex(BufferError, "bfloat16 .* take it with from_dlpack"):
                np.asarray(memoryview(piece.value))
            ctx.parameters[0].data.view("u2")[piece.first:piece.first + piece.count] = 0x3F80 + self.rank
            ctx.publish()
            ctx.wait_value(0)
            self.assertEqual(set(ctx.parameters[0].data.view("u2")), {0x3F80 + rank for rank in range(self.world)})

    def test_arrays_stay_alive(self):
        ctx = self.make(views=True)
        value = ctx.parameters[0].data
        held = weakref.ref(value)
        arrays = [(np.asarray(piece.value), np.asarray(piece.gradient)) for piece in ctx.pieces()]
        self.backward(ctx, 0)
        before = [gradient.copy() for _, gradient in arrays]
        pieces = ctx.pieces()
        ctx.close()
        with support.raises(self, ddp.InvalidStateError, "is closed"):
            pieces[0].value  # pylint: disable=pointless-statement
        with support.raises(self, ddp.InvalidStateError, "closed"):
            ctx.publish()
        del ctx, value, pieces
        gc.collect()
        for (_, gradient), was in zip(arrays, before):
            np.testing.assert_array_equal(gradient, was)
        self.assertIsNotNone(held())
        del arrays
        gc.collect()
        self.assertIsNone(held())

    def test_another_group_has_other_pieces(self):
        with self.make(views=True) as ctx:
            self.train(ctx, True)
            old = ctx.pieces()[0]
            alone = self.group.split(self.rank)
            ctx.set_group(alone)
            with support.raises(self, ddp.InvalidStateError, "other pieces since set_group", "pieces()"):
                old.gradient  # pylint: disable=pointless-statement
            self.assertEqual([piece.count for piece in ctx.pieces()], [size for size in SIZES if size])

    def test_mistakes(self):
        with self.make(shard=False) as ctx:
            self.assertEqual(ctx.pieces(), [])
            with support.raises(self, ddp.InvalidStateError, "shard=True"):
                ctx.publish()
            with support.raises(self, ddp.InvalidStateError, "shard=True"):
                ctx.set_owner(0, "whole")
        with self.make() as ctx:
            with support.raises(self, ValueError, "owner: 'half' is unknown", "elements, whole, replicated"):
                ctx.set_owner(0, "half")
            with support.raises(self, ddp.InvalidArgumentError, 'which is for "whole"'):
                ctx.set_owner(0, "replicated", cost=2)
            with support.raises(self, ddp.InvalidStateError, "committed already"):
                ctx.set_owner(0, "whole")
            self.backward(ctx, 0)
            with support.raises(self, ddp.InvalidStateError, "not published it, since step 0; call Context.publish"):
                self.backward(ctx, 1)
            ctx.publish()
        with support.raises(self, ddp.Error, "shard=True does not work with", "autotune=True"):
            ddp.Context(self.group, shard=True, autotune=True).commit()


if __name__ == "__main__":
    support.main((2, 3))
