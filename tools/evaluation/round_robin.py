"""Figure 12: round-robin process groups."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, at_most, percent, saving

GROUPS = (1, 3, 5)
BUCKET_MB = 5  # so that there are many buckets to hand out
PAPER_BERT = 0.33
SAME, NEARLY_SAME, BETTER = 0.02, 0.04, 0.06  # as a share of the time with one group. What is negligible is no gain
FEW = 5  # steps, of which there are no percentiles


def measure(options):
    figure = Figure("12", "Round-robin process groups")
    bench = measuring.Bench(figure, options)
    found = {}
    with bench.link() as hosts, bench.models() as models:
        figure.open_with(f"Two hosts with a link of {options.rate}, one rank on each, buckets of {BUCKET_MB} MiB, and a backward pass that "
                         "sleeps half as long as the wire needs for the gradients. rr3 means that buckets go to 3 groups in turn. Times "
                         f"are medians of {bench.size.group_iters} steps" +
                         ("" if bench.size.group_iters < FEW else "; bars go from the 10th to the 90th percentile") +
                         ". The paper has up to 32 GPUs.")
        for model_key, (name, model) in zip(("ResNet-50", "BERT"), models):
            panel = Panel(f"{name}, 2 ranks", "round-robin groups", "seconds")
            compute = bench.size.slow * bench.wire_ms(model) / 2
            for backend_name, backend in measuring.LINKED.items():
                rows = {groups: bench.replay(hosts, model, backend, compute, "--groups", groups, bucket=BUCKET_MB,
                                              iters=bench.size.group_iters) for groups in GROUPS}
                found[backend, model_key] = rows
                keys = ("median_ms",) if bench.size.group_iters < FEW else ("median_ms", "p10_ms", "p90_ms")
                panel.series.append(Series(backend_name, [(groups, *(1e-3 * row[key] for key in keys)) for groups, row in rows.items()]))
            figure.panels.append(panel)
        names = dict(zip(("ResNet-50", "BERT"), (name for name, _ in models)))
    judge(figure, found, names)
    return figure


def told(times):
    return ", ".join(f"rr{groups} {time:.0f} ms" for groups, time in times.items()) + "."


def medians(rows):
    return {groups: row["median_ms"] for groups, row in rows.items()}


def judge(figure, found, names):
    times = medians(found["tcp", "ResNet-50"])
    difference = max(abs(saving(times[1], time)) for time in times.values())
    figure.claim("ResNet-50 on NCCL sees negligible differences with 1, 3 and 5 groups.", f"libddp over tcp: {told(times)}",
                 *at_most(difference, SAME, NEARLY_SAME, "the largest difference from rr1, as a share,"),
                 "Other groups can use only what one group leaves of the link. tcp takes the place of NCCL, which needs GPUs.")
    rows = found["gloo", "ResNet-50"]
    times = medians(rows)
    gained = saving(times[1], times[3])
    consistent = rows[3]["p90_ms"] < rows[1]["median_ms"]
    figure.claim("ResNet-50 on Gloo: rr3 consistently outperforms rr1.",
                 f"libddp over gloo: {told(times)} rr3 saves {percent(gained)}; its 90th percentile is {rows[3]['p90_ms']:.0f} ms.",
                 REPRODUCED if gained >= BETTER and consistent else IN_SHAPE if gained > NEARLY_SAME else NOT,
                 f"at least {100 * BETTER:.0f} %, and rr3's 90th percentile below rr1's median: reproduced; more than "
                 f"{100 * NEARLY_SAME:.0f} %: in shape",
                 "A Gloo group waits at both ends of each allreduce. Other groups use the link meanwhile.")
    times = medians(found["tcp", "BERT"])
    gained = saving(times[1], times[3])
    figure.claim(f"BERT on NCCL: rr3 achieves {percent(PAPER_BERT)} speedup compared to rr1 on 16 GPUs.",
                 f"{names['BERT']}, libddp over tcp: {told(times)} rr3 saves {percent(gained)}.",
                 *at_least(gained, PAPER_BERT / 2, BETTER, "share that rr3 saves"),
                 "In the paper one NCCL group cannot saturate the link. `docs/performance.md` compares one group of libddp's tcp with the "
                 "wire: it leaves little to others.")
