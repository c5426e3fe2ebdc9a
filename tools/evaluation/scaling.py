"""Figure 9: the time of a step by world size, up to 256 ranks."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, near

# What the simulator takes for the paper's networks, and for the backward passes that the paper does not print.
NETWORKS = {"NCCL": "100gbit", "Gloo": "10gbit"}
V100_BACKWARD_MS = {"resnet50": 100, "bert-large": 300}
WORLD = 256
# How many times as long as local training a step takes with 256 GPUs.
PAPER = {("NCCL", 0): 2.0, ("Gloo", 0): 3.0, ("Gloo", 1): 6.0}
PAPER_NAMES = ("ResNet-50", "BERT")


def measure(options):
    figure = Figure("9", "Scalability")
    bench = measuring.Bench(figure, options)
    figure.open_with(f"The curves are simulated by `ddp-bench predict`, for 1 to {WORLD} ranks with 8 on each host. The network for NCCL "
                     f"is `{NETWORKS['NCCL']}`, that for Gloo `{NETWORKS['Gloo']}`. Backward passes of {V100_BACKWARD_MS['resnet50']} ms "
                     f"(ResNet-50) and {V100_BACKWARD_MS['bert-large']} ms (BERT-large) are assumed for a V100, since the paper prints "
                     "none; a forward pass takes half of that.")
    found = {}
    for number, model in enumerate((options.size.resnet, options.size.bert)):
        panel = Panel(f"{PAPER_NAMES[number]}, 8 ranks on each host", "ranks", "times a step of one rank", scale="log")
        for backend, network in NETWORKS.items():
            rows = bench.predict(model, WORLD, network, V100_BACKWARD_MS.get(model, 10))
            times = found[backend, number] = {row["world"]: row["step_ms"] for row in sorted(rows, key=lambda row: row["world"])}
            points = [(world, time / times[1]) for world, time in times.items()]
            panel.series.append(Series(f"network for {backend}", points, simulated=True))
        figure.panels.append(panel)
    beside_measured(bench)
    judge(figure, found)
    return figure


def beside_measured(bench):
    """Worlds that this machine can measure, and what the simulator says of them."""
    lines = []
    with bench.link() as hosts, bench.models() as models:
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
        times = found[backend, number]
        ours = times[WORLD] / times[1]
        figure.claim(f"Fig. 9: {PAPER_NAMES[number]} on {backend}: with 256 GPUs an iteration takes about {paper:g} times as long as in "
                     "local training.",
                     f"Simulated: {ours:.2f} times.", *near(paper - 1, max(1e-9, ours - 1)),
                     "The rule compares what is added to the time of one rank. The simulator has neither stragglers nor slow and "
                     "congested links, which the paper names as causes; its networks are nominal, and computing times are assumed.")
    smaller = found["NCCL", 0]
    worlds = list(smaller)
    slips = sum(smaller[b] < smaller[a] - 1e-6 for a, b in zip(worlds, worlds[1:]))
    figure.claim("Fig. 9 (a): the time of an iteration steadily increases as ResNet-50 scales out.",
                 "Simulated: " + ", ".join(f"{time / smaller[1]:.2f}" for time in smaller.values()) +
                 f" times with {', '.join(map(str, worlds))} ranks.",
                 REPRODUCED if slips == 0 and smaller[WORLD] > smaller[1] else IN_SHAPE if smaller[WORLD] > smaller[1] else NOT,
                 "no world is faster than the one before, and the last is slower than the first: reproduced; the latter alone: in shape",
                 "Rings and trees grow with the number of hosts.")
    slower = {backend: [found[backend, number][WORLD] / found[backend, number][1] for number in (0, 1)] for backend in NETWORKS}
    figure.claim("Fig. 9: with BERT the time per iteration increases more than with ResNet-50, due to the larger model.",
                 "Simulated: " + ", ".join(
                     f"{backend}: {bert:.2f} times instead of {resnet:.2f}" for backend, (resnet, bert) in slower.items()) + ".",
                 *at_least(min(slower[backend][1] / slower[backend][0] for backend in NETWORKS), 1.2, 1.0,
                           "BERT's ratio over ResNet's, on both networks,"),
                 "BERT has 13 times the bytes for about 3 times the computing.")
    figure.cannot_run("Fig. 9 (c): 16 GPUs take longer than 32 with BERT.",
                      "The paper suspects a slow or congested link, or other jobs. A simulated network has neither.")
