#!/usr/bin/env python3
"""Steps of a real model in PyTorch, timed. Prints one row as JSON.

    torch_step.py ready --model resnet152                     when the gradients of a backward pass are complete
    torch_step.py ready --model resnet152 --device cuda --batch 32    the same on a GPU
    ddprun -n 2 torch_step.py steps --model resnet50          a step: forward, backward, with and without overlap
    ddprun -n 2 torch_step.py steps --sync-every 1,2,4,8      and with gradients averaged in one of so many steps
"""
import argparse
import contextlib
import json
import statistics
import time

import torch

import networks

MIB = 1 << 20
WARM_UP = 2  # synced steps: in the second one buckets are rebuilt


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ready", "steps"])
    parser.add_argument("--model", choices=networks.MODELS, default="resnet50")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of ready")
    parser.add_argument("--batch", type=int, default=1, help="of ready")
    parser.add_argument("--sync-every", default="", metavar="N,N,...", help="instead of a step without overlap")
    return parser.parse_args()


def now_ms():
    return 1e3 * time.perf_counter()


class Clock:
    """Marks moments in the work of the processor, or of the GPU's stream, which the processor only enqueues."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"

    def mark(self):
        if not self.on_gpu:
            return now_ms()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start, end):
        """Milliseconds."""
        if not self.on_gpu:
            return end - start
        end.synchronize()
        return start.elapsed_time(end)


def times_of_gradients(options):
    name, make, batch = networks.MODELS[options.model]
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False  # FP32, as in the paper
    clock = Clock(options.device)
    model = make().to(options.device)
    x, y = (torch.cat([tensor] * options.batch).to(options.device) for tensor in batch())
    moments, series = {}, []
    # The nodes that add up gradients: a hook of the tensor's own for that came with PyTorch 2.1.
    nodes = [tensor.expand_as(tensor).grad_fn.next_functions[0][0] for tensor in model.parameters()]
    for index, node in enumerate(nodes):
        node.register_hook(lambda *_, index=index: moments.__setitem__(index, clock.mark()))
    for _ in range(1 + options.rounds):  # the first one does not count
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        start = clock.mark()
        loss.backward()
        series.append({index: clock.between(start, moment) for index, moment in moments.items()})
    ready = {index: statistics.median(one[index] for one in series[1:]) for index in series[0]}
    order, counts = sorted(ready, key=ready.get), [tensor.numel() for tensor in model.parameters()]
    print(json.dumps({"name": "torch-ready", "model": name, "torch": torch.__version__, "batch": options.batch,
                      "device": torch.cuda.get_device_name() if clock.on_gpu else "cpu", "ready_ms": [ready[index] for index in order],
                      "elements": [counts[index] for index in order]}))


class Trainer:
    """One model, a context for steps with overlap (in DistributedDataParallel) and one for steps without. Both copy gradients into buckets
    and back, so that overlap is all that differs."""

    def __init__(self, options, group):
        import ddp
        from ddp.torch import DistributedDataParallel
        self.name, make, batch = networks.MODELS[options.model]
        torch.manual_seed(1)
        self.model, (self.x, self.y) = make(), batch()
        cap = int(options.bucket_mb * MIB)
        self.parallel = DistributedDataParallel(self.model, process_group=group, bucket_cap_mb=options.bucket_mb, broadcast_buffers=False)
        self.apart = ddp.Context(group, bucket_cap=cap, first_bucket_cap=min(MIB, cap))
        self.tensors = list(self.model.parameters())
        for name, tensor in self.model.named_parameters():
            self.apart.register(name, tensor.detach())
        self.apart.commit()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def pass_through(self):
        """Milliseconds of a forward and of a backward pass."""
        start = now_ms()
        loss = torch.nn.functional.cross_entropy(self.parallel(self.x), self.y)
        middle = now_ms()
        loss.backward()
        return middle - start, now_ms() - middle

    def local(self):
        with self.parallel.no_sync():
            passes = self.pass_through()
        self.optimizer.zero_grad()
        return passes

    def together(self):
        start = now_ms()
        self.pass_through()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return now_ms() - start

    def one_after_the_other(self):
        start = now_ms()
        with self.parallel.no_sync():
            self.pass_through()
        self.apart.step_begin()
        for index in reversed(range(len(self.tensors))):
            self.apart.put(index, self.tensors[index].grad)
        self.apart.finalize()
        for index, tensor in enumerate(self.tensors):
            tensor.grad.copy_(torch.from_dlpack(self.apart.grad_view(index)))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return now_ms() - start

    def skipping(self, every):
        """The mean time of so many steps, of which the last one averages. The optimizer is not counted: it runs once for all of them."""
        start = now_ms()
        for i in range(1, every + 1):
            with self.parallel.no_sync() if i < every else contextlib.nullcontext():
                self.pass_through()
        took = now_ms() - start
        self.optimizer.step()
        self.optimizer.zero_grad()
        return took / every


def steps(options):
    import ddp
    group = ddp.Group(backend=options.backend)
    trainer = Trainer(options, group)
    kinds = {"local": trainer.local, "median_ms": lambda: [trainer.together()]}
    if options.sync_every:
        for every in map(int, options.sync_every.split(",")):
            kinds[f"sync_every_{every}_ms"] = lambda every=every: [trainer.skipping(every)]
    else:
        kinds["apart_ms"] = lambda: [trainer.one_after_the_other()]
    found, warm_up = {kind: [] for kind in kinds}, 1 if options.sync_every else WARM_UP
    for number in range(warm_up + options.rounds):
        for kind, step in kinds.items():
            group.barrier()
            slowest = torch.tensor(step(), dtype=torch.float64)
            group.allreduce(slowest, "max")
            if number >= warm_up:
                found[kind].append(slowest.tolist())
    if group.rank == 0:
        medians = {kind: [statistics.median(values) for values in zip(*series)] for kind, series in found.items()}
        forward, backward = medians.pop("local")
        print(json.dumps({"name": "torch-steps", "model": trainer.name, "world": group.world_size, "torch": torch.__version__,
                          "parameters": sum(tensor.numel() for tensor in trainer.tensors), "forward_ms": forward, "backward_ms": backward,
                          **{kind: values[0] for kind, values in medians.items()}}), flush=True)


def main():
    torch.set_num_threads(1)
    options = parse()
    (times_of_gradients if options.what == "ready" else steps)(options)


if __name__ == "__main__":
    main()
