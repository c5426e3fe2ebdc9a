#!/usr/bin/env python3
"""The cost of a step of training on a GPU with ddp.torch.DistributedDataParallel, beside PyTorch's and beside no other ranks at all:

    ddprun -n 2 python3 torch_train.py resnet50 [--view] [--jitter-ms 1] [--backend nccl] [--device cuda:0]

ResNet-50 trains in channels_last with float16 and a GradScaler, gpt2 (124 million parameters) with bfloat16. The three loops take turns in
blocks of steps. Prints for each the median milliseconds of a step, and the milliseconds of the processor until the step is enqueued, less
those of the loop alone; then the ratios of libddp to PyTorch. --jitter-ms: the last rank sleeps before each step, at random, this long in
the mean. --small makes the models small enough for --device cpu, which plays the script. Prints "skipped: REASON" where there is no
PyTorch with a GPU.
"""
import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time

from torch_or_skip import skip, torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.short = None
        if stride != 1 or inside != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        return F.relu(self.norm3(self.conv3(out)) + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    """ResNet-50, whose depths are 3, 4, 6, 3 and whose width is 64."""

    def __init__(self, depths, width):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks, inside = [], width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(inside, width << stage, 2 if stage and not number else 1))
                inside = 4 * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inside, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    """GPT-2, whose smallest form has 12 layers and heads, a width of 768, 50,257 words and a length of 1,024."""

    def __init__(self, layers, heads, width, words, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers, self.norm = nn.Sequential(*(Layer(width, heads) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, x):
        x = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.norm(self.layers(x)) @ self.words.weight.t()  # the words' weights are used twice


class Training:
    """A model, its batch, and the type in which it computes."""

    def __init__(self, name, small, device):
        self.name, self.small, self.device = name, small, device
        self.dtype = torch.float16 if name == "resnet50" and device.type == "cuda" else torch.bfloat16
        made = torch.Generator().manual_seed(torch.initial_seed() % 1000)
        if name == "resnet50":
            batch, side = (2, 32) if small else (64, 224)
            x = torch.randn(batch, 3, side, side, generator=made).to(memory_format=torch.channels_last)
            self.batch = x.to(device), torch.randint(1000, (batch,), generator=made).to(device)
        else:
            self.words, self.length = (100, 16) if small else (50257, 1024)
            x = torch.randint(self.words, (2 if small else 8, self.length + 1), generator=made).to(device)
            self.batch = x[:, :-1], x[:, 1:]

    def model(self):
        torch.manual_seed(1)
        if self.name == "resnet50":
            made = ResNet((1, 1, 1, 1), 4) if self.small else ResNet((3, 4, 6, 3), 64)
            return made.to(self.device, memory_format=torch.channels_last)
        return Gpt2(2, 2, 16, self.words, self.length).to(self.device) if self.small else Gpt2(12, 12, 768, self.words, self.length).to(self.device)


class Loop:
    """The steps of one model."""

    def __init__(self, training, model):
        self.training, self.model = training, model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        scales = training.dtype == torch.float16
        self.scaler = torch.amp.GradScaler("cuda", enabled=scales) if training.device.type == "cuda" else None

    def step(self):
        """Enqueues a step. Returns its loss, on the device."""
        x, y = self.training.batch
        self.optimizer.zero_grad()
        with torch.autocast(self.training.device.type, self.training.dtype):
            output = self.model(x)
            loss = F.cross_entropy(output.flatten(0, -2), y.flatten())
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def block(self, steps, wait, pause):
        """Milliseconds of the processor and of the clock for one of so many steps, and the last loss."""
        wait()
        before, cpu = time.perf_counter(), 0.0
        for _ in range(steps):
            pause()
            begun = time.process_time()
            loss = self.step()
            cpu += time.process_time() - begun
        wait()
        return 1e3 * cpu / steps, 1e3 * (time.perf_counter() - before) / steps, loss.item()


def meet(group, device):
    """PyTorch's group of the same ranks."""
    folder = tempfile.mkdtemp() if group.rank == 0 else ""
    name = torch.zeros(300, dtype=torch.uint8)
    name[:len(folder)] = torch.tensor(list(folder.encode()), dtype=torch.uint8)
    group.broadcast(name, 0)
    folder = bytes(name[name != 0].tolist()).decode()
    torch.distributed.init_process_group("gloo" if device.type == "cpu" else "nccl", init_method=f"file://{folder}/meeting", rank=group.rank,
                                         world_size=group.world_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("resnet50", "gpt2"))
    parser.add_argument("--view", action="store_true", help="gradients live in their buckets")
    parser.add_argument("--jitter-ms", type=float, default=0)
    parser.add_argument("--backend", help="of libddp; the default is nccl on a GPU")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            skip("PyTorch sees no GPU")
        torch.cuda.set_device(device)
    import ddp
    from ddp.torch import DistributedDataParallel
    group = ddp.Group(backend=arguments.backend or ("nccl" if device.type == "cuda" else "auto"))
    meet(group, device)
    torch.manual_seed(group.rank)
    training = Training(arguments.model, arguments.small, device)
    ids = [device.index] if device.type == "cuda" else None
    options = {"device_ids": ids, "gradient_as_bucket_view": arguments.view}
    loops = {"local": Loop(training, training.model()),
             "libddp": Loop(training, DistributedDataParallel(training.model(), process_group=group, **options)),
             "PyTorch": Loop(training, nn.parallel.DistributedDataParallel(training.model(), **options))}
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    chance = random.Random(1)
    late = arguments.jitter_ms > 0 and group.rank == group.world_size - 1

    def pause():
        if late:
            time.sleep(chance.uniform(0, 2e-3 * arguments.jitter_ms))

    taken = {name: [] for name in loops}
    for number in range(arguments.blocks + 1):
        for name in sorted(loops, reverse=number % 2 == 1):
            group.barrier()
            taken[name].append(loops[name].block(arguments.steps, wait, pause))
    medians = {name: [statistics.median(values) for values in zip(*blocks[1:])] for name, blocks in taken.items()}
    losses = {name: blocks[-1][2] for name, blocks in taken.items()}
    if group.rank == 0:
        cpu, clock = ({name: values[place] for name, values in medians.items()} for place in (0, 1))
        print(f"{arguments.model}, {'view' if arguments.view else 'copy'}, {group.world_size} ranks over {group.backend}, "
              f"jitter {arguments.jitter_ms:g} ms, PyTorch {torch.__version__}: step_ms {clock['libddp']:.3f} (PyTorch {clock['PyTorch']:.3f}, "
              f"local {clock['local']:.3f}), ratio {clock['libddp'] / clock['PyTorch']:.3f}; cpu_ms {cpu['libddp'] - cpu['local']:.3f} "
              f"(PyTorch {cpu['PyTorch'] - cpu['local']:.3f}), ratio {(cpu['libddp'] - cpu['local']) / (cpu['PyTorch'] - cpu['local']):.3f}; "
              f"loss {losses['libddp']:.6f} (PyTorch {losses['PyTorch']:.6f})", flush=True)
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
    if abs(losses["libddp"] - losses["PyTorch"]) > 0.01 * abs(losses["PyTorch"]):
        sys.exit("the losses differ")


if __name__ == "__main__":
    main()
