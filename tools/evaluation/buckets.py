"""Figures 7 and 8: the time of a step by bucket size."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, at_most
from measuring import name_of
from scaling import NETWORKS, V100_BACKWARD_MS

TIE = 1.03  # times the best step: as good
PAPER_BEST = {("tcp", "ResNet-50"): ("NCCL", "10 and 25 MB", (10, 25)), ("gloo", "ResNet-50"): ("Gloo", "5 MB", (5,)),
              ("tcp", "BERT"): ("NCCL", "50 MB", (50,)), ("gloo", "BERT"): ("Gloo", "5 MB", (5,))}
ENOUGH = 5  # MiB, from which 32 GPUs are not slower than 16


def measure(options):
    figure = Figure("7", "The time of a step by bucket size, small world")
    bench = measuring.Bench(figure, options)
    found, names = {}, {}
    with bench.link() as hosts, bench.models() as models:
        figure.open_with(f"Two hosts with a link of {options.rate}, one rank on each, and a backward pass that sleeps as long as the wire "
                         "needs for the gradients. Bars go from the 10th to the 90th percentile. Bucket size 0 sends each gradient alone. "
                         "The first bucket has at most 1 MiB, as in PyTorch. The paper has 16 GPUs on two machines.")
        for name, model in models:
            compute = bench.size.slow * bench.wire_ms(model)
            panel = Panel(f"{name}, 2 ranks", "bucket size in MiB", "seconds")
            for backend_name, backend in measuring.LINKED.items():
                rows = {bucket: bench.replay(hosts, model, backend, compute, bucket=bucket) for bucket in bench.size.buckets}
                found[backend, name] = {bucket: row["median_ms"] for bucket, row in rows.items()}
                panel.series.append(Series(backend_name, [(bucket, *(1e-3 * row[key] for key in ("median_ms", "p10_ms", "p90_ms")))
                                                          for bucket, row in rows.items()]))
            figure.panels.append(panel)
        names = dict(zip(("ResNet-50", "BERT"), (name for name, _ in models)))
    for (backend, model), (paper_backend, size, best) in PAPER_BEST.items():
        judge_best(figure, found[backend, names[model]], model, paper_backend, backend, size, best)
    judge_speedup(figure, found)
    return figure


def judge_best(figure, times, model, paper_backend, backend, size, best):
    least = min(times.values())
    good = [bucket for bucket, time in times.items() if time <= TIE * least]
    sizes = list(times)
    worst_end = max(times[sizes[0]], times[sizes[-1]]) / least
    verdict = REPRODUCED if set(good) & set(best) and sizes[0] not in good else IN_SHAPE if worst_end > TIE else NOT
    figure.claim(f"{model} on {paper_backend}: {size} {'are' if len(best) > 1 else 'is'} best.",
                 f"libddp over {backend}: best or within {100 * (TIE - 1):.0f} % of it: {', '.join(f'{bucket:g}' for bucket in good)} MiB. "
                 f"Against the best, {sizes[0]:g} takes {times[sizes[0]] / least:.2f} times and {sizes[-1]:g} MiB "
                 f"{times[sizes[-1]] / least:.2f} times as "
                 "long.", verdict,
                 "one of the paper's sizes is among the best, and 0 is not: reproduced; one end is worse than the best: in shape",
                 "Small buckets cost messages, and large ones leave a last bucket that nothing hides. libddp's messages are cheap beside "
                 "this link, so "
                 "its curve is flatter at the small end." + (" tcp takes the place of NCCL, which needs GPUs." if backend == "tcp" else ""))


def judge_speedup(figure, found):
    ratio, where = max((max(times.values()) / min(times.values()), key) for key, times in found.items())
    figure.claim("Bucket sizes could lead to more than 2X speedup if configured properly (the paper's introduction).",
                 f"The worst size takes {ratio:.2f} times as long as the best ({where[1]} over {where[0]}).",
                 *at_least(ratio, 2, 1.05, "worst over best"),
                 "The paper's ratio comes from many ranks, whose collectives have latencies that add up.")


def measure_larger(options):
    figure = Figure("8", "The time of a step by bucket size, larger world (simulated)")
    bench = measuring.Bench(figure, options)
    figure.open_with("Everything here is simulated by `ddp-bench predict`: 16 and 32 ranks on hosts with 8 ranks, as in the paper. The "
                     f"network for NCCL is `{NETWORKS['NCCL']}`, that for Gloo `{NETWORKS['Gloo']}`. Backward passes of "
                     f"{V100_BACKWARD_MS['resnet50']} ms (ResNet-50) and {V100_BACKWARD_MS['bert-large']} ms (BERT-large) are assumed for "
                     "a V100, since the paper prints none.")
    found = {}
    for model in (bench.size.resnet, bench.size.bert):
        compute = V100_BACKWARD_MS.get(model, 10)
        for paper_backend, network in NETWORKS.items():
            panel = Panel(f"{name_of(model)}, network for {paper_backend}", "bucket size in MiB", "seconds")
            for world in (16, 32):
                times = found[paper_backend, model, world] = simulated(bench, model, world, network, compute)
                panel.series.append(Series(f"{world} ranks", [(bucket, 1e-3 * time) for bucket, time in times.items()], simulated=True))
            bench.figure.panels.append(panel)
    judge_larger(figure, found, bench.size)
    return figure


def simulated(bench, model, world, network, compute):
    """{bucket size: milliseconds}. The first bucket is as small as the others where each gradient goes alone."""
    times = {}
    for buckets in ([bucket for bucket in bench.size.buckets if bucket == 0], [bucket for bucket in bench.size.buckets if bucket > 0]):
        rows = bench.predict(model, world, network, compute, buckets=buckets)
        times.update((bucket, row["step_ms"]) for bucket, row in zip(buckets, rows))
    return times


def judge_larger(figure, found, size):
    for model in (size.resnet, size.bert):
        slower, over, enough = 0, 0, [bucket for bucket in size.buckets if bucket >= min(ENOUGH, size.buckets[-1])]
        for backend in NETWORKS:
            few, many = found[backend, model, 16], found[backend, model, 32]
            slower = max(slower, many[0] / few[0])
            over = max(over, max(many[bucket] / few[bucket] for bucket in enough))
        figure.claim(f"{name_of(model)}: with bucket size 0, 32 GPUs are obviously slower than 16.",
                     f"Simulated: {slower:.2f} times as long.",
                     *at_least(slower, 1.1, 1.01, "32 over 16 ranks, on one of the networks,"),
                     "The simulator charges each collective a latency that grows with the hosts. The paper also had stragglers.")
        figure.claim(f"{name_of(model)}: above 5 MB, going from 16 to 32 GPUs leads to no noticeable speed regression.",
                     f"Simulated: at most {over:.2f} times as long.",
                     *at_most(over, 1.05, 1.5, "32 over 16 ranks, at each of these sizes and on both networks,"),
                     "From 2 to 4 hosts each link carries 1.5 times the bytes. Where the backward pass hides the communication, that "
                     "costs nothing; where it does not, a model without other delays shows all of it.")
