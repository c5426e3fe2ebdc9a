"""Figure 9: the time of a step by world size, up to 256 ranks."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, SIMULATED, Figure, Panel, Series, at_least, near

import passes  # tools/bench/runs; figure.py has put it on the path

NETWORKS = {"NCCL": "100gbit", "Gloo": "10gbit"}  # what the simulator takes for the paper's
GPU, FASTER = "V100, FP32", "V100, mixed"  # the paper's GPU; and a shorter backward pass, which shows how much depends on it
WORLD = 256
# How many times as long as local training a step takes with 256 GPUs.
PAPER = {("NCCL", 0): 2.0, ("Gloo", 0): 3.0, ("Gloo", 1): 6.0}
SLOWER, MUCH_SLOWER = 1.03, 1.1  # times a step of one rank
PAPER_NAMES = ("ResNet-50", "BERT")


def backward_ms(model, gpu=GPU):
    """From the published throughputs that docs/performance.md names."""
    for setting in passes.SETTINGS:
        if setting[:2] == (model, gpu):
            return round(passes.passes_ms(setting)[1], 1)
    return 10.0 if gpu == GPU else 5.0  # a model of the test


def passes_told(size):
    return (f"The paper does not print how long a backward pass takes. Here it takes {backward_ms(size.resnet):.0f} ms (ResNet-50) and "
            f"{backward_ms(size.bert):.0f} ms (BERT-large), as published throughputs of a V100 in FP32 say "
            "(`docs/performance.md` names them, under \"First-used layers first\")")


def measure(options):
    figure = Figure("9", "Scalability")
    bench = measuring.Bench(figure, options)
    figure.open_with(f"The curves are simulated by `ddp-bench predict`, for 1 to {WORLD} ranks with 8 on each host. The network for NCCL "
                     f"is `{NETWORKS['NCCL']}`, that for Gloo `{NETWORKS['Gloo']}`.")
    figure.open_with(f"{passes_told(options.size)}; a forward pass takes half of that. Other curves show how much depends on this: with "
                     f"mixed precision backward passes take {backward_ms(options.size.resnet, FASTER):.0f} and "
                     f"{backward_ms(options.size.bert, FASTER):.0f} ms, and gradients have as many bytes. Rules apply to FP32.")
    found = {}
    for number, model in enumerate((options.size.resnet, options.size.bert)):
        panel = Panel(f"{PAPER_NAMES[number]}, 8 ranks on each host", "ranks", "times a step of one rank", scale="log")
        for backend, network in NETWORKS.items():
            for gpu in (GPU, FASTER):
                rows = sorted(bench.predict(model, WORLD, network, backward_ms(model, gpu)), key=lambda row: row["world"])
                times = found[backend, number, gpu] = {row["world"]: row["step_ms"] / rows[0]["step_ms"] for row in rows}
                panel.series.append(Series(f"network for {backend}, {gpu}", list(times.items()), simulated=True))
        figure.panels.append(panel)
    beside_measured(bench)
    judge(figure, found)
    return figure


def beside_measured(bench):
    """Worlds that this machine can measure, and what the simulator says of them."""
    lines = []
    with bench.link() as hosts, bench.models() as models:
        if bench.figure.no_link:
            return  # ranks of one host have no link that a simulator could be compared on
        name, model = models[0]
        compute = bench.size.slow * bench.wire_ms(model) / 2
        bench.figure.open_with(f"The last panel has worlds that were measured: {name} on two hosts with a link of {bench.options.rate}, "
                               "half of the ranks on each, and beside them what the simulator says of the same. The backward pass sleeps "
                               "half as long as the wire needs.")
        for world in bench.size.measured_worlds:
            ranks = world // 2
            backend = "tcp" if ranks == 1 or hosts is None else "hierarchical"
            row = bench.replay(hosts, model, backend, compute, ranks=ranks)
            said = bench.predict(model, world, bench.network(), max(0.001, row["local_ms"]), "--forward-ms", 0, ranks_a_host=ranks)[0]
            lines.append((world, row["median_ms"] / row["local_ms"], said["step_ms"] / said["compute_ms"]))
    bench.figure.panels.append(Panel(f"{name}, the link of this machine", "ranks", "times a backward pass", [
        Series("measured", [(1, 1), *((world, ours) for world, ours, _ in lines)]),
        Series("the same worlds", [(1, 1), *((world, said) for world, _, said in lines)], simulated=True)]))
    told = ", ".join(f"{world} ranks take {ours:.2f} times a backward pass, simulated {said:.2f} ({100 * (said / ours - 1):+.0f} %)"
                     for world, ours, said in lines)
    bench.figure.open_with(f"The simulator beside these measurements: {told}. Ranks of one host share its cores and its memory here, of "
                           "which the simulator knows only a typical number.")


def judge(figure, found):
    for (backend, number), paper in PAPER.items():
        ours, faster = (found[backend, number, gpu][WORLD] for gpu in (GPU, FASTER))
        figure.claim(f"Fig. 9: {PAPER_NAMES[number]} on {backend}: with 256 GPUs an iteration takes about {paper:g} times as long as in "
                     "local training.",
                     f"{ours:.2f} times in FP32; {faster:.2f} times with mixed precision.", *near(paper - 1, max(1e-9, ours - 1)),
                     "The rule compares what is added to the time of one rank. The simulator has neither stragglers nor slow and "
                     "congested links, which the paper names as causes; its networks are nominal, and computing times are not the paper's.",
                     SIMULATED)
    smaller = found["NCCL", 0, GPU]
    worlds = list(smaller)
    slips = sum(smaller[b] < smaller[a] - 1e-6 for a, b in zip(worlds, worlds[1:]))
    figure.claim("Fig. 9 (a): the time of an iteration steadily increases as ResNet-50 scales out.",
                 ", ".join(f"{time:.2f}" for time in smaller.values()) + f" times with {', '.join(map(str, worlds))} ranks.",
                 NOT if slips or smaller[WORLD] < SLOWER else REPRODUCED if smaller[WORLD] >= MUCH_SLOWER else IN_SHAPE,
                 f"no world is faster than the one before, and the last takes at least {MUCH_SLOWER:g} times as long as the first: "
                 f"reproduced; {SLOWER:g} times: in shape",
                 "Rings and trees grow with the number of hosts. A backward pass that is long enough hides that.", SIMULATED)
    slower = {backend: [found[backend, number, GPU][WORLD] for number in (0, 1)] for backend in NETWORKS}
    longer = backward_ms("bert-large") / backward_ms("resnet50")
    figure.claim("Fig. 9: with BERT the time per iteration increases more than with ResNet-50, due to the larger model.",
                 ", ".join(
                     f"{backend}: {bert:.2f} times instead of {resnet:.2f}" for backend, (resnet, bert) in slower.items()) + ".",
                 *at_least(min(slower[backend][1] / slower[backend][0] for backend in NETWORKS), 1.2, 1.0,
                           "BERT's ratio over ResNet's, on both networks,"),
                 f"BERT has 13 times the bytes for {longer:.1f} times the computing.", SIMULATED)
    figure.cannot_run("Fig. 9 (c): 16 GPUs take longer than 32 with BERT.",
                      "The paper suspects a slow or congested link, or other jobs. A simulated network has neither.", SIMULATED)
