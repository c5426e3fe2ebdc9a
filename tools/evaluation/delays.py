"""Figure 2: what communication costs by size of tensor, and when a backward pass has which gradients."""
import json
import pathlib
import tempfile

import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least

BACKENDS = ("shm", "tcp", "gloo")
PEAK = 500000  # parameters in a tensor, from which Gloo is not faster
SATURATED = 1.1  # times the best
SHAPE_ONLY = 16  # times the paper's size or 1/16 of it
ORDER = 3  # a factor within which two times are of one order of magnitude


def measure(options):
    figure = Figure("2", "Communication and computation delay")
    bench = measuring.Bench(figure, options)
    figure.open_with(f"Panels a and b: {options.size.total:,} parameters are reduced between 2 ranks of this host, cut into tensors of one "
                     "size. All allreduces start at once, and a time ends when the last one has ended. shm is libddp's shared memory, "
                     "tcp its own TCP transport over the loopback interface, gloo is Gloo over the same.")
    times = tensor_sizes(bench)
    judge_sizes(figure, times, bench.size)
    ready, elements, name = profile(bench)
    judge_profile(figure, times, ready, elements, name, bench.size)
    return figure


def tensor_sizes(bench):
    """{backend: [(parameters in a tensor, row)]}"""
    times = {backend: [] for backend in BACKENDS}
    for size in bench.size.tensor_sizes:
        for row in bench.here("allreduce", "--world", 2, "--backend", ",".join(BACKENDS), "--bytes", 4 * bench.size.total, "--pieces",
                              bench.size.total // size, "--iters", bench.size.iters):
            times[row["backend"]].append((size, row))
    bench.figure.panels.append(Panel(
        "(a, b) all-reduce of all parameters, 2 ranks of this host", "parameters in each tensor", "seconds",
        [Series(backend, [(size, 1e-3 * row["median_ms"], 1e-3 * row["p10_ms"], 1e-3 * row["p90_ms"]) for size, row in points])
         for backend, points in times.items()], scale="log", y_scale="log"))
    return times


def judge_sizes(figure, times, size):
    figure.cannot_run("Fig. 2 (a): NCCL on NVLink shows no clear saturation even with 20M parameters in a tensor.",
                      "NCCL needs two GPUs. This command measures on processors only.")
    best = {backend: min(row["median_ms"] for _, row in points) for backend, points in times.items()}
    gain = {backend: points[0][1]["median_ms"] / best[backend] for backend, points in times.items()}
    verdict, rule = at_least(gain["gloo"], 1.5, 1.05, "time of the smallest tensors over the best time, with Gloo,")
    figure.claim("Fig. 2 (b): the total time clearly decreases with larger tensors.",
                 ", ".join(f"{backend}: tensors of {size.tensor_sizes[0]:,} parameters take {ratio:.2f} times the best time"
                           for backend, ratio in gain.items()) + ".",
                 verdict, rule, "Each allreduce has a cost of its own: messages, and threads that must wake up.")
    peak = {backend: next(count for count, row in points if row["median_ms"] <= SATURATED * best[backend])
            for backend, points in times.items()}
    away = max(peak["gloo"] / PEAK, PEAK / peak["gloo"])
    figure.claim("Fig. 2 (b): Gloo reaches its best speed at around 500K parameters in a tensor.",
                 ", ".join(f"{backend}: {count:,}" for backend, count in peak.items()) +
                 f" parameters (the first size within {SATURATED:g} times the best time).",
                 REPRODUCED if away <= 2 else IN_SHAPE if away <= SHAPE_ONLY else NOT,
                 f"with Gloo within a factor of 2 of 500K: reproduced; of {SHAPE_ONLY}: in shape",
                 "The size depends on what a message costs and on how fast bytes move. Both are other numbers on another machine.")


# GRADIENTS THAT BECOME READY

def profile(bench):
    """Milliseconds since the backward pass began at which each gradient was ready, the elements of each, and the model's name."""
    missing = measuring.python_has(bench.options, "torch")
    if missing is None:
        row, = bench.python_alone("torch_step.py", "ready", "--model", bench.size.profile, "--rounds", bench.size.profile_steps)
        bench.figure.open_with(f"Panel d: PyTorch {row['torch']} computes the backward pass of {row['model']} ({sum(row['elements']):,} "
                               "parameters, batch of 1) on one core. A hook notes when each gradient is complete. There is no GPU here "
                               "for panel c.")
        return row["ready_ms"], row["elements"], row["model"]
    bench.figure.leave_out(f"the backward pass of a real model: {missing}")
    model = bench.size.resnet
    bench.figure.open_with(f"Panel d: `ddp-bench replay --trace` plays the backward pass of {model} on one core. The time of each gradient "
                           "is its layer's share of the multiply-adds.")
    elements, ready = bench.elements_of(model), {}
    with tempfile.NamedTemporaryFile(prefix="ddp-trace-", suffix=".json") as trace:
        bench.here("replay", "--world", 1, "--model", model, "--compute-ms", 400 * bench.size.slow, "--iters", 1, "--trace", trace.name)
        events = json.loads(pathlib.Path(trace.name).read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event.get("cat") == "backward" and event["name"].startswith("step 2, ")]
    begin = min(span["ts"] for span in spans)
    for span in spans:
        ready[span["name"].removeprefix("step 2, ")] = 1e-3 * (span["ts"] + span["dur"] - begin)
    order = sorted(ready, key=ready.get)
    return [ready[name] for name in order], [elements[name] for name in order], model


def judge_profile(figure, times, ready, elements, name, size):
    done, points = 0, [(0, 0)]
    for moment, count in zip(ready, elements):
        done += count
        points.append((1e-6 * done, 1e-3 * moment))
    figure.panels.append(Panel(f"(d) backward pass of {name} on one core", "million parameters with a ready gradient",
                               "seconds since it began", [Series(name, points, style="steps")], scale="linear"))
    figure.cannot_run("Fig. 2 (c): on a GPU the backward pass of a ResNet-152 takes about 250 ms, of the same order of magnitude as NCCL "
                      "on NVLink.",
                      "The profile needs a GPU.")
    gloo = min(row["median_ms"] for _, row in times["gloo"]) * sum(elements) / size.total  # of as many parameters
    ratio = ready[-1] / gloo
    verdict = REPRODUCED if 1 / ORDER <= ratio <= ORDER else IN_SHAPE if 1 / ORDER**2 <= ratio <= ORDER**2 else NOT
    half = sum(count for moment, count in zip(ready, elements) if moment <= ready[-1] / 2) / sum(elements)
    figure.claim("Fig. 2 (d): on a CPU the backward pass and Gloo's time are of the same order of magnitude, too.",
                 f"The backward pass takes {ready[-1]:.0f} ms, and Gloo needs {gloo:.0f} ms for as many parameters: {ratio:.2f} times. "
                 "After half of "
                 f"the pass {100 * half:.0f} % of the gradients' bytes are ready.", verdict,
                 f"their ratio within a factor of {ORDER}: reproduced; of {ORDER**2}: in shape",
                 "The paper computes with all cores of a server and an unknown batch; this pass has one core and one image.")
