"""Figures 10 and 11: synchronising gradients in one of 1, 2, 4 or 8 steps, its time and its price."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, SIMULATED, Figure, Panel, Series, at_least, at_most, near, percent, saving
from scaling import NETWORKS, WORLD, backward_ms

EVERY = (1, 2, 4, 8)
PAPER = {"NCCL": 0.38, "Gloo": 0.57}
FORWARD = 0.5  # of a backward pass, where the model is only replayed
BATCHES = ((8, 0.02), (256, 0.06))  # of a rank, and its learning rate, as in the paper
DOTS, POINTS = 80, 200  # of a curve that are drawn
NEGLIGIBLE, SMALL, HURTS = 0.05, 0.1, 0.2  # above the final loss with a sync each time, as a share of it


def measure(options):
    figure = Figure("10", "Skipping synchronisation")
    bench = measuring.Bench(figure, options)
    with bench.link() as hosts, bench.models() as models:
        figure.open_with(f"Two hosts with a link of {options.rate}, one rank on each: the mean time of a step where gradients are averaged "
                         "in one of N steps (`ddp_set_sync`). The backward pass sleeps half as long as the wire needs for the gradients, "
                         "and a forward pass of half of that is added. PyTorch's steps are without the optimizer, which runs once in N "
                         "steps. The simulated panels are those of figure 9 (FP32): N - 1 steps of one rank and one of all.")
        measured = {}
        panel = Panel(f"2 ranks, {options.rate}", "N, for a sync in one of N steps", "times a step that syncs each time")
        for backend_name, backend in measuring.LINKED.items():
            name, model = models[0]
            row = bench.replay(hosts, model, backend, bench.size.slow * bench.wire_ms(model) / 2, "--sync-every", ",".join(map(str, EVERY)))
            forward = FORWARD * row["local_ms"]
            times = {every: forward + row[f"sync_every_{every}_ms"] for every in EVERY}
            measured[f"{name}, {backend_name}"] = times
        measured.update(real_models(bench, hosts))
    for name, times in measured.items():
        panel.series.append(Series(name, [(every, time / times[1]) for every, time in times.items()]))
    figure.panels.append(panel)
    simulated = simulate(bench)
    judge(figure, measured, simulated)
    return figure


def real_models(bench, hosts):
    rows = bench.torch_steps(hosts, max(1, bench.size.rounds // 2), "--sync-every", ",".join(map(str, EVERY)))
    return {f"{row['model']}, PyTorch": {every: row[f"sync_every_{every}_ms"] for every in EVERY} for row in rows}


def simulate(bench):
    """{backend: {N: {world: milliseconds}}} of ResNet."""
    found = {}
    for backend, network in NETWORKS.items():
        rows = bench.predict(bench.size.resnet, WORLD, network, backward_ms(bench.size.resnet))
        rows.sort(key=lambda row: row["world"])
        alone = rows[0]["step_ms"]
        found[backend] = {every: {row["world"]: (row["step_ms"] + (every - 1) * alone) / every for row in rows} for every in EVERY}
        bench.figure.panels.append(Panel(f"ResNet-50, network for {backend}", "ranks", "seconds", [
            Series(f"one of {every}", [(world, 1e-3 * time) for world, time in times.items()], simulated=True)
            for every, times in found[backend].items()], scale="log"))
    return found


def judge(figure, measured, simulated):
    for backend, paper in PAPER.items():
        times = simulated[backend]
        ours = saving(times[1][WORLD], times[8][WORLD])
        figure.claim(f"ResNet-50 on {backend}: a sync in one of 8 iterations speeds up 256 GPUs by {percent(paper)}.",
                     f"{percent(ours)}.", *near(paper, ours),
                     "The saving follows from what a synced step costs beside a local one: figure 9 says why the simulator's cost is "
                     "lower than the paper's.", SIMULATED)
    least = min((saving(times[1], times[8]), name) for name, times in measured.items())
    falls = all(times[b] <= 1.03 * times[a] for times in measured.values() for a, b in zip(EVERY, EVERY[1:]))
    figure.claim("Skipping considerably reduces the amortized time of an iteration.",
                 "Saved by one sync in 8, measured: " + ", ".join(
                     f"{name} {percent(saving(times[1], times[8]))}" for name, times in measured.items()) + ".",
                 REPRODUCED if least[0] >= 0.15 and falls else IN_SHAPE if least[0] > 0 else NOT,
                 "at least 15 % everywhere, and no larger N is slower: reproduced; something everywhere: in shape",
                 "How much depends on how much communication the backward pass does not hide. In PyTorch communication also takes "
                 "processor time from computing.")
    figure.cannot_run("With NCCL there is a sudden jump from 128 to 256 GPUs.",
                      "The paper suspects slow or congested links, of which a simulated network has none.", SIMULATED)


# CONVERGENCE

def smoothed(values, width):
    """Means over about so many values, which leave peaks where they are: exponential ones, forwards and then backwards."""
    share = 2 / (width + 1)
    for _ in range(2):
        mean, result = sum(values[:width]) / len(values[:width]), []
        for value in values:
            mean += share * (value - mean)
            result.append(mean)
        values = result[::-1]
    return values


def measure_convergence(options):
    figure = Figure("11", "Convergence with skipped synchronisation")
    bench = measuring.Bench(figure, options)
    if missing := measuring.python_has(options, "ddp", "numpy"):
        figure.leave_out(f"training: {missing}")
        figure.cannot_run("Fig. 11 (a): with batch 8, no_sync leads to negligible exacerbation of the convergence speed.", missing)
        figure.cannot_run("Fig. 11 (b): with batch 256, no_sync hurts the final training loss.", missing)
        return figure
    finals = {}
    starts = {}
    for letter, (batch, rate) in zip("ab", BATCHES):
        panel = Panel(f"({letter}) batch {batch}, learning rate {rate:g}", "iterations", "training loss", scale="linear")
        for row in bench.python(None, "train_digits.py", "--batch", batch, "--lr", rate, "--sync-every", ",".join(map(str, EVERY)),
                                "--steps", options.size.convergence[batch]):
            losses, every = row["losses"], row["sync_every"]
            smooth = smoothed(losses, max(2, len(losses) // 15))
            finals[batch, every], starts[batch, every] = smooth[-1], losses[0]
            curve = [*list(enumerate(smooth))[:-1:max(1, len(smooth) // POINTS)], (len(smooth) - 1, smooth[-1])]
            panel.series += [Series(f"one of {every}", curve),
                             Series("", list(enumerate(losses))[::max(1, len(losses) // DOTS)], style="dots")]
        figure.panels.append(panel)
    figure.open_with(f"Two ranks of this host train {row['model']} on 8,000 digits of MNIST (`examples/data/mnist`), each with the batch "
                     "and learning rate of the paper. An optimizer step follows each synchronisation, with the sum of the gradients since "
                     "the one before. Dots are raw losses, lines are smoothed. The paper does not print how many iterations it ran; here "
                     f"there are {' and '.join(str(options.size.convergence[batch]) for batch, _ in BATCHES)}.")
    judge_convergence(figure, finals, starts[BATCHES[0][0], 1])
    return figure


def judge_convergence(figure, finals, start):
    (small, _), (large, _) = BATCHES
    worse, hurt = (max(finals[batch, every] for every in EVERY) / finals[batch, 1] - 1 for batch in (small, large))
    compared = "the largest final loss, above that with a sync each time as a share of it,"

    def told(batch):
        return ", ".join(f"{finals[batch, every]:.3f} (one of {every})" for every in EVERY)

    figure.claim("Fig. 11 (a): with batch 8 and learning rate 0.02, no_sync leads to negligible exacerbation of the convergence speed.",
                 f"Final smoothed losses: {told(small)}; at first {start:.2f}.",
                 *at_most(worse, NEGLIGIBLE, SMALL, compared),
                 "With one sync in 8 there are 8 times fewer optimizer steps, each with 8 times the gradient.")
    figure.claim("Fig. 11 (b): with batch 256 and learning rate 0.06, no_sync hurts the final training loss.",
                 f"Final smoothed losses: {told(large)}.", *at_least(hurt, HURTS, SMALL, compared),
                 "As the paper says: more gradients add up before a step, which implicitly needs a smaller learning rate.")
