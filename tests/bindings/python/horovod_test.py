"""ddp.horovod.numpy against NumPy, on 1, 2 and 3 ranks: values of every collective, type and operation, requests in any order,
disagreement, join, process sets, and times of waiting. Every rank runs all tests in the same order."""
import contextlib
import itertools
import logging
import os
import re
import sys
import time
import unittest

import numpy as np

import support
import ddp.horovod.numpy as hvd
from ddp.horovod import _negotiation, _requests

REDUCED = ("float16", "float32", "float64", "int8", "int16", "uint16", "int32", "int64", "uint8", "complex64", "complex128")
MOVED = (*REDUCED, "bool", "uint32", "uint64")


def tensor(rank, dtype, shape=(5, 3), seed=0):
    """Small whole numbers, so that no sum or product rounds."""
    return np.random.default_rng([seed, rank]).integers(1, 5, shape).astype(dtype)


def reduced(tensors, op, prescale=1.0, postscale=1.0):
    """The reduction of a list of tensors, in float64 or complex128, as documented."""
    dtype = tensors[0].dtype
    wide = np.complex128 if dtype.kind == "c" else np.float64

    def rounded(values):
        return np.trunc(values) if dtype.kind in "iu" else values

    stack = np.stack([rounded(each.astype(wide) * prescale) for each in tensors])
    if op == hvd.Average:
        return rounded(stack.sum(0) * postscale / len(tensors)).astype(dtype)
    value = {hvd.Sum: stack.sum, hvd.Product: stack.prod, hvd.Min: stack.min, hvd.Max: stack.max}[op](0)
    return rounded(value * postscale).astype(dtype)


@unittest.skipIf(support.RANK < 0, "needs ranks")
class Values(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def everyones(self, dtype, shape=(5, 3), seed=0):
        return [tensor(rank, dtype, shape, seed) for rank in range(self.size)]

    def test_ranks(self):
        self.assertEqual((self.rank, self.size), (support.RANK, int(os.environ["WORLD_SIZE"])))
        self.assertEqual((hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()), (self.rank, self.size, 0, 1))
        self.assertTrue(hvd.is_homogeneous() and hvd.is_initialized() and hvd.gloo_built())

    def test_allreduce(self):
        for dtype, op in itertools.product(REDUCED, (hvd.Average, hvd.Sum, hvd.Product, hvd.Min, hvd.Max)):
            if dtype.startswith("complex") and op in (hvd.Min, hvd.Max):
                continue
            with self.subTest(dtype=dtype, op=op.name):
                mine, expected = tensor(self.rank, dtype), reduced(self.everyones(dtype), op)
                before = mine.copy()
                result = hvd.allreduce(mine, op=op)
                self.assertEqual(result.dtype, mine.dtype)
                np.testing.assert_allclose(result, expected, rtol=1e-3 if dtype == "float16" else 1e-6)
                np.testing.assert_array_equal(mine, before)
                self.assertIs(hvd.allreduce_(mine, op=op), mine)
                np.testing.assert_array_equal(mine, result)

    def test_sum_of_bytes_wraps(self):
        np.testing.assert_array_equal(hvd.allreduce(np.full(3, 100, "i1"), op=hvd.Sum), np.full(3, 100 * self.size).astype("i1"))

    def test_scales(self):
        for dtype, op in itertools.product(("float32", "float64", "float16", "int32"), (hvd.Sum, hvd.Average)):
            with self.subTest(dtype=dtype, op=op.name):
                result = hvd.allreduce(tensor(self.rank, dtype), op=op, prescale_factor=2.5, postscale_factor=0.75)
                np.testing.assert_allclose(result, reduced(self.everyones(dtype), op, 2.5, 0.75), rtol=1e-3 if dtype == "float16" else 1e-6)

    def test_shapes(self):
        for shape in ((), (0,), (1,), (3, 0, 2), (700_000,)):  # the last is not fused
            with self.subTest(shape=shape):
                result = hvd.allreduce(tensor(self.rank, "float32", shape), op=hvd.Sum)
                np.testing.assert_array_equal(result, reduced(self.everyones("float32", shape), hvd.Sum))

    def test_adasum(self):
        mine = np.random.default_rng(self.rank).normal(size=50)
        if self.size == 3:
            with self.assertRaisesRegex(NotImplementedError, "power of 2"):
                hvd.allreduce(mine, op=hvd.Adasum)
            return
        one, other = (np.random.default_rng(rank % self.size).normal(size=50) for rank in (0, 1))
        dot = one @ other
        expected = one if self.size == 1 else (1 - dot / (2 * one @ one)) * one + (1 - dot / (2 * other @ other)) * other
        np.testing.assert_allclose(hvd.allreduce(mine, op=hvd.Adasum), expected, rtol=1e-12)

    def test_other_collectives(self):
        for dtype in MOVED:
            with self.subTest(dtype=dtype):
                root = self.size - 1
                np.testing.assert_array_equal(hvd.broadcast(tensor(self.rank, dtype), root), tensor(root, dtype))
                mine = tensor(self.rank, dtype)
                self.assertIs(hvd.broadcast_(mine, root), mine)
                np.testing.assert_array_equal(mine, tensor(root, dtype))
                np.testing.assert_array_equal(hvd.allgather(tensor(self.rank, dtype)), np.concatenate(self.everyones(dtype)))
                uneven = [tensor(rank, dtype, (rank * 2, 3)) for rank in range(self.size)]
                np.testing.assert_array_equal(hvd.allgather(uneven[self.rank]), np.concatenate(uneven))
                whole = [tensor(rank, dtype, (2 * self.size, 3)) for rank in range(self.size)]
                expected = np.concatenate([each[2 * self.rank:2 * self.rank + 2] for each in whole])
                np.testing.assert_array_equal(hvd.alltoall(whole[self.rank]), expected)

    def test_alltoall_with_splits(self):
        splits = [[rank + to for to in range(self.size)] for rank in range(self.size)]
        whole = [tensor(rank, "int64", (sum(splits[rank]) + 1, 2)) for rank in range(self.size)]  # a row that goes nowhere
        output, received = hvd.alltoall(whole[self.rank], splits[self.rank])
        begins = [sum(splits[rank][:self.rank]) for rank in range(self.size)]
        expected = [whole[rank][begins[rank]:begins[rank] + splits[rank][self.rank]] for rank in range(self.size)]
        np.testing.assert_array_equal(output, np.concatenate(expected))
        self.assertEqual(received, [splits[rank][self.rank] for rank in range(self.size)])
        for wrong in ([1] * (self.size + 1), [-1] * self.size, [99] * self.size, [0.5] * self.size):
            with self.assertRaisesRegex(ValueError, "splits"):
                hvd.alltoall(whole[self.rank], wrong)

    def test_reducescatter(self):
        for dtype, op, rows in itertools.product(("float32", "int32", "int8"), (hvd.Average, hvd.Sum, hvd.Max), (6, 7, 1)):
            with self.subTest(dtype=dtype, op=op.name, rows=rows):
                parts = [rows // self.size + (rank < rows % self.size) for rank in range(self.size)]
                begin = sum(parts[:self.rank])
                result = hvd.reducescatter(tensor(self.rank, dtype, (rows, 3)), op=op)
                expected = reduced(self.everyones(dtype, (rows, 3)), op)[begin:begin + parts[self.rank]]
                np.testing.assert_allclose(result, expected, rtol=1e-6)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "without dimensions"):
            hvd.reducescatter(np.array(1.0))

    def test_groups(self):
        shapes, dtypes = ((4,), (2, 3), (300_000,)), ("float32", "float32", "int32")
        mine = [tensor(self.rank, *each) for each in zip(dtypes, shapes)]
        expected = [reduced([tensor(rank, *each) for rank in range(self.size)], hvd.Sum) for each in zip(dtypes, shapes)]
        for result, wanted in zip(hvd.grouped_allreduce(mine, op=hvd.Sum), expected):
            np.testing.assert_array_equal(result, wanted)
        hvd.grouped_allreduce_(mine, op=hvd.Sum)
        for result, wanted in zip(mine, expected):
            np.testing.assert_array_equal(result, wanted)
        gathered = hvd.grouped_allgather([np.full(2, self.rank), np.full((1, 2), self.rank)])
        np.testing.assert_array_equal(gathered[0], np.repeat(np.arange(self.size), 2))
        np.testing.assert_array_equal(gathered[1], np.repeat(np.arange(self.size), 2).reshape(-1, 2))
        scattered = hvd.grouped_reducescatter([np.ones((self.size, 2)), np.ones(self.size)], op=hvd.Sum)
        np.testing.assert_array_equal(scattered[0], np.full((1, 2), self.size))
        with self.assertRaisesRegex(ValueError, "at least one"):
            hvd.grouped_allreduce([])

    def test_any_order(self):
        """Each rank asks in an order of its own, three times, so that names are known the second time."""
        for turn in range(3):
            order = np.random.default_rng([turn, self.rank]).permutation(60)
            handles = {i: hvd.allreduce_async(np.full(i + 1, self.rank + i, "f4"), name=f"any.{i}", op=hvd.Sum) for i in order}
            gathered = hvd.allgather_async(np.array([self.rank]), name="any.0")
            for i, handle in handles.items():
                expected = sum(rank + i for rank in range(self.size))
                np.testing.assert_array_equal(hvd.synchronize(handle), np.full(i + 1, expected, "f4"))
            np.testing.assert_array_equal(hvd.synchronize(gathered), np.arange(self.size))

    def test_handles(self):
        handle = hvd.allreduce_async(np.ones(3))
        while not hvd.poll(handle):
            time.sleep(0.001)
        np.testing.assert_array_equal(hvd.synchronize(handle), np.ones(3))
        self.assertIsNone(hvd.synchronize(handle))

    def test_objects(self):
        self.assertEqual(hvd.broadcast_object({"rank": self.rank}, root_rank=self.size - 1), {"rank": self.size - 1})
        self.assertEqual(hvd.broadcast_object(None if self.rank else [1, 2]), [1, 2])
        self.assertEqual(hvd.allgather_object("x" * self.rank), ["x" * rank for rank in range(self.size)])

    def test_many_names(self):
        """More than the table keeps."""
        for begin in range(0, _negotiation.MOST_KNOWN + 500, 500):
            handles = [hvd.allreduce_async(np.array([1]), name=f"many.{begin + i}", op=hvd.Sum) for i in range(500)]
            for handle in handles:
                self.assertEqual(hvd.synchronize(handle)[0], self.size)

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "cannot be reduced"):
            hvd.allreduce(np.ones(3, bool))
        with self.assertRaisesRegex(ValueError, "contiguous"):
            hvd.allreduce_(np.ones((4, 4))[:, ::2])
        with self.assertRaisesRegex(ValueError, "op parameter supersedes"):
            hvd.allreduce(np.ones(3), average=True, op=hvd.Sum)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "root 7 is not"):
            hvd.broadcast(np.ones(3), 7)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "reducescatter: Adasum"):
            hvd.reducescatter(np.ones(3), op=hvd.Adasum)

    def test_again_after_shutdown(self):
        hvd.shutdown()
        self.assertFalse(hvd.is_initialized())
        with self.assertRaisesRegex(ValueError, "not been initialized"):
            hvd.rank()
        hvd.init()
        self.assertEqual(hvd.allreduce(np.array([1]), op=hvd.Sum)[0], self.size)


@unittest.skipIf(support.RANK < 0 or os.environ.get("WORLD_SIZE") == "1", "needs several ranks")
class Together(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hvd.init()
        cls.rank, cls.size = hvd.rank(), hvd.size()

    def differ(self, words, call, *arguments, **options):
        """All ranks raise, the message has the words, and the next collective works."""
        with self.assertRaisesRegex(hvd.HorovodInternalError, words):
            call(*arguments, **options)
        self.assertEqual(hvd.allreduce(np.array([1]), op=hvd.Sum)[0], self.size)

    def test_disagreement(self):
        rank, ones = self.rank, np.ones
        words = r"allreduce\.t: ranks differ in the shape: rank 0 has \(2,\); rank 1 has \(3,\)"
        self.differ(words, hvd.allreduce, ones(2 + rank), name="t")
        self.differ("the shape", hvd.allreduce, ones((2, 6) if rank else (12,)), name="t")
        self.differ("the type: rank 0 has float32; ranks? 1.* float64", hvd.allreduce, ones(2, "f8" if rank else "f4"), name="t")
        self.differ("the operation: rank 0 has Sum; ranks? 1.* Max", hvd.allreduce, ones(2), name="t", op=hvd.Max if rank else hvd.Sum)
        self.differ("the prescale factor", hvd.allreduce, ones(2), name="t", prescale_factor=1.0 + rank)
        self.differ("the number of tensors", hvd.grouped_allreduce, [ones(2)] * (1 + rank), name="t")
        self.differ("broadcast.t: ranks differ in the root", hvd.broadcast, ones(2), rank, name="t")
        self.differ("the shape", hvd.broadcast, ones(2 + rank), 0, name="t")
        self.differ("the shape without the first dimension", hvd.allgather, ones((2, 2 + rank)), name="t")
        self.differ("the number of dimensions", hvd.allgather, ones((2, 2) if rank else 2), name="t")
        self.differ("the type", hvd.alltoall, ones(self.size, "f8" if rank else "f4"), name="t")
        self.differ("reducescatter.t: ranks differ in the shape", hvd.reducescatter, ones(2 + rank), name="t")

    def test_one_name_twice(self):
        for turn in range(self.size):
            if self.rank == turn:
                handle = hvd.allreduce_async(np.ones(2), name="twice")
                with self.assertRaisesRegex(ValueError, "allreduce.twice: the previous request of this name has not ended"):
                    hvd.allreduce_async(np.ones(2), name="twice")
            hvd.barrier()
        np.testing.assert_array_equal(hvd.synchronize(handle), np.ones(2))

    def test_join(self):
        for turn, (dtype, op) in enumerate(itertools.product(("float32", "int32"), (hvd.Average, hvd.Sum))):
            first = turn % self.size
            if self.rank != first:
                mine = [tensor(self.rank, dtype, (shape,), turn) for shape in (4, 300_000)]
                results = [hvd.synchronize(handle) for handle in [hvd.allreduce_async(each, op=op) for each in mine]]
                for result, shape in zip(results, (4, 300_000)):
                    others = [tensor(rank, dtype, (shape,), turn) * (rank != first) for rank in range(self.size)]
                    np.testing.assert_allclose(result, reduced(others, op), rtol=1e-6)
                for call in (lambda: hvd.allreduce(mine[0], op=hvd.Max), lambda: hvd.allgather(mine[0]),
                             lambda: hvd.broadcast(mine[0], (first + 1) % self.size)):
                    with self.assertRaisesRegex(hvd.HorovodInternalError, rf"rank {first} has called join\(\)"):
                        call()
            last = hvd.join()
            self.assertNotEqual(last, first)
            self.assertEqual(hvd.allgather_object(last), [last] * self.size)

    def test_process_sets(self):
        with self.assertRaisesRegex(ValueError, "duplicate"):
            hvd.add_process_set(range(self.size))
        with self.assertRaisesRegex(ValueError, "no set of ranks"):
            hvd.add_process_set([self.size])
        last = self.size - 1
        some = hvd.add_process_set([last]) if self.size == 2 else hvd.add_process_set(hvd.ProcessSet([2, 0]))
        members = [last] if self.size == 2 else [0, 2]
        self.assertEqual((some.ranks, some.size(), some.included()), (members, len(members), self.rank in members))
        with self.assertRaisesRegex(ValueError, "duplicate"):
            hvd.add_process_set(members)
        if self.rank in members:
            self.assertEqual(some.rank(), members.index(self.rank))
            mean = hvd.allreduce(np.array([float(self.rank)]), process_set=some)
            self.assertEqual(mean[0], np.mean(members))
            np.testing.assert_array_equal(hvd.allgather(np.array([self.rank]), process_set=some), members)
            self.assertEqual(hvd.broadcast(np.array([self.rank]), last, process_set=some)[0], last)
            np.testing.assert_array_equal(hvd.alltoall(np.full(len(members), self.rank), process_set=some), members)
            self.assertEqual(hvd.allgather_object(self.rank, process_set=some), members)
        else:
            with self.assertRaisesRegex(hvd.HorovodInternalError, "not in the process set"):
                hvd.allreduce(np.ones(1), process_set=some)
        hvd.barrier()
        self.assertTrue(hvd.remove_process_set(some))
        self.assertFalse(hvd.remove_process_set(some))
        with self.assertRaisesRegex(hvd.HorovodInternalError, "not registered"):
            hvd.allreduce(np.ones(1), process_set=some)

    def test_idle_ranks_take_no_time(self):
        """Neither while nobody waits, nor while one rank waits for another."""
        hvd.barrier()
        before = time.process_time()
        time.sleep(0.5)
        self.assertLess(time.process_time() - before, 0.05)
        hvd.barrier()
        before = time.process_time()
        if self.rank == 0:
            time.sleep(1)
        hvd.barrier()
        self.assertLess(time.process_time() - before, 0.1)


@unittest.skipIf(support.RANK < 0 or os.environ.get("DDP_TESTS") != "Waits", "needs ranks of its own")
class Waits(unittest.TestCase):
    """HOROVOD_STALL_CHECK_TIME_SECONDS is 2, and the timeout 5 s."""

    def test_ranks_that_do_not_come(self):
        hvd.init()
        rank = hvd.rank()
        with self.assertLogs("ddp.horovod", logging.WARNING) if rank == 0 else contextlib.nullcontext() as logs:
            if rank == 0:
                hvd.allreduce(np.ones(1), name="late")
            else:
                time.sleep(3)
                hvd.allreduce(np.ones(1), name="late")
        if rank == 0:
            self.assertRegex(logs.output[0], r"rank 0 has waited for 2 s: rank 1 has not asked for any of allreduce\.late")
        # all wait, for different requests
        handle = hvd.allreduce_async(np.ones(1), name=f"only.{rank}")
        with self.assertLogs("ddp.horovod", logging.WARNING) as logs:
            with self.assertRaisesRegex(hvd.HorovodInternalError, rf"allreduce\.only\.{rank}: rank {rank} has waited for 5 s, and rank "
                                        rf"{1 - rank} has not asked for it; rank {1 - rank} waits for allreduce\.only\.{1 - rank}"):
                hvd.synchronize(handle)
        self.assertRegex("".join(logs.output),
                         rf"allreduce\.only\.{rank}: rank {rank} has waited for 2 s, and rank {1 - rank} has not asked")
        self.assertEqual(hvd.allreduce(np.array([1]), op=hvd.Sum)[0], 2)
        # one name, but not one operation
        call = hvd.allreduce if rank == 0 else hvd.allgather
        with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 1 waits for allgather.same" if rank == 0 else "rank 0 waits for allreduce.same"):
            call(np.ones(1), name="same")
        # a rank that never comes breaks the job
        if rank == 0:
            with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 1"):
                hvd.allreduce(np.ones(1), name="never")
            with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 1"):
                hvd.allreduce(np.ones(1), name="after")
        else:
            time.sleep(7)


class Table(unittest.TestCase):
    """The table without ranks."""

    def test_same_order_everywhere(self):
        tables = [_negotiation.Negotiation([0, 3]) for _ in range(2)]
        requests = {name: _requests.Request(_requests.Description("allreduce", name, ("float32",), ((2,),), 1)) for name in "abc"}
        rounds = [("ab", "c"), ("c", ""), ("", "ba"), ("", "")]
        seen = [[], []]
        for asked in rounds:
            messages = [table.message(requests[name] for name in names) for table, names in zip(tables, asked)]
            for table, keys in zip(tables, seen):
                keys.append([each.key for each in table.take(messages)])
        self.assertEqual(seen[0], [[], ["allreduce.c"], ["allreduce.b", "allreduce.a"], []])
        self.assertEqual(seen[1], seen[0])

    def test_known_descriptions_are_short(self):
        table = _negotiation.Negotiation([0])
        request = _requests.Request(_requests.Description("allreduce", "a" * 200, ("float32",), ((2,),), 1))
        first = table.message([request])
        table.take([first])
        self.assertEqual(len(table.message([request])), 8)
        self.assertGreater(len(first), 200)

    def test_descriptions_survive_their_text(self):
        one = _requests.Description("alltoall", "a\nb!", ("float32",), ((2, 3),), 1, 2, 0.1, 1e300, (1, 2), (0, 1))
        self.assertEqual(_requests.decoded(one.encoded()), one)
        self.assertTrue(re.fullmatch(r"[^\n]+", one.encoded()))


if __name__ == "__main__":
    if support.RANK < 0:
        for ranks in (1, 2, 3):
            print(support.run_ranks(ranks, sys.executable, "-B", __file__, timeout=200))
        limits = {"DDP_TESTS": "Waits", "HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
        print(support.run_ranks(2, sys.executable, "-B", __file__, env=limits))
    support.main()
