"""The section of a GPU: from the logs of tools/test-gpu, which ran on a machine that has one."""
import re

import running

MODELS = ("resnet50", "bert-large")
SIZES = {"1": "1 MiB", "16": "16 MiB", "128": "128 MiB"}
PACKING = {"pack and divide", "pack", "pack to f16", "unpack", "unpack from f16"}


class Logs:
    """A folder of logs, of one or more runs of tools/test-gpu."""

    def __init__(self, folder):
        if not folder:
            raise running.Missing("--gpu-logs: a folder with the logs of tools/test-gpu is needed")
        self.folder = folder

    def text(self, step):
        path = self.folder / f"{step}.log"
        if not path.exists():
            raise running.Missing(f"{path}: that step of tools/test-gpu has left no log")
        return path.read_text(encoding="utf-8")

    def fact(self, name):
        """The fact as all runs here have written it, which must have been of one commit."""
        found = re.findall(rf"^{name} +(.*)$", (self.folder / "summary.txt").read_text(encoding="utf-8"), re.MULTILINE)
        if name == "commit" and len(set(found)) > 1:
            raise running.Missing(f"{self.folder} has logs of several commits: {', '.join(sorted(set(found)))}")
        return found[-1] if found else "unknown"

    def rows(self, step):
        """The table that ddp-bench has printed: columns are two blanks apart, and what is in them has single ones."""
        lines = self.text(step).splitlines()
        head = next((i for i, line in enumerate(lines) if " median_ms " in line), None)
        if head is None:
            raise running.Missing(f"{self.folder}/{step}.log has no table of ddp-bench")
        names = lines[head].split()
        return [dict(zip(names, re.split(r"  +", line.strip()))) for line in lines[head + 1:] if line.strip()]

    def torch(self, step):
        """The output of torch_ddp.py."""
        return {name: float(value) for name, value in re.findall(r"(\w+_ms) ([\d.]+)", self.text(step))}


def gpu(section, options):
    logs = Logs(options.gpu_logs)
    section.measured = f"{logs.fact('date')} at commit {logs.fact('commit')}"
    section.open_with(f"One GPU: {logs.fact('chip').split(',')[0]}, driver {logs.fact('chip').split(',')[1].strip()}, "
                      f"{logs.fact('cpu')}. docs/gpu.md says what else ran there.")
    transfers(section, logs)
    steps(section, logs)
    overlap(section, logs)
    allreduces(section, logs)
    powersgd(section, logs)
    section.command(["tools/test-gpu"])


def transfers(section, logs):
    by_model = {model: {row["what"]: row for row in logs.rows(f"transfer-{model}")} for model in MODELS}
    least = min((float(row["of_copy"]), f"{what}, {model}") for model, rows in by_model.items()
                for what, row in rows.items() if what in PACKING)
    section.judge("pack and unpack gradients at 85 % of the speed of the GPU's own copies", f"at least {100 * least[0]:.0f} % ({least[1]})",
                  least[0] >= 0.85)
    first, second = (by_model[model] for model in MODELS)
    section.say("What kernels do to the gradients of a model, in buckets of 25 MiB. Speed is the bytes that the work must read and write, "
                "divided by its time, and compared with the speed of a copy on the GPU (cudaMemcpyAsync). 1-bit, top-k and PowerSGD read "
                "an error with each gradient, and keep it. Blocks of "
                f"{'1-bit and quantize' if 'quantize' in first else '1-bit'} have 512 elements, top-k sends 1 %, PowerSGD (P = M Q, "
                "Q = M^T P, M = P Q^T) has rank 4:")
    section.table(["", *(f"{model}, ms" for model in MODELS), *(f"{model}, of a copy" for model in MODELS)],
                  [[what, row["median_ms"], second[what]["median_ms"], *(f"{100 * float(r['of_copy']):.0f} %" for r in (row, second[what]))]
                   for what, row in first.items()])


def steps(section, logs):
    rows, shares = [], []
    for model in MODELS:
        ours, theirs = logs.rows(f"replay-nccl-{model}")[0], logs.torch(f"torch-view-{model}")
        shares.append(float(ours["cpu_ms"]) / theirs["cpu_ms"])
        rows.append([model, ours["cpu_ms"], theirs["cpu_ms"], f"{100 * shares[-1]:.0f} %", ours["median_ms"], ours["local_ms"],
                     theirs["step_ms"], theirs["local_ms"]])
    section.judge("at world size 1 a step takes at most half of the processor's time that PyTorch's DistributedDataParallel takes",
                  f"at most {100 * max(shares):.0f} %", max(shares) <= 0.5)
    section.say("A step at world size 1 over NCCL, gradients in their buckets, beside PyTorch's. CPU: of the process until everything is "
                "enqueued, less that of the backward pass alone. PyTorch's backward pass runs in Python: compare each step with the local "
                "loop of the same side.")
    section.table(["Model", "CPU, libddp", "CPU, PyTorch", "Share", "Step, libddp", "Local loop", "Step, PyTorch", "Local loop, PyTorch"], rows)


def overlap(section, logs):
    row = logs.rows("trace-shm")[0]
    share = float(row["overlap"])
    section.note("communication that runs while a backward pass runs", f"{100 * share:.0f} % (resnet50, {row['world']} processes over shm on this "
                 "GPU)")


def allreduces(section, logs):
    rows = []
    for size, name in SIZES.items():
        over = [logs.rows(f"allreduce-{backend}-{size}")[0] for backend in ("shm", "nccl")]
        rows.append([name, *(f"{float(row['median_ms']) - float(row['local_ms']):.3g}" for row in over)])
    section.say("An allreduce between two processes on this GPU: a step with one bucket, less the same step without communication. The "
                "processes take turns on the GPU, so that NCCL's kernels, which wait for each other, wait for turns: this says nothing about "
                "NCCL between two GPUs.")
    section.table(["Bytes", "shm", "nccl"], rows)


def powersgd(section, logs):
    rows = []
    for model in MODELS:
        ours, theirs = logs.rows(f"replay-powersgd-{model}")[0], logs.torch(f"torch-view-{model}")
        rows.append([model, ours["hook_ms"], f"{theirs['hook_ms']:.4g}", f"{theirs['hook_ms'] / float(ours['hook_ms']):.3g}",
                     ours["hook_cpu_ms"], f"{theirs['hook_cpu_ms']:.4g}"])
    section.say("A step with PowerSGD of rank 4 at world size 1, beside PyTorch's hook:")
    section.table(["Model", "Step, libddp", "Step, PyTorch", "Ratio", "CPU, libddp", "CPU, PyTorch"], rows)
