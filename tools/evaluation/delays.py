"""Figure 2: what communication costs by size of tensor, and when a backward pass has which gradients."""
import json
import pathlib
import tempfile

import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, near

BACKENDS = ("shm", "tcp", "gloo")
PEAK = 500000  # parameters in a tensor, from which Gloo is not faster
SATURATED = 1.1  # times the best
SHAPE_ONLY = 16  # times the paper's size or 1/16 of it
ORDER = 3  # a factor within which two times are of one order of magnitude
ON_GPU_MODEL, ON_GPU_MS = "ResNet-152", 250  # the paper's backward pass
GPU_BATCH = 32  # the paper names none


def measure(options):
    figure = Figure("2", "Communication and computation delay")
    bench = measuring.Bench(figure, options)
    figure.open_with(f"Panels a and b: {options.size.total:,} parameters are reduced between 2 ranks of this host, cut into tensors of one "
                     "size. All allreduces start at once, and a time ends when the last one has ended. shm is libddp's shared memory, "
                     "tcp its own TCP transport over the loopback interface, gloo is Gloo over the same.")
    times = tensor_sizes(bench)
    judge_sizes(figure, times, bench.size)
    judge_gpu(figure, gpu_profile(bench))
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
                      "NCCL needs two GPUs.")
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

def gpu_profile(bench):
    """The row of a pass on a GPU, of this machine or of the one where --gpu-profile comes from; None where there is neither."""
    if bench.options.gpu_profile:
        row, = bench.figure.keep([read_profile(bench.options.gpu_profile)])
        where = "of another machine"
    elif measuring.python_sees_gpu(bench.options):
        row, = bench.python_alone("torch_step.py", "ready", "--model", bench.size.profile, "--rounds", bench.size.profile_steps,
                                  "--device", "cuda", "--batch", GPU_BATCH)
        where = "of this machine"
    else:
        return None
    bench.figure.open_with(f"Panel c: PyTorch {row['torch']} computes the backward pass of {row['model']} on one {row['device']} {where}, "
                           f"in FP32, with a batch of {row['batch']}.")
    return row


def read_profile(path):
    """A row that `torch_step.py ready` printed for the paper's model. Throws ValueError."""
    row = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(row, dict) or row.get("name") != "torch-ready" or row.get("device") in (None, "cpu"):
        raise ValueError("not a row that `torch_step.py ready --device cuda` printed")
    if row["model"] != ON_GPU_MODEL:
        raise ValueError(f"a row of {row['model']}; the paper's figure is about {ON_GPU_MODEL}")
    return row


def judge_gpu(figure, row):
    takes = "Fig. 2 (c): on a GPU the backward pass of a ResNet-152 takes about 250 ms."
    if row:
        figure.panels.append(profile_panel("c", f"one {row['device']}", row["model"], row["ready_ms"], row["elements"]))
        verdict, rule = near(ON_GPU_MS, row["ready_ms"][-1])
        figure.claim(takes, f"{row['ready_ms'][-1]:.0f} ms. After half of the pass {half_way(row['ready_ms'], row['elements']):.0f} % of "
                            "the gradients' bytes are ready.", verdict, rule, "Another GPU, and the paper does not name its batch.")
    else:
        figure.cannot_run(takes, "The Python of --python sees no GPU; see --gpu-profile.")
    figure.cannot_run("Fig. 2 (c): NCCL on NVLink takes a time of the same order of magnitude for as many parameters.",
                      "NCCL on NVLink needs two GPUs.")


def profile_panel(letter, where, name, ready, elements):
    done, points = 0, [(0, 0)]
    for moment, count in zip(ready, elements):
        done += count
        points.append((1e-6 * done, 1e-3 * moment))
    return Panel(f"({letter}) backward pass of {name} on {where}", "million parameters with a ready gradient", "seconds since it began",
                 [Series(name, points, style="steps")], scale="linear")


def half_way(ready, elements):
    """Per cent of the elements whose gradients are ready after half of the pass."""
    return 100 * sum(count for moment, count in zip(ready, elements) if moment <= ready[-1] / 2) / sum(elements)


def profile(bench):
    """Milliseconds since the backward pass began at which each gradient was ready, the elements of each, and the model's name."""
    missing = measuring.python_has(bench.options, "torch")
    if missing is None:
        row, = bench.python_alone("torch_step.py", "ready", "--model", bench.size.profile, "--rounds", bench.size.profile_steps)
        bench.figure.open_with(f"Panel d: PyTorch {row['torch']} computes the backward pass of {row['model']} ({sum(row['elements']):,} "
                               "parameters, batch of 1) on one core. A hook notes when each gradient is complete.")
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
    figure.panels.append(profile_panel("d", "one core", name, ready, elements))
    gloo = min(row["median_ms"] for _, row in times["gloo"]) * sum(elements) / size.total  # of as many parameters
    ratio = ready[-1] / gloo
    verdict = REPRODUCED if 1 / ORDER <= ratio <= ORDER else IN_SHAPE if 1 / ORDER**2 <= ratio <= ORDER**2 else NOT
    figure.claim("Fig. 2 (d): on a CPU the backward pass and Gloo's time are of the same order of magnitude, too.",
                 f"The backward pass takes {ready[-1]:.0f} ms, and Gloo needs {gloo:.0f} ms for as many parameters: {ratio:.2f} times. "
                 f"After half of the pass {half_way(ready, elements):.0f} % of the gradients' bytes are ready.", verdict,
                 f"their ratio within a factor of {ORDER}: reproduced; of {ORDER**2}: in shape",
                 "The paper computes with all cores of a server and an unknown batch; this pass has one core and one image.")
