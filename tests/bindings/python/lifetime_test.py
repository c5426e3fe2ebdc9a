"""Every object that is made is freed, and a garbage collector may run at any moment."""
import gc
import threading
import unittest
import weakref
from unittest import mock

import numpy as np

import ddp
import support


def resident_kib():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def step(ctx, gradient):
    ctx.step_begin()
    for parameter in ctx.parameters:
        ctx.put(parameter, gradient)
    ctx.finalize()


class Lifetime(unittest.TestCase):
    def setUp(self):
        self.group = support.alone()

    def contexts(self, count):
        gradient = np.ones(100, "f4")
        for i in range(count):
            ctx = ddp.Context(self.group)
            ctx.register("w", np.zeros(100, "f4"))
            ctx.register("a name that is long enough for memory of its own", shape=(100,))
            ctx.commit()
            if i % 4 == 0:
                ctx.set_hook(lambda group, bucket: group.allreduce(bucket.buffer, async_op=True))
                step(ctx, gradient)
                kept = np.asarray(ctx.parameters[0].view())
            if i % 2:
                ctx.close()
        del kept

    def assert_flat(self, what, work):
        """A leak grows in every round; the interpreter's own memory and the stacks of threads do not."""
        for _ in range(4):
            gc.collect()
            before = resident_kib()
            work()
            gc.collect()
            grown = resident_kib() - before
            if grown < 1024:
                return
        self.fail(f"{grown} KiB for {what}")

    def test_a_view_in_place_keeps_its_memory(self):
        ctx = ddp.Context(self.group)
        grad = np.full(1 << 20, 7, "f4")
        ctx.register("w", None, grad, in_place=True)
        ctx.commit()
        view = np.asarray(ctx.grad_view(0))
        self.assertEqual(view.ctypes.data, grad.ctypes.data)
        ctx.close()
        del ctx, grad
        gc.collect()
        self.assertEqual(view[-1], 7)

    def test_an_averager_without_its_context(self):
        ctx = ddp.Context(self.group)
        ctx.register("w", np.zeros(100, "f4"))
        ctx.commit()
        averager = ddp.Averager(ctx, 1)
        self.assertEqual(averager.step(), 1)
        ctx.close()
        for call in (averager.step, averager.set_outer, averager.state, lambda: averager.load_state(b"")):
            with support.raises(self, ddp.InvalidStateError, "the context is closed"):
                call()

    def test_a_context_that_is_closed_under_its_averager(self):
        """By a signal handler, for example: the call has it until it returns."""
        native = ddp.averager._ddp
        weight = np.zeros(100, "f4")
        held = weakref.ref(weight)
        for name, arguments in (("ddp_averager_step", ()), ("ddp_averager_set_outer", ()), ("ddp_averager_state_save", ()),
                                ("ddp_averager_state_load", (b"",))):
            with self.subTest(name):
                ctx = ddp.Context(self.group)
                ctx.register("w", weight)
                ctx.commit()
                averager = ddp.Averager(ctx, 1)
                averager.set_outer()
                if name == "ddp_averager_state_load":
                    arguments = (averager.state(),)
                real = getattr(native, name)

                def closes(*given):
                    ctx.close()
                    return real(*given)

                method = {"step": averager.step, "set_outer": averager.set_outer, "state_save": averager.state,
                          "state_load": averager.load_state}[name[len("ddp_averager_"):]]
                with mock.patch.object(native, name, closes):
                    method(*arguments)
                self.assertFalse(ctx._handle.open)
        del ctx, averager, weight, closes, method
        gc.collect()
        self.assertIsNone(held())

    def test_ten_thousand_contexts(self):
        self.contexts(1000)
        self.assert_flat("10,000 contexts", lambda: self.contexts(10000))

    def test_errors_and_works_are_freed(self):
        def rounds(count):
            array = np.zeros(100, "f4")
            for _ in range(count):
                try:
                    ddp.Context(self.group, reduction="weighted_mean").commit()
                except ddp.InvalidStateError:
                    pass
                self.group.allreduce(array, async_op=True).then(lambda: None).wait()
                self.group.allreduce(np.zeros(100, "f4"), async_op=True)
                self.group.store.set("key", b"value" * 100)
                self.group.store.get("key")

        rounds(200)
        self.assert_flat("1,500 errors and works", lambda: rounds(1500))

    def test_a_dropped_context_is_freed_at_once(self):
        array = np.zeros(100, "f4")
        held = weakref.ref(array)
        ctx = ddp.Context(self.group)
        ctx.register("w", array)
        ctx.commit()
        ctx.set_hook(lambda group, bucket: None)
        step(ctx, array)
        del array
        self.assertIsNotNone(held())
        del ctx
        self.assertIsNone(held())

    def test_a_hook_that_knows_its_context_is_collected(self):
        ctx = ddp.Context(self.group)
        ctx.register("w", shape=(3,))
        ctx.commit()
        ctx.set_hook(lambda group, bucket: ctx.stats() and None)
        step(ctx, np.ones(3, "f4"))
        gone = weakref.ref(ctx)
        ctx = None  # the hook's own variable
        gc.collect()
        self.assertIsNone(gone())

    def test_collecting_during_training_changes_nothing(self):
        results = []
        for collecting in (False, True):
            stop = threading.Event()

            def collect():
                while not stop.is_set():  # pylint: disable=cell-var-from-loop
                    gc.collect()

            collector = threading.Thread(target=collect)
            if collecting:
                collector.start()
            ctx = ddp.Context(self.group, bucket_cap=2000)
            weights = [np.ones(500, "f4") for _ in range(8)]
            for i, weight in enumerate(weights):
                ctx.register(f"w{i}", weight)
            ctx.commit()
            ctx.set_hook(lambda group, bucket: group.allreduce(bucket.buffer, async_op=True).then(lambda: None))
            for _ in range(30):
                ctx.step_begin()
                for parameter, weight in zip(ctx.parameters, weights):
                    parameter.ready(weight * np.float32(0.5))
                ctx.finalize()
                for parameter, weight in zip(ctx.parameters, weights):
                    weight -= np.float32(0.1) * np.asarray(parameter.view())
            stop.set()
            if collecting:
                collector.join()
            results.append(np.concatenate(weights).tobytes())
        self.assertEqual(*results)


if __name__ == "__main__":
    support.main()
