"""How the figures are measured: ddp-bench on one host, between two hosts, and its simulator; and programs in Python."""
import contextlib
import functools
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from figure import Figure  # puts tools/bench/runs on the path

import running  # tools/bench/runs
import namespaces  # tools/bench/runs
import processes  # tools/bench/peers

HERE = pathlib.Path(__file__).resolve().parent
RATE = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)")
LINKED = {"libddp tcp": "tcp", "libddp gloo": "gloo"}  # backends that are compared between hosts


@dataclass
class Size:
    """How much is measured. FULL: about 90 minutes on two idle cores. QUICK: less than 10. TINY: for a test; the figures mean nothing."""
    name: str
    iters: int  # of a replayed step
    bert_iters: int
    group_iters: int  # of a step with round-robin groups, whose differences are small
    total: int  # f32 elements of figure 2
    tensor_sizes: list
    buckets: list  # MiB; 0: each gradient alone
    ratios: list  # communication to backward pass
    measured_worlds: list
    narrow: int  # BERT's layers are so much narrower
    convergence: dict  # steps by batch size
    rounds: int  # of real models
    resnet: str = "resnet50"
    bert: str = "bert-large"
    real: tuple = ("resnet50", "transformer")
    profile: str = "resnet152"
    profile_steps: int = 5
    rate: str = "2gbit"  # of the link
    slow: float = 1.0  # times the time that computing takes
    linked: tuple = ()  # the figures that are measured on the link; none: all that the paper measured between hosts


MILLION = 10**6
FULL = Size(
    name="full", iters=10, bert_iters=3, group_iters=20, total=60 * MILLION,
    tensor_sizes=[10000, 20000, 50000, 100000, 200000, 500000, MILLION, 2 * MILLION, 5 * MILLION, 10 * MILLION, 20 * MILLION],
    buckets=[0, 5, 10, 25, 50, 100], ratios=[0.25, 0.5, 1, 2, 4], measured_worlds=[2, 4, 8], narrow=1,
    convergence={8: 6000, 256: 800}, rounds=6)
QUICK = Size(
    name="quick", iters=2, bert_iters=2, group_iters=8, total=60 * MILLION,
    tensor_sizes=[20000, 100000, 500000, 5 * MILLION, 20 * MILLION], buckets=[0, 5, 10, 25, 50, 100], ratios=[0.25, 1, 4],
    measured_worlds=[2, 4], narrow=4, convergence={8: 600, 256: 60}, rounds=2, profile_steps=2, rate="4gbit")
TINY = Size(
    name="tiny", iters=1, bert_iters=1, group_iters=1, total=60000, tensor_sizes=[1000, 60000], buckets=[0, 0.25], ratios=[1],
    measured_worlds=[2], narrow=1, convergence={8: 8, 256: 4}, rounds=1, resnet="8x4000", bert="12x4000",
    real=("small",), profile="small", profile_steps=1, slow=0.02, linked=("10",))


def binding_of(options):
    return str(pathlib.Path(options.build).resolve() / "bindings/python")


def prepare_environment(options):
    """Sets the environment of all programs: where the package ddp is, and connections without encryption, as the paper's and Gloo's."""
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, [binding_of(options), os.environ.get("PYTHONPATH", "")])),
                      PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", DDP_WIRE="plain")


def python_has(options, *modules):
    """None where the Python of --python has them all, else a line that says what is missing."""
    for module in modules:
        if not runs(options.python, f"import {module}"):
            return (f"the Python of --python has no {module}" if module != "ddp" else
                    "the package ddp cannot be imported from bindings/python of the build folder (target ddp_python_package)")
    return None


@functools.lru_cache(None)
def runs(python, code):
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([python, "-c", code], stderr=subprocess.DEVNULL, timeout=120, check=False).returncode == 0
    return False


def python_sees_gpu(options):
    return runs(options.python, "import torch; torch.zeros(1, device='cuda')")


class Bench:
    """Runs programs for one figure and keeps their rows."""

    def __init__(self, figure: Figure, options):
        self.figure, self.options, self.size = figure, options, options.size
        self.ddp_bench = str(pathlib.Path(options.build) / "tools/bench/ddp-bench")
        self.ddprun = str(pathlib.Path(options.build) / "tools/run/ddprun")

    def here(self, *command):
        """ddp-bench on this host."""
        return self.figure.keep(running.run(self.figure, [self.ddp_bench, *command, "--json"], self.options.timeout))

    def link(self):
        """Two hosts, or where they cannot be made this host alone. Then no claim about two hosts is judged."""
        if self.size.linked and self.figure.name not in self.size.linked:
            return contextlib.nullcontext(None)
        reason = namespaces.why_impossible(self.options.rate)
        if reason is None:
            return namespaces.Link(self.options.rate)
        self.figure.no_link = ("The claim is about two hosts with a link. Network namespaces cannot be made here, so all ranks are on one "
                               "host.")
        self.figure.leave_out(f"the link of {self.options.rate}: network namespaces cannot be made here ({reason}). All ranks are on one "
                              "host")
        return contextlib.nullcontext(None)

    def on(self, hosts, ranks, *command):
        """ddp-bench with so many ranks on each host; without hosts all on this one."""
        if hosts is None:
            return self.here(*command, "--world", 2 * ranks)
        words = list(map(str, [self.ddp_bench, *command, "--json"]))
        return self.figure.keep(running.rows_of(self.job(hosts, ranks, words)))

    def job(self, hosts, ranks, words):
        """The output of a program under ddprun, with so many ranks on each host; without hosts all on this one."""
        if hosts is None:
            return self.output_of([self.ddprun, "-n", str(2 * ranks), "--no-tag", *words])
        self.figure.command([self.ddprun, "--nnodes", 2, "-n", ranks, *words], "on each host: ")
        print(f"{self.figure.name}: {' '.join(words)}, 2 x {ranks} ranks", file=sys.stderr, flush=True)
        return namespaces.run_job(hosts, self.ddprun, ranks, words, self.options.timeout)

    def output_of(self, words):
        self.figure.command(words)
        print(f"{self.figure.name}: {' '.join(words)}", file=sys.stderr, flush=True)
        status, output = processes.run(words, self.options.timeout)
        if status != 0:
            raise RuntimeError(f"status {status} of {' '.join(words)}")
        return output

    def python(self, hosts, script, *arguments):
        """A script of this folder under ddprun, one rank on each of two hosts, or two on this one."""
        return self.figure.keep(running.rows_of(self.job(hosts, 1, self.words_of(script, arguments))))

    def python_alone(self, script, *arguments):
        return self.figure.keep(running.rows_of(self.output_of(self.words_of(script, arguments))))

    def torch_steps(self, hosts, rounds, *more):
        """A row of each real model that PyTorch computes."""
        if missing := python_has(self.options, "torch", "ddp"):
            self.figure.leave_out(f"real models in PyTorch: {missing}")
            return []
        return [row for model in self.size.real for row in self.python(
            hosts, "torch_step.py", "steps", "--model", model, "--backend", "tcp", "--rounds", rounds, *more)]

    def words_of(self, script, arguments):
        return list(map(str, [self.options.python, HERE / script, *arguments]))

    def replay(self, hosts, model, backend, compute, *more, ranks=1, bucket=25.0, iters=None):
        """A step of a model whose backward pass takes so long and leaves the processor free. bucket 0: each gradient alone."""
        cap, iters = max(bucket, 1e-6), iters or (self.size.bert_iters if model == self.size.bert else self.size.iters)
        row, = self.on(hosts, ranks, "replay", "--model", model, "--backend", backend, "--compute-ms", round(compute, 3), "--sleep",
                       "--bucket-mb", f"{cap:g}", "--first-bucket-mb", f"{min(1.0, cap):g}", "--iters", iters,
                       "--timeout", int(self.options.timeout), *more)
        return row

    def predict(self, model, world, network, compute, *more, ranks_a_host=8, buckets=(25.0,)):
        """Simulated steps: one row for each bucket size, then one for each smaller world."""
        return self.figure.keep(running.run(self.figure, [
            self.ddp_bench, "predict", "--model", model, "--world", world, "--ranks-a-host", ranks_a_host, "--network", network,
            "--compute-ms", compute, "--bucket-mb", ",".join(f"{max(bucket, 1e-6):g}" for bucket in buckets), "--first-bucket-mb",
            f"{max(min(*buckets, 1.0), 1e-6):g}", *more, "--json"], self.options.timeout), network=network, model=model)

    # MODELS

    @contextlib.contextmanager
    def models(self):
        """(name, what --model takes) of ResNet and BERT, in a folder that lasts as long."""
        if self.size.narrow == 1:
            yield [(name_of(self.size.resnet), self.size.resnet), (name_of(self.size.bert), self.size.bert)]
            return
        with tempfile.TemporaryDirectory(prefix="ddp-evaluation-") as folder:
            name = f"bert-large-by-{self.size.narrow}"
            path = pathlib.Path(folder, name)
            path.write_text(narrowed(self.lines_of(self.size.bert), self.size.narrow), encoding="utf-8")
            yield [("ResNet-50", self.size.resnet), (f"BERT-large, layers 1/{self.size.narrow} as wide", str(path))]

    def lines_of(self, model):
        return subprocess.run([self.ddp_bench, "models", "--model", model], stdout=subprocess.PIPE, text=True, check=True,
                              timeout=60).stdout

    def elements_of(self, model):
        """{parameter: its elements}"""
        words = (line.split("@")[0].split() for line in self.lines_of(model).splitlines())
        return {name: math.prod(map(int, extents)) for name, *extents in words}

    def wire_ms(self, model):
        """The time that the gradients of a model need on the link, if nothing else takes time."""
        return 1e3 * 32 * sum(self.elements_of(model).values()) / (namespaces.PAYLOAD * bits_a_second(self.options.rate))

    def network(self):
        """The link as the simulator takes it."""
        return f"1gbit:host-gb-s={namespaces.PAYLOAD * bits_a_second(self.options.rate) / 8e9:g}"


def name_of(model):
    return {"resnet50": "ResNet-50", "bert-large": "BERT-large"}.get(model, model)


def bits_a_second(rate):
    found = RATE.fullmatch(rate)
    if not found:
        raise SystemExit(f"--rate: '{rate}' is not a number with mbit or gbit after it")
    return float(found[1]) * {"mbit": 1e6, "gbit": 1e9}[found[2]]


def narrowed(text, factor):
    """A model with hidden sizes divided by a factor: the same number of gradients, and fewer bytes."""
    lines = []
    for line in text.splitlines():
        words, at, uses = line.partition("@")
        name, *extents = words.split()
        lines.append(" ".join([name, *(str(int(extent) // factor) if extent in ("1024", "4096") else extent for extent in extents)])
                     + (f" @{uses}" if at else ""))
    return "\n".join(lines) + "\n"
