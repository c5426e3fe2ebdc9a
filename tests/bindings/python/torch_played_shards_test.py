"""ddp.torch.ShardedOptimizer on a device whose memory no processor can touch and whose streams are late.

    torch_played_shards_test.py FAKE_DEVICE COMPILER FOLDER RANKS...        as torch_played_test.py
"""
import ctypes
import gc
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "played"))
import played  # noqa: E402

played.need()

import support  # noqa: E402

FAKE_DEVICE, COMPILER, FOLDER, *COUNTS = sys.argv[1:]
if support.RANK < 0:
    played.build(COMPILER, FAKE_DEVICE, FOLDER)
    for count in COUNTS:
        print(support.run_ranks(int(count), sys.executable, "-B", *sys.argv, timeout=250))
    sys.exit()

import torch  # noqa: E402

played.load(played.build(COMPILER, FAKE_DEVICE, FOLDER))
os.environ["DDP_TEST_DEVICE"] = "played:0"
sys.path.insert(0, str(played.TESTS / "gpu"))
import torch_module  # noqa: E402
import torch_shards  # noqa: E402
from torch_module import DEVICE, Network, loss_of, on_cpu  # noqa: E402
from torch_shards import ADAM, AdamW, SGD, ShardedOptimizer  # noqa: E402


class Shards(torch_shards.Shards):
    """The cases that are for real GPUs, too, and those that need a device which stands still."""

    def hold(self):
        threading.Timer(0.05, torch.ops.played.open_gate, [torch.ops.played.close_gate(0)]).start()

    def test_the_host_does_not_wait(self):
        """In whole steps whose streams stand still. With several ranks the fake device's data goes through the host, which waits in
        libddp; nothing in ddp.torch waits then."""
        for overlap in (False, True):
            module = Network().to(DEVICE)
            model = self.wrap(module, shard=True)
            optimizer = ShardedOptimizer(model, AdamW, overlap_with_ddp=overlap, **ADAM)
            batches = [(x[self.mine].to(DEVICE), y[self.mine].to(DEVICE)) for x, y in self.batches(6)]

            def step(x, y):
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()

            for x, y in batches[:3]:
                step(x, y)
            before = torch.ops.played.waits()
            handle = torch.ops.played.close_gate(0) if self.world == 1 else None
            for x, y in batches[3:]:
                step(x, y)
            if handle is not None:
                torch.ops.played.open_gate(handle)
            self.assertEqual(torch.ops.played.waits(), before)
            optimizer.wait_values()
            alone = Network()
            self.steps(alone, AdamW(alone.parameters(), **ADAM), 6)
            self.same(alone.parameters(), module.parameters(), 2e-5)

    def test_memory_goes_with_the_model(self):
        live = ctypes.CDLL(FAKE_DEVICE)["_ZN4fake10live_bytesEv"]
        live.restype = ctypes.c_size_t
        module = Network().to(DEVICE)
        torch.accelerator.synchronize()
        before = live()
        gc.disable()
        try:
            model = self.wrap(module, shard=True)
            optimizer = ShardedOptimizer(model, AdamW, **ADAM)
            self.steps(model, optimizer, 2)
            self.assertGreater(live(), before)
            self.hold()
            loss_of(model(torch.zeros(2, 5, device=DEVICE)), torch.zeros(2, 4, device=DEVICE)).backward()
            optimizer.step()
            del model, optimizer
            for _ in range(1000):  # threads of libddp may hold the last operations a while longer
                torch.accelerator.synchronize()
                if live() == before:
                    break
                time.sleep(0.01)
            self.assertEqual(live(), before)
        finally:
            gc.enable()
        self.assertFalse(any(tensor.isnan().any() for tensor in on_cpu(module.parameters())))

    def test_a_step_outlives_its_model(self):
        """An optimizer's kernels are still to come, on a stream that does nothing, when nobody else has its pieces."""
        alone, module = Network(), Network().to(DEVICE)
        model = self.wrap(module, shard=True)
        optimizers = [SGD(alone.parameters(), lr=0.1), ShardedOptimizer(model, SGD, lr=0.1)]
        self.steps(alone, optimizers[0], 1)
        self.steps(model, optimizers.pop(), 1, before_step=self.hold)
        del model
        with torch_module.Side().stream as other:  # which gets the memory of buckets, if it is free
            for _ in range(20):
                torch.full((64,), float("nan"), device=DEVICE)
                other.synchronize()
        self.same(alone.parameters(), module.parameters())


if __name__ == "__main__":
    torch_module.main(__name__)
