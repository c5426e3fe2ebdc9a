"""The memory of a rank that trains a GPT-2 on the CPU with ddp.torch.DistributedDataParallel, with PyTorch's own over Gloo, and without.

    python3 torch_memory.py --run "ddprun -n 2" [--backend shm] [--layers 12] [--width 768] [--words 50257] [--adamw]

Each kind trains in processes of its own: it keeps its buckets, and the memory that its allocator has freed. Prints for the slowest rank, in
MiB above what the modules of Python take: the largest and the last proportional set (PSS: a page that several ranks map counts in parts),
the largest resident set (RSS: it counts in full on each), and what of it is gradients and parameters. The optimizer is SGD without momentum,
which has no state. --adamw: AdamW, whole and sharded, of PyTorch and of libddp.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading

KINDS = [(name, options) for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True},
                                         {"gradient_as_bucket_view": True, "static_graph": True})
         for name in ("pytorch", "libddp")]
ADAMW_KINDS = [("pytorch", {"gradient_as_bucket_view": True, "optimizer": "AdamW"}),
               ("pytorch", {"gradient_as_bucket_view": True, "optimizer": "ZeroRedundancyOptimizer"}),
               ("libddp", {"gradient_as_bucket_view": True, "optimizer": "AdamW"}),
               ("libddp", {"shard": True, "optimizer": "ShardedOptimizer"})]
STEPS = 4


def pss():
    """The memory of this process, in MiB."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as text:
        return next(int(line.split()[1]) for line in text if line.startswith("Pss:")) / 1024


class Largest:
    """The largest PSS while it watches."""

    def __init__(self):
        self.value, self._over = pss(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.02):
            self.value = max(self.value, pss())

    def end(self):
        self._over.set()
        self._thread.join()
        return self.value


def network(layers, width, words):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            parts = [part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)]
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(-2))
            return x + self.mlp(self.second(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
            self.blocks, self.last = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)

        def forward(self, x):
            x = self.last(self.blocks(self.words(x) + self.places.weight[:x.shape[1]]))
            return x @ self.words.weight.t()

    return Gpt()


def measure(options):
    """One kind, on this rank. Rank 0 prints the largest of all ranks."""
    import resource

    import torch
    from torch import distributed, nn

    import ddp
    from ddp.torch import DistributedDataParallel
    torch.set_num_threads(1)
    group = ddp.Group(backend=options.backend)
    kind, arguments = options.measure, json.loads(options.arguments)
    name = arguments.pop("optimizer", "SGD")
    port = torch.zeros(1, dtype=torch.int64)
    if group.rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, group.world_size, True, wait_for_workers=False)
        port[0] = store.port
    group.broadcast(port, 0)
    if group.rank:
        store = distributed.TCPStore("127.0.0.1", port.item(), group.world_size, False)
    distributed.init_process_group("gloo", store=store, rank=group.rank, world_size=group.world_size)
    base = pss(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    watch = Largest()
    model = network(options.layers, options.width, options.words)
    size = sum(p.numel() * 4 for p in model.parameters()) / 2**20
    parallel = {"alone": lambda: model, "pytorch": lambda: nn.parallel.DistributedDataParallel(model, **arguments),
                "libddp": lambda: DistributedDataParallel(model, process_group=group, **arguments)}[kind]()
    if name == "ZeroRedundancyOptimizer":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.001)
    elif name == "ShardedOptimizer":
        from ddp.torch import ShardedOptimizer
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.001)
    else:
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.001)
    x = torch.randint(options.words, (1, options.tokens))
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
    group.barrier()
    last = pss()
    group.barrier()
    found = torch.tensor([watch.end() - base[0], last - base[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - base[1], size],
                         dtype=torch.float64)
    group.allreduce(found, "max")
    if group.rank == 0:
        print("FOUND", json.dumps(found.tolist()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="ddprun -n 2", help="how to start the ranks")
    parser.add_argument("--backend", default="auto", help="of libddp")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--words", type=int, default=50257)
    parser.add_argument("--tokens", type=int, default=32, help="of a batch: few, so that gradients count and activations do not")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--adamw", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--arguments", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return measure(options)
    print(f"{'':44}{'largest PSS':>12}{'last PSS':>12}{'largest RSS':>12}{'parameters':>12}")
    sizes = [f"--{name}={getattr(options, name)}" for name in ("backend", "layers", "width", "words", "tokens")]
    for kind, arguments in ADAMW_KINDS if options.adamw else [("alone", {}), *KINDS]:
        rounds = []
        for _ in range(options.rounds):
            done = subprocess.run([*shlex.split(options.run), sys.executable, os.path.abspath(__file__), "--measure", kind, "--arguments",
                                   json.dumps(arguments), *sizes], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
            rounds.append(json.loads(done.stdout.rpartition("FOUND ")[2]))
        what = arguments.get("optimizer") or ", ".join(arguments) or ("" if kind == "alone" else "copies")
        print(f"{kind + ' ' + what:<44}" + "".join(f"{statistics.median(values):12.0f}" for values in zip(*rounds)), flush=True)
    return None


if __name__ == "__main__":
    main()
