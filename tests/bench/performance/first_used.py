"""First-used layers first: predicted for models and networks, and measured between two hosts."""
import contextlib
import os
import pathlib
import sys
import tempfile

import running
from running import ms

import namespaces
import processes
from passes import SETTINGS, passes_ms

NETWORKS = ["1gbit", "10gbit", "25gbit", "100gbit"]
WORLDS = [8, 64, 256]
BUCKETS, PIECES = "2,25", "0,4"
ENOUGH = 0.05

# Measured: sleeping passes, and a link so slow that this machine's processors do not matter.
SLEEPING, BACKWARD, FORWARD, BUCKET_MB, STEPS = "30x200000", 700, 350, 1.5, 8
RATE, GB_S, LATENCY_US = "200mbit", round(namespaces.PAYLOAD * 0.2 / 8, 5), 60
WITHIN = 0.10


def fastest(rows, world, **wanted):
    """The shortest step of those rows."""
    return min(row["step_ms"] for row in rows if row["world"] == world and all(row[key] == value for key, value in wanted.items()))


class Cell:
    """A setting on one network with so many ranks: steps, and how much shorter others are than today's default."""

    def __init__(self, section, options, setting, network, world):
        model, *_, optimizer = setting
        forward, backward = passes_ms(setting)
        command = [options.bench, "predict", "--model", model, "--compute-ms", round(backward, 2), "--forward-ms", round(forward, 2),
                   "--optimizer-ms", optimizer, "--network", network, "--world", world, "--bucket-mb", BUCKETS, "--json"]

        def predict(*more):
            return running.run(section, [*command, *more], options.timeout)

        rows = predict("--schedule", "finalize,wait-param,first-used,decoupled", "--piece-mb", PIECES)
        halved = predict("--schedule", "finalize,first-used", "--hook", "fp16")
        agreed = predict("--schedule", "first-used", "--piece-mb", 4, "--agreement", "piece")
        self.finalize = fastest(rows, world, schedule="finalize")
        self.wait_param = self.gain(fastest(rows, world, schedule="wait-param"))
        self.whole = self.gain(fastest(rows, world, schedule="first-used", piece_mb=0))
        self.pieces = self.gain(fastest(rows, world, schedule="first-used", piece_mb=4))
        self.agreed = self.gain(fastest(agreed, world, schedule="first-used"))
        self.decoupled = self.gain(fastest(rows, world, schedule="decoupled"))
        self.fp16 = self.gain(fastest(halved, world, schedule="finalize"))
        self.both = self.gain(fastest(halved, world, schedule="first-used"))

    def gain(self, step):
        return 1 - step / self.finalize


def cells_text(cells, what):
    return " / ".join(str(round(100 * getattr(cell, what))) for cell in cells)


def predicted(section, options):
    lines, everything, before = [], [], len(section.commands)
    for setting in SETTINGS[:1] if options.quick else SETTINGS:
        for network in NETWORKS:
            cells = [Cell(section, options, setting, network, world) for world in WORLDS]
            everything += cells
            model, gpu, rate, batch, _ = setting
            lines.append([model, gpu, ms(1e3 * batch / rate), network, " / ".join(f"{cell.finalize:.0f}" for cell in cells),
                          *(cells_text(cells, what) for what in ("wait_param", "whole", "pieces", "agreed", "decoupled", "fp16", "both"))])
    section.commands = section.commands[:before + 3]  # the others differ in their numbers
    section.table(["Model", "GPU", "Alone, ms", "Network", "finalize, ms", "wait-param, %", "first-used, %", "pieces, %", "agreed, %",
                   "decoupled, %", "fp16, %", "fp16 and first-used, %"], lines)

    def many(what, over=None):
        """Gains are shares of finalize's step; here they become shares of the other one's step."""
        better = [1 - (1 - getattr(cell, what)) / (1 - getattr(cell, over) if over else 1) for cell in everything]
        return f"{sum(gain >= ENOUGH for gain in better)} of {len(better)}, at most {100 * max(better):.0f} %"

    for text, names in (("wait-param against finalize", ("wait_param",)), ("first-used in whole buckets against wait-param", ("whole", "wait_param")),
                        ("pieces of 4 MiB against whole buckets", ("pieces", "whole")), ("decoupled against whole buckets", ("decoupled", "whole")),
                        ("the hook fp16 against finalize", ("fp16",)), ("first-used and fp16 against fp16", ("both", "fp16"))):
        section.note(f"predicted settings in which a step is at least {100 * ENOUGH:.0f} % shorter: {text}", many(*names))


def python_path(options):
    return str(pathlib.Path(options.bench).resolve().parents[2] / "bindings/python")


@contextlib.contextmanager
def importing(path):
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path if before is None else f"{path}:{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def measured(section, options):
    """Steps of two ranks, with the default, layer by layer, and with the plan that predict writes."""
    trainer = pathlib.Path(__file__).with_name("layer_by_layer.py")
    network = f"1gbit:host-gb-s={GB_S}:latency-us={LATENCY_US}"
    said, found = {}, {}
    with namespaces.Link(RATE) as link, tempfile.NamedTemporaryFile("w", prefix="ddp-plan-") as plan, importing(python_path(options)):
        for schedule in "finalize", "wait-param", "first-used":
            rows = running.run(section, [
                options.bench, "predict", "--model", SLEEPING, "--compute-ms", BACKWARD, "--forward-ms", FORWARD, "--world", 2, "--network",
                network, "--bucket-mb", BUCKET_MB, "--first-bucket-mb", BUCKET_MB, "--schedule", schedule, "--save-plan", plan.name, "--json"],
                options.timeout)
            section.commands[-1] = section.commands[-1].replace(plan.name, "plan.json")
            said[schedule] = rows[0]["step_ms"]
            words = [options.python, trainer, SLEEPING, BACKWARD, FORWARD, 3 if options.quick else STEPS, int(BUCKET_MB * (1 << 20)),
                     *(["wait-param", plan.name] if schedule == "first-used" else [schedule])]
            found[schedule] = float(namespaces.run_job(link, options.ddprun, 1, list(map(str, words)), options.timeout))
            print(f"{section.name}: {schedule}: {found[schedule]:.0f} ms, predicted {said[schedule]:.0f}", file=sys.stderr, flush=True)
    section.table(["Two ranks, 200 Mbit/s", "Measured, ms", "Predicted, ms", "Error"],
                  [[name, ms(found[name]), ms(said[name]), f"{100 * (said[name] / found[name] - 1):+.0f} %"] for name in found])
    worst = max(abs(said[name] / found[name] - 1) for name in found)
    section.judge(f"predicted within {100 * WITHIN:.0f} %", f"at most {100 * worst:.1f} %", worst <= WITHIN)
    gain = 1 - found["first-used"] / found["wait-param"]
    section.judge(f"a plan in the order of first use shortens a step by at least {100 * ENOUGH:.0f} %", f"{100 * gain:.0f} %", gain >= ENOUGH)


def first_used(section, options):
    section.open_with(
        "The next forward pass may begin before all gradients have come, if those of its first layers come first: "
        "[prediction.md](prediction.md#first-used-layers-first) says how, and for whom. First a measurement: two ranks whose passes sleep, on a "
        "link of 200 Mbit/s between two hosts, with the plan that `ddp-bench predict --save-plan` wrote. Then predictions, one rank a host. Of "
        "three figures with slashes the first is for 8 ranks, the second for 64, the third for 256. The percentages say how much shorter a step "
        "is than with `ddp_finalize`: with `ddp_wait_param`; with a plan in the order of first use (in whole buckets, in pieces of 4 MiB, in "
        "pieces on which ranks agree each time); with a reduce_scatter and an allgather of each bucket; with the hook fp16. Each figure is "
        "that of the better of buckets of 2 and 25 MiB. "
        "The time of a rank alone is that of published throughputs: TensorFlow's benchmarks of 2017 (K80, P100: 64 images), NVIDIA's "
        "DeepLearningExamples (V100: 64 images; BERT with 384 tokens, 7 or 14 sequences). A third of it is the forward pass. An optimizer "
        "takes the time in which the GPU's memory moves 20 (SGD) or 28 bytes (Adam) for each parameter.")
    reason = namespaces.why_impossible(RATE)
    works = processes.run([options.python, "-c", f"import sys; sys.path.insert(0, {python_path(options)!r}); import ddp, numpy"], 60)[0] == 0
    if reason or not works:
        section.judge("measured between two hosts", reason or f"{options.python} has no NumPy, or this build no Python package", None)
    else:
        measured(section, options)
    predicted(section, options)
