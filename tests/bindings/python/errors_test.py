"""Misuse is an exception, of the class that its status says, and never a crash."""
import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import unittest
import warnings

import numpy as np

import ddp
import support
from ddp import _words


def context(group, count=2, **options):
    """A committed context with views."""
    made = ddp.Context(group, **options)
    for i in range(count):
        made.register(f"p{i}", shape=(3,))
    made.commit()
    return made


class Errors(unittest.TestCase):
    def setUp(self):
        self.group = support.alone()

    def test_status_and_names(self):
        ctx = context(self.group)
        with support.raises(self, ddp.InvalidStateError, "p1") as caught:
            ctx.grad_ready(1)
            ctx.grad_ready(1)
        self.assertEqual(caught.exception.status, ddp.InvalidStateError.status)
        with self.assertRaises(ddp.MissingGradientError) as caught:
            ctx.finalize()
        self.assertEqual((caught.exception.param, caught.exception.rank, caught.exception.step), (0, 0, 0))
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((str(again), again.param), (str(caught.exception), 0))
        self.assertIsInstance(ddp.TimeoutError(""), TimeoutError)

    def test_names_of_classes(self):
        """Tracebacks show names that a program can write, and pickle finds the classes by them."""
        for error in (ddp.Error, *ddp.Error.__subclasses__()):
            self.assertEqual(error.__module__, "ddp")
            self.assertIs(getattr(ddp, error.__name__), error)

    def test_words(self):
        """Messages have Python's names: of what the package has, and never one of C."""
        with support.raises(self, ddp.InvalidStateError, "Context.commit"):
            ddp.Context(self.group).step_begin()
        for name, word in (("ddp_step_begin", "Context.step_begin"), ("ddp_grad_ready", "Context.grad_ready"),
                           ("ddp_step_discard()", "Context.discard"), ("ddp_use_hook", "Context.use_hook"),
                           ("ddp_context_set_group", "Context.set_group"), ("ddp_set_comm_hook", "Context.set_hook"),
                           ("ddp_group_create", "Group"), ("ddp_store_wait", "Store.wait"), ("ddp_work_wait", "Work.wait"),
                           ("DDP_CONTEXT_JOIN", "join=True"), ("DDP_CONTEXT_NO_REBUILD", "rebuild=False"),
                           ("DDP_GROUP_DETERMINISTIC", "deterministic=True"), ("DDP_PARAM_SPARSE", "sparse=True"),
                           ("DDP_REDUCTION_WEIGHTED_MEAN", 'reduction="weighted_mean"'), ("DDP_ERROR_TIMEOUT", "TimeoutError"),
                           ("options->flags: DDP_CONTEXT_CHECK", "check=True"), ("options->bucket_caps[1]", "bucket_caps[1]"),
                           ("DDP_SECRET_FILE", "DDP_SECRET_FILE"), ("ddp_nothing", "ddp_nothing")):
            self.assertEqual(_words.in_python(f"call {name}, first"), f"call {word}, first")
        for name in dir(ddp._ddp):
            if name.startswith("ddp_"):
                self.assertNotIn("ddp_", _words.in_python(name))

    def test_arguments(self):
        ctx = ddp.Context(self.group)
        good = np.zeros(3, "f4")
        ctx.register("a", good)
        with support.raises(self, ddp.AlreadyExistsError, "'a'"):
            ctx.register("a", shape=(1,))
        for kind, word, call in (
                (TypeError, 'expected. If gradients have a type of their own, say grad_dtype="f64"', lambda: ctx.register("b", good, np.zeros(3))),
                (ValueError, "b: grad: its shape is (4,)", lambda: ctx.register("b", good, np.zeros(4, "f4"))),
                (ValueError, "shape", lambda: ctx.register("b")),
                (TypeError, "int8", lambda: ctx.register("b", shape=(1,), dtype="int8")),
                (ValueError, "reduction", lambda: ddp.Context(self.group, reduction="median")),
                (ValueError, "b: data: the array is read-only", lambda: ctx.register("b", b"abcd")),
                (ValueError, "c: data: the array is read-only", lambda: ctx.register_buffer("c", b"abcd")),
                (ValueError, "time", lambda: ddp.Group(timeout=-1)), (TypeError, "group", lambda: ddp.Context(ctx)),
                (TypeError, "function", lambda: ctx.set_hook(3)), (OverflowError, "", lambda: ctx.set_frozen([2**40])),
                (ddp.InvalidStateError, "Context.commit", lambda: ctx.grad_ready(0)),
                (ddp.InvalidArgumentError, "nope", lambda: ctx.use_hook("nope"))):
            with self.subTest(word), support.raises(self, kind, word):
                call()
        ctx.commit()
        for wrong in (-1, 2, 10**6, 2**40, -2**40):
            with self.subTest(wrong), self.assertRaises((ddp.InvalidArgumentError, OverflowError)):
                ctx.grad_ready(wrong)
        with self.assertRaises(TypeError):
            ctx.grad_ready("a")
        with support.raises(self, TypeError, "a: grad: its type is f64"):
            ctx.put(0, np.zeros(3))
        with support.raises(self, TypeError, "s: values: its type is f64"):
            sparse = ddp.Context(self.group)
            sparse.register("s", shape=(5, 2), sparse=True)
            sparse.commit()
            sparse.grad_ready_sparse(0, np.zeros(1, "i8"), np.zeros((1, 2)))

    def test_pickled(self):
        for each in (self.group, context(self.group)):
            for function in (pickle.dumps, copy.deepcopy):
                with support.raises(self, TypeError, "neither pickled nor copied"):
                    function(each)

    def test_closed(self):
        ctx = context(self.group)
        ready, view = ctx.grad_ready, np.asarray(ctx.grad_view(0))
        work = self.group.barrier(async_op=True)
        ctx.close()
        ctx.close()
        for call in (lambda: ready(0), ctx.finalize, ctx.step_begin, ctx.stats, lambda: ctx.grad_view(0)):
            with support.raises(self, ddp.InvalidStateError, "closed"):
                call()
        view += 1  # its memory stays
        work.wait()
        self.group.close()
        with support.raises(self, ddp.InvalidStateError, "closed"):
            self.group.barrier()
        self.assertIn("closed", repr(self.group))
        store = ddp.Store("tcp://127.0.0.1:0", server=True)
        store.close()
        with support.raises(self, ddp.InvalidStateError, "closed"):
            store.set("a", b"")

    def test_views_outlive_everything(self):
        ctx = context(self.group, 3, bucket_cap=24, first_bucket_cap=24)
        old = np.asarray(ctx.parameters[1].view())
        for _ in range(2):  # the second step_begin rebuilds the buckets: p1 leaves p2 for p0, and views move
            ctx.step_begin()
            for param in (0, 1, 2):
                ctx.put(param, np.full(3, param + 1, "f4"))
            ctx.finalize()
        self.assertEqual(ctx.layout_generation, 2)
        new = np.asarray(ctx.parameters[1].view())
        self.assertNotEqual(old.__array_interface__["data"], new.__array_interface__["data"])
        del ctx
        self.group.close()
        gc.collect()
        old += 1
        new += 1
        self.assertEqual(new.sum(), 9)

    def test_store(self):
        with ddp.Store("tcp://127.0.0.1:0", server=True, timeout=5) as store:
            store.set("a", bytearray(b"1"))
            store.set("b", "é")
            self.assertEqual((store.get("b"), store.get("a")), ("é".encode(), b"1"))
            self.assertEqual((store.add("n", 5), store.add("n", -2)), (5, 3))
            self.assertEqual(store.compare_set("a", b"1", b"2"), b"2")
            self.assertEqual((store.check(["a"]), store.check(["a", "zz"])), (True, False))
            self.assertEqual((store.delete("b"), store.delete("b"), store.keys("a")), (True, False, ["a"]))
            with support.raises(self, ddp.TimeoutError, "absent"):
                store.wait(["absent"], timeout=0.05)
            with ddp.Store(f"tcp://127.0.0.1:{store.port}") as other:
                self.assertEqual(other.keys(), store.keys())

    def test_addresses_beyond_loopback_need_a_secret(self):
        everywhere = {"init_method": "tcp://0.0.0.0:0", "rank": 0, "world_size": 1}
        for secret in ("", "short"):
            with support.raises(self, ddp.PermissionDeniedError, "16 bytes"):
                ddp.Store("tcp://0.0.0.0:0", server=True, secret=secret)
            with support.raises(self, ddp.PermissionDeniedError, "16 bytes"):
                ddp.Group(secret=secret, **everywhere)
        for secret in ("", "short"):
            ddp.Store("tcp://0.0.0.0:0", server=True, secret=secret, insecure=True).close()
            ddp.Group(secret=secret, insecure=True, **everywhere).close()
        ddp.Store("tcp://0.0.0.0:0", server=True, secret="long enough, this is").close()

    def test_work_without_a_waiter_keeps_its_array(self):
        for _ in range(20):
            self.group.allreduce(np.ones(1000, "f4"), async_op=True)
        gc.collect()
        self.group.barrier()

    def test_works(self):
        made = ddp.Work(timeout=20)
        seen = []
        after = made.then(lambda: seen.append(1))
        self.assertFalse(after.done())
        threading.Timer(0.02, made.complete).start()
        after.wait()
        self.assertEqual(seen, [1])
        failed = ddp.Work()
        failed.complete("no luck")
        with support.raises(self, ddp.CallbackError, "no luck"):
            failed.wait()

        def fail():
            raise KeyError("mine")

        with self.assertRaises(KeyError) as caught:
            self.group.barrier(async_op=True).then(fail).wait()
        self.assertIsInstance(caught.exception.__cause__, ddp.CallbackError)

    def test_what_functions_return(self):
        """Nothing or a work of a hook's and of a continuation's, and nothing that would have to be waited for of the others'."""
        passed_on = []

        def step(setter, function):
            ctx = context(self.group)
            getattr(ctx, setter)(function)
            for param in ctx.parameters:
                ctx.put(param, np.ones(3, "f4"))
            ctx.finalize()
            ctx.close()

        def number(group, bucket):
            return 3

        def array(group, bucket):
            return np.asarray(bucket.buffer)

        def works(group, bucket):
            return [group.barrier(async_op=True)]

        async def later(group, bucket):
            return None

        def closed(group, bucket):
            work = group.barrier(async_op=True)
            work.wait()
            work._handle.close()
            return work

        def same_again(group, bucket):
            passed_on.append(passed_on[0] if passed_on else group.barrier(async_op=True))
            return passed_on[-1]

        def continued(group, bucket):
            return group.barrier(async_op=True).then(lambda: "done")

        def work_of_another_group(group, bucket):
            return other.allreduce(bucket.buffer, bucket.op, async_op=True)

        def waited_for(group, bucket):
            work = group.barrier(async_op=True)
            work.wait()
            return work

        def unwaited(*_):
            return self.group.barrier(async_op=True)

        other = support.alone()
        for hook, kind, words in (
                (number, TypeError, ("hook", "number", "errors_test.py, line", "builtins.int", "return None", "return a Work")),
                (array, TypeError, ("array", "numpy.ndarray")), (works, TypeError, ("works", "builtins.list")),
                (later, TypeError, ("later", "coroutine")), (closed, ddp.InvalidStateError, ("closed", "each Work", "once")),
                (continued, TypeError, ("continuation", "<lambda>", "builtins.str"))):
            with self.subTest(hook.__name__), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a coroutine that nobody awaits
                with support.raises(self, kind, *words) as caught:
                    step("set_hook", hook)
                self.assertIsInstance(caught.exception.__cause__ or caught.exception, ddp.Error)
            self.group = support.alone()  # the error has broken it
        with support.raises(self, ddp.InvalidStateError, "same_again", "once"):
            ctx = context(self.group, bucket_cap=4, first_bucket_cap=4)  # two buckets
            ctx.set_hook(same_again)
            for param in ctx.parameters:
                ctx.put(param, np.ones(3, "f4"))
            ctx.finalize()
        for setter, what in (("hook_then", "hook_then"), ("set_reduced_callback", "reduced callback")):
            self.group = support.alone()
            with support.raises(self, TypeError, what, "unwaited", "ddp.work.Work", "does not wait"):
                step(setter, unwaited)
        self.group = support.alone()
        with support.raises(self, TypeError, "buffer hook", "does not wait"):
            ctx = ddp.Context(self.group)
            ctx.register("w", shape=(1,))
            ctx.register_buffer("b", np.zeros(1, "f4"))
            ctx.commit()
            ctx.set_buffer_hook(unwaited)
            ctx.put(0, np.ones(1, "f4"))
            ctx.finalize()
            ctx.step_begin()
        self.group = support.alone()
        for hook in (lambda group, bucket: None, waited_for, work_of_another_group):
            step("set_hook", hook)
        with support.raises(self, TypeError, "function"):
            self.group.barrier(async_op=True).then(3)

    def test_other_threads_run_while_a_call_blocks(self):
        count = [0]
        with ddp.Store("tcp://127.0.0.1:0", server=True) as store:
            waiting = threading.Event()

            def wait():
                waiting.set()
                with self.assertRaises(ddp.TimeoutError):
                    store.wait(["never"], timeout=0.3)
                waiting.clear()

            thread = threading.Thread(target=wait)
            thread.start()
            waiting.wait()
            while waiting.is_set():
                count[0] += 1
            thread.join()
        self.assertGreater(count[0], 1000)

    def test_no_foreign_threads(self):
        work = self.group.barrier(async_op=True)
        with support.raises(self, ddp.UnsupportedError, "only on threads inside"):
            ddp._ddp.ddp_work_then(work, print, ddp._ddp.DDP_WORK_ANY_THREAD)
        work.wait()

    def test_await(self):
        async def both():
            await asyncio.gather(self._ends(), self._ends())

        asyncio.run(both())

    async def _ends(self):
        await self.group.barrier(async_op=True)

    def test_forked(self):
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (self.group.barrier, ddp.Group, lambda: self.group.rank):
                try:
                    call()
                except ddp.InvalidStateError as error:
                    refused += "forked" in str(error)
            self.group.close()
            os._exit(0 if refused == 3 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.group.barrier()

    def test_fork_before_use_is_fine(self):
        code = ("import os, ddp; child = os.fork(); group = ddp.Group(0, 1); group.barrier();"
                "child and os._exit(os.waitpid(child, 0)[1])")
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30)

    def test_wrong_gil_free_threads(self):
        """Threads announce at once; one closes in the middle."""
        for _ in range(20):
            ctx = context(self.group, 64)
            ready = ctx.grad_ready

            def announce(params):
                for param in params:
                    try:
                        ready(param)  # pylint: disable=cell-var-from-loop
                    except ddp.Error:
                        return

            threads = [threading.Thread(target=announce, args=(range(i, 64, 4),)) for i in range(4)]
            for thread in threads:
                thread.start()
            ctx.close()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    support.main()
