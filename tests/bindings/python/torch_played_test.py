"""ddp.torch.DistributedDataParallel with modules on a device whose memory no processor can touch and whose streams are late.

    torch_played_test.py FAKE_DEVICE COMPILER FOLDER RANKS...

FAKE_DEVICE is libddp-cuda.so of the tests; its folder is $DDP_MODULE_PATH. FOLDER keeps what is compiled. The device is one of PyTorch
(played/played.cc), so a forgotten order of streams gives NaN. The numbers are those of one process on the CPU that has the whole batch.
"""
import contextlib
import ctypes
import gc
import os
import pathlib
import sys
import threading
import time
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
import played  # noqa: E402

played.need()

import support  # noqa: E402

FAKE_DEVICE, COMPILER, FOLDER, *COUNTS = sys.argv[1:]
if support.RANK < 0:
    played.build(COMPILER, FAKE_DEVICE, FOLDER)
    for count in COUNTS:
        print(support.run_ranks(int(count), sys.executable, "-B", *sys.argv))
    sys.exit()

import ddp  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

played.load(played.build(COMPILER, FAKE_DEVICE, FOLDER))
os.environ["DDP_TEST_DEVICE"] = "played:0"
sys.path.insert(0, str(played.TESTS / "gpu"))
import torch_graphs  # noqa: E402
import torch_module  # noqa: E402
from torch_module import DEVICE, DistributedDataParallel, Network, Normalised, loss_of, on_cpu  # noqa: E402


@contextlib.contextmanager
def gate():
    """The current stream does nothing in here."""
    handle = torch.ops.played.close_gate(0)
    try:
        yield
    finally:
        torch.ops.played.open_gate(handle)


class Modules(torch_module.Modules):
    """The cases that are for real GPUs, too, and those that need a device which stands still."""

    def hold(self):
        threading.Timer(0.2, torch.ops.played.open_gate, [torch.ops.played.close_gate(0)]).start()

    def test_the_host_does_not_wait(self):
        """In whole steps whose streams stand still. With several ranks the fake device's data goes through the host, which waits in
        libddp; nothing in ddp.torch waits then."""
        for options in ({"gradient_as_bucket_view": True, "device_ids": [0]}, {"static_graph": True}, {"find_unused_parameters": True}):
            with self.subTest(options):
                self.steps_without_waiting(**options)

    def test_the_host_does_not_wait_for_optimizers_in_hooks(self):
        self.steps_without_waiting(self.step_in_hooks, bucket_cap_mb=0.0003)

    def steps_without_waiting(self, prepare=lambda module: None, **options):
        module = Normalised().to(DEVICE)
        model = DistributedDataParallel(module, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        prepare(module)
        batches = [(x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)) for x, y in self.batches(7)]

        def step(x, y, context=contextlib.nullcontext):
            with context():
                loss_of(model(x), y).backward()

        for x, y in batches[:3]:  # in which buckets are built anew
            step(x, y)
            optimizer.step()
        before = torch.ops.played.waits()
        with gate() if self.world == 1 else contextlib.nullcontext():
            for number, (x, y) in enumerate(batches[3:]):
                step(x, y, model.no_sync if number == 1 else contextlib.nullcontext)
                if number != 1:
                    optimizer.step()
                    optimizer.zero_grad()
        self.assertEqual(torch.ops.played.waits(), before)
        self.assertFalse(any(tensor.isnan().any() for tensor in on_cpu(module.parameters())))

    def test_a_model_frees_its_memory_with_its_last_reference(self):
        live = ctypes.CDLL(FAKE_DEVICE)["_ZN4fake10live_bytesEv"]
        live.restype = ctypes.c_size_t
        module = Normalised().to(DEVICE)
        torch.accelerator.synchronize()
        before = live()
        gc.disable()
        try:
            for views in (False, True):
                model = DistributedDataParallel(module, gradient_as_bucket_view=views)
                for x, y in self.batches():
                    loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
                self.assertGreater(live(), before)
                module.zero_grad()
                del model, x, y
                for _ in range(1000):  # threads of libddp may hold the last operations a while longer
                    torch.accelerator.synchronize()
                    if live() == before:
                        break
                    time.sleep(0.01)
                self.assertEqual(live(), before)
        finally:
            gc.enable()

    def test_others_hear_of_a_lost_step_first(self):
        """A rank whose device stands still closes its context in a step, and the others need not wait for that device."""
        if self.world == 1:
            return
        for close in (True, False):
            group = ddp.Group(timeout=10)  # which breaks
            model = DistributedDataParallel(Network().to(DEVICE), process_group=group)
            news = torch.zeros(1)
            if self.rank == 0:
                def open_when_told(handle):
                    self.group.broadcast(news, 1)
                    torch.ops.played.open_gate(handle)

                listener = threading.Thread(target=open_when_told, args=[torch.ops.played.close_gate(0)])
                listener.start()
                model._steps.begin()
                if close:
                    model._steps.close()
                del model
                listener.join()
            else:
                try:
                    model(next(self.batches(1))[0].to(DEVICE)).sum().backward()
                except ddp.Error as error:
                    news += isinstance(error, ddp.AbortedError)
                self.group.broadcast(news, 1)
            self.assertEqual(news.item(), 1)

    def test_a_model_goes_without_a_wait_where_it_cannot_or_need_not(self):
        """In a child of fork there is no device to wait for, and a closed one has waited."""
        model = DistributedDataParallel(Network().to(DEVICE))
        self.train(model, self.mine, DEVICE)
        child = os.fork()
        if child == 0:
            before = torch.ops.played.waits()
            model._steps.__del__()
            os._exit(int(torch.ops.played.waits() != before))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        model._steps.close()
        before = torch.ops.played.waits()
        del model
        self.assertEqual(torch.ops.played.waits(), before)

    def test_buckets_outlive_their_model(self):
        """The copies of the means out of the buckets are still to come, on a stream that does nothing."""
        if self.world > 1:
            return  # libddp itself waits for that stream
        for close in (False, True):
            alone, module = Network(), Network().to(DEVICE)
            model = DistributedDataParallel(module)
            x, y = next(self.batches(1))
            loss_of(alone(x), y).backward()
            x, y = x.to(DEVICE), y.to(DEVICE)
            self.hold()
            loss_of(model(x), y).backward()
            if close:
                module.more = nn.Linear(1, 1).to(DEVICE)
                model._steps.end()
            else:
                del model
            other = DistributedDataParallel(Network().to(DEVICE))  # which may get that memory
            self.same([p.grad for p in alone.parameters()], [p.grad for p in module.parameters() if p.grad is not None])
            del other

    def test_gradients_outlive_their_model(self):
        """An optimizer's step over gradients in buckets is still to come, on a stream that does nothing, when nobody else has them."""
        alone, module = Network(), Network().to(DEVICE)
        model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        x, y = next(self.batches(1))
        loss_of(alone(x), y).backward()
        loss_of(model(x[self.mine].to(DEVICE)), y[self.mine].to(DEVICE)).backward()
        del model
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, module)]
        with gate():
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch_module.Side().stream as other:  # which gets that memory, if it is free
                for _ in range(20):
                    torch.full((64,), float("nan"), device=DEVICE)
                    other.synchronize()
        self.same(alone.parameters(), module.parameters())

    def test_buckets_outlive_the_step_in_which_they_move(self):
        """A gradient that lies in an old bucket is still to be copied to the new one, on a stream that does nothing."""
        if self.world > 1:
            return  # libddp itself waits for that stream
        for fresh in (False, True):
            with self.subTest(fresh=fresh):
                self.move_gradients(fresh)

    def move_gradients(self, fresh):
        alone, module = Network(), Network().to(DEVICE)
        model = DistributedDataParallel(module, gradient_as_bucket_view=True, bucket_cap_mb=300 / 2**20)  # the second plan has other buckets
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (alone, module)]
        begin, moves = model._steps.begin, []

        def begin_and_stop():
            generation = model.context.layout_generation
            begin()
            if model.context.layout_generation != generation:
                moves.append(generation)
                self.hold()

        model._steps.begin = begin_and_stop
        for x, y in self.batches():
            for each, on, optimizer in ((alone, "cpu", optimizers[0]), (model, DEVICE, optimizers[1])):
                optimizer.zero_grad(set_to_none=False)
                for name, tensor in each.named_parameters() if fresh else ():
                    if "first" in name:
                        tensor.grad = None  # the bucket is not complete when the last of the others has been copied
                loss_of(each(x.to(on)), y.to(on)).backward()
                optimizer.step()
        self.assertTrue(moves)
        self.same(alone.parameters(), module.parameters())

    def test_a_copy_to_a_parameter_on_the_cpu(self):
        """The played device itself takes one."""
        leaf = nn.Parameter(torch.zeros(3))
        with torch.no_grad():
            leaf.copy_(torch.ones(3, device=DEVICE))
        self.assertEqual(leaf.tolist(), [1, 1, 1])

    def test_hooks_of_libddp(self):
        """The device gives the numbers that the CPU gives."""
        small = {"min_elements": 8}
        for name, options in (("fp16", {}), ("powersgd", {"rank": 2, "start": 1, "min_rate": 0.5}), ("quantize_per_channel", small),
                              ("onebit", {"block": 8, **small}), ("topk", {"ratio": 0.5, **small})):
            with self.subTest(name):
                modules = [Network(), Network().to(DEVICE)]
                for module, device in zip(modules, (None, DEVICE)):
                    model = DistributedDataParallel(module)
                    model.context.use_hook(name, **options)
                    self.train(model, self.mine, device)
                self.same(modules[0].parameters(), modules[1].parameters())

    def test_buffers_after_a_failure(self):
        """There was no memory to send them, and now there is."""
        if self.world == 1:
            return
        module = Normalised().to(DEVICE)
        model = DistributedDataParallel(module)
        x = next(self.batches(1))[0][self.mine].to(DEVICE)
        with unittest.mock.patch("ddp._torch_steps.Buffers", side_effect=MemoryError):
            with self.assertRaises(MemoryError):
                model(x)
        model(x + self.rank).sum().backward()
        self.same_as_first([module.norm.num_batches_tracked])

    def test_other_devices_are_refused(self):
        with support.raises(self, NotImplementedError, "meta"):
            DistributedDataParallel(nn.Linear(2, 2).to("meta"))


class Graphs(torch_graphs.Graphs):
    """Graphs of the device."""


class BesidePyTorch(torch_module.BesidePyTorch):
    """PyTorch's class is on the CPU."""

    @classmethod
    def start(cls, **options):
        torch.distributed.init_process_group("gloo", **options)
        cls.group_of_hooks = played.group_through_the_host()


if __name__ == "__main__":
    torch_module.main(__name__)
