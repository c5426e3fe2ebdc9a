"""Figure 6: where the time of a step goes, with and without overlap of the backward pass and communication."""
import measuring
from figure import IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, near, percent, saving

PAPER = {"NCCL, ResNet-50": 0.380, "NCCL, BERT": 0.352, "Gloo, ResNet-50": 0.268, "Gloo, BERT": 0.215}
LIKE_NCCL, LIKE_GLOO = 1, 2.2  # communication to backward pass
LAST_OF_BERT = " The word embedding is the last gradient: its bytes travel when the backward pass is over."
FORWARD = 0.5  # of a backward pass, where the model is only replayed


def measure(options):
    figure = Figure("6", "Breakdown of a step")
    bench = measuring.Bench(figure, options)
    with bench.link() as hosts, bench.models() as models:
        figure.open_with(
            f"Two hosts with a link of {options.rate}, one rank on each. `ddp-bench replay` has the gradients of the model and a backward "
            "pass that sleeps, as a pass on a GPU leaves the processor free. The forward pass is half as long and only added. Without "
            "overlap, all gradients are announced after the backward pass, in the same buckets.")
        figure.open_with(
            "The paper does not print how long computing takes beside communication. With the backward pass b, forward pass b/2 and "
            f"communication c, perfect overlap saves min(b, c) / (1.5 b + c). For the paper's numbers this gives c = {LIKE_NCCL} b with "
            f"NCCL and about c = {LIKE_GLOO} b with Gloo. So the panels play those two, and the last panel shows the ratios between and "
            "around.")
        bars = []
        found = {}
        for backend_name, backend in measuring.LINKED.items():
            for model_name, model in models:
                found[backend, model_name] = replayed(bench, hosts, backend, backend_name, model, model_name, bars)
        real = real_models(bench, hosts, bars)
    figure.panels.append(Panel("(a) one step; the time without overlap is 1", "", "share of the time without overlap", bars=bars))
    figure.panels.append(curves(found))
    judge(figure, found, [name for name, _ in models], real)
    return figure


def breakdown(label, forward, backward, apart, together, bars):
    """Two bars, without and with overlap. Returns what overlap saves."""
    total = forward + apart
    for with_it, step in ((False, apart), (True, together)):
        bars.append((f"{label}\n{'overlap' if with_it else 'none'}", [
            ("forward", forward / total), ("backward, computing", min(backward, step) / total),
            ("communication that is not hidden", max(0.0, step - backward) / total)]))
    return saving(total, forward + together)


def replayed(bench, hosts, backend, backend_name, model, model_name, bars):
    """{ratio of communication to backward pass: (saving, the most that can be saved)}"""
    alone = bench.replay(hosts, model, backend, 0)
    communication = max(1e-3, alone["median_ms"] - alone["local_ms"])
    wanted = LIKE_GLOO if backend == "gloo" else LIKE_NCCL
    found = {}
    for ratio in ratios(bench.size, model_name, wanted):
        row = bench.replay(hosts, model, backend, communication / ratio, "--without-overlap")
        backward = row["local_ms"]
        forward = FORWARD * backward
        total = forward + row["without_overlap_ms"]
        took = row["without_overlap_ms"] - backward
        saved = saving(total, forward + row["median_ms"])
        found[ratio] = (saved, min(backward, took) / total)
        if ratio == wanted:
            label = f"{backend_name}\n{model_name}\nc = {ratio:g} b"
            breakdown(label, forward, backward, row["without_overlap_ms"], row["median_ms"], bars)
    return found


def ratios(size, model_name, wanted):
    """A curve for the smaller model, and the one ratio of its panel for the other."""
    return sorted({*size.ratios, wanted}) if "BERT" not in model_name else [wanted]


def curves(found):
    series = [Series(f"{backend}, {model}", [(ratio, 100 * saved) for ratio, (saved, _) in points.items()])
              for (backend, model), points in found.items()]
    first = next(iter(found.values()))
    series.append(Series("as much as overlap can save", [(ratio, 100 * most) for ratio, (_, most) in first.items()], style="bound"))
    series += [Series(f"paper: {name}", [(0, 100 * value)], style="level") for name, value in PAPER.items()]
    return Panel("(b) what overlap saves", "communication / backward pass", "% of a step without overlap", series, scale="log")


def real_models(bench, hosts, bars):
    """{name: saving} of models that PyTorch computes."""
    missing = measuring.python_has(bench.options, "torch", "ddp")
    if missing:
        bench.figure.leave_out(f"real models in PyTorch: {missing}")
        return {}
    found = {}
    for model in bench.size.real:
        row, = bench.python(hosts, "torch_step.py", "steps", "--model", model, "--backend", "tcp", "--rounds", bench.size.rounds)
        found[row["model"]] = breakdown(f"PyTorch\n{row['model']}", row["forward_ms"], row["backward_ms"],
                                        row["apart_ms"] - row["forward_ms"], row["median_ms"] - row["forward_ms"], bars)
    if found:
        bench.figure.open_with("PyTorch: a real ResNet-50 (one image of 224 x 224) and a transformer encoder (6 layers, 128 tokens), each "
                               "rank on one core, with `ddp.torch.DistributedDataParallel`. Without overlap: the gradients are put into "
                               "the buckets of a context after the backward pass. The optimizer counts as communication that is not "
                               "hidden in both.")
    return found


def judge(figure, found, models, real):
    for (paper_backend, model), value in zip((key.split(", ") for key in PAPER), PAPER.values()):
        backend, ratio = ("gloo", LIKE_GLOO) if paper_backend == "Gloo" else ("tcp", LIKE_NCCL)
        ours, most = found[backend, models[0] if "ResNet" in model else models[1]][ratio]
        figure.claim(f"Overlap saves {percent(value)} with {model} on {paper_backend}.",
                     f"libddp over {backend}, communication {ratio:g} times as long as the backward pass: {percent(ours)}. Perfect overlap "
                     f"would save {percent(most)}.",
                     *near(value, ours),
                     "The ratio of computing to communication is chosen as the paper's savings imply it, since the paper does not print "
                     "it. 2 ranks instead of 32, and a slower link." + LAST_OF_BERT * ("BERT" in model) +
                     " tcp takes the place of NCCL, which needs GPUs." * (backend == "tcp"))
    curve = found["tcp", models[0]]
    best = max(curve, key=lambda ratio: curve[ratio][0])
    figure.claim("The speedup is most effective when computation and communication take roughly the same time.",
                 f"Of the measured ratios {', '.join(f'{ratio:g}' for ratio in curve)}, {best:g} saves most: {percent(curve[best][0])}.",
                 *at_least(min(best, 1 / best), 0.5, 0.25, "the best ratio or its inverse"),
                 "What overlap can save is the shorter of the two, as a share of their sum.")
    shares = [found["gloo", models[0]][LIKE_GLOO][0], found["tcp", models[0]][LIKE_NCCL][0]]
    figure.claim("With Gloo the gain shrinks, as communication dominates the backward pass.",
                 f"{percent(shares[0])} where communication is {LIKE_GLOO:g} times as long, {percent(shares[1])} where it is as long.",
                 REPRODUCED if 0 < shares[0] <= shares[1] - 0.03 else IN_SHAPE if 0 < shares[0] < shares[1] else NOT,
                 "both save something, and the first at least 3 points less: reproduced; less: in shape",
                 "The same cause: nothing is left to hide it behind.")
    for name, ours in real.items():
        figure.claim(f"Overlap saves 21.5 to 38.0 % in real training ({'ResNet-50' if 'res' in name.lower() else 'BERT'}).",
                     f"{name} in PyTorch on one core of each host: {percent(ours)}.", *near(0.30, ours),
                     "Computing and communication share the processor here: while libddp and the kernel move bytes, the backward pass is "
                     "slower. On a GPU it is not. The middle of the paper's range is the paper's number for the rule.")
