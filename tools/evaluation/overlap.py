"""Figure 6: where the time of a step goes, with and without overlap of the backward pass and communication."""
import measuring
from figure import CHOSEN, IN_SHAPE, NOT, REPRODUCED, Figure, Panel, Series, at_least, percent, saving

PAPER = {("NCCL", "ResNet-50"): 0.380, ("NCCL", "BERT"): 0.352, ("Gloo", "ResNet-50"): 0.268, ("Gloo", "BERT"): 0.215}  # saved
STANDS_FOR = {"NCCL": "tcp", "Gloo": "gloo"}
CLEARLY_LESS = 0.8  # times the largest saving
LAST_OF_BERT = " The word embedding is the last gradient: its bytes travel when the backward pass is over."
FORWARD = 0.5  # of a backward pass, where the model is only replayed


def implied(backend, saved):
    """Communication to backward pass, of which perfect overlap saves that share of a step. The paper says that communication is longer with
    Gloo."""
    return round(1 / saved - 1 - FORWARD if backend == "Gloo" else (1 + FORWARD) * saved / (1 - saved), 2)


RATIOS = {(STANDS_FOR[backend], model): implied(backend, saved) for (backend, model), saved in PAPER.items()}


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
            "communication c, perfect overlap saves min(b, c) / (1.5 b + c). The paper's savings would be perfect with c / b = " +
            ", ".join(f"{RATIOS[STANDS_FOR[backend], model]:.2f} ({model} on {backend})" for backend, model in PAPER) +
            ". The first panel has these ratios. They are chosen so that perfect overlap saves what the paper saved, so a saving of that "
            "size shows nothing by itself: what is judged is the share of perfect overlap that libddp reaches. The second panel has other "
            "ratios, too.")
        bars = []
        found = {}
        for backend_name, backend in measuring.LINKED.items():
            for number, (short, (model_name, model)) in enumerate(zip(("ResNet-50", "BERT"), models)):
                wanted = RATIOS[backend, short]
                label = f"{backend_name}\n{model_name}\nc = {wanted:g} b"
                all_ratios = sorted({*bench.size.ratios, wanted}) if number == 0 else [wanted]  # a curve for the smaller model
                found[backend, model_name] = replayed(bench, hosts, backend, model, all_ratios, wanted, label, bars)
        real = real_models(bench, hosts, bars)
    figure.panels.append(Panel("(a) one step; the time without overlap is 1", "", "share of the time without overlap", bars=bars))
    figure.panels.append(curves(found))
    if real:
        figure.open_with("Overlap saves " + ", ".join(f"{percent(saved)} of a step of the {name}" for name, saved in real.items()) +
                         " in PyTorch. The paper has no number for such a step, in which communication takes the processor from the "
                         "backward pass.")
    judge(figure, found, [name for name, _ in models])
    return figure


def breakdown(label, forward, backward, apart, together, bars):
    """Two bars, without and with overlap. Returns what overlap saves."""
    total = forward + apart
    for with_it, step in ((False, apart), (True, together)):
        bars.append((f"{label}\n{'overlap' if with_it else 'none'}", [
            ("forward", forward / total), ("backward, computing", min(backward, step) / total),
            ("communication that is not hidden", max(0.0, step - backward) / total)]))
    return saving(total, forward + together)


def replayed(bench, hosts, backend, model, all_ratios, wanted, label, bars):
    """{ratio of communication to backward pass: (saving, the most that can be saved)}"""
    alone = bench.replay(hosts, model, backend, 0)
    communication = max(1e-3, alone["median_ms"] - alone["local_ms"])
    found = {}
    for ratio in all_ratios:
        row = bench.replay(hosts, model, backend, communication / ratio, "--without-overlap")
        backward = row["local_ms"]
        forward = FORWARD * backward
        total = forward + row["without_overlap_ms"]
        took = row["without_overlap_ms"] - backward
        saved = saving(total, forward + row["median_ms"])
        found[ratio] = (saved, min(backward, took) / total)
        if ratio == wanted:
            breakdown(label, forward, backward, row["without_overlap_ms"], row["median_ms"], bars)
    return found


def curves(found):
    series = [Series(f"{backend}, {model}", [(ratio, 100 * saved) for ratio, (saved, _) in points.items()])
              for (backend, model), points in found.items()]
    first = next(iter(found.values()))
    series.append(Series("as much as overlap can save", [(ratio, 100 * most) for ratio, (_, most) in first.items()], style="bound"))
    series += [Series(f"paper: {', '.join(key)}", [(0, 100 * value)], style="level") for key, value in PAPER.items()]
    return Panel("(b) what overlap saves", "communication / backward pass", "% of a step without overlap", series, scale="log")


def real_models(bench, hosts, bars):
    """{name: saving} of models that PyTorch computes."""
    found = {row["model"]: breakdown(f"PyTorch\n{row['model']}", row["forward_ms"], row["backward_ms"],
                                     row["apart_ms"] - row["forward_ms"], row["median_ms"] - row["forward_ms"], bars)
             for row in bench.torch_steps(hosts, bench.size.rounds)}
    if found:
        bench.figure.open_with("PyTorch: a real ResNet-50 (one image of 224 x 224) and a transformer encoder (6 layers, 128 tokens), each "
                               "rank on one core, with `ddp.torch.DistributedDataParallel`. Without overlap: the gradients are put into "
                               "the buckets of a context after the backward pass. With and without, they are copied into buckets and "
                               "back, and the optimizer counts as communication that is not hidden.")
    return found


def judge(figure, found, models):
    for (paper_backend, model), value in PAPER.items():
        backend = STANDS_FOR[paper_backend]
        name, ratio = models[0] if model == "ResNet-50" else models[1], RATIOS[backend, model]
        ours, most = found[backend, name][ratio]
        reached = ours / most if most > 0 else 0
        figure.claim(f"Overlap saves {percent(value)} with {model} on {paper_backend}.",
                     f"{name}, libddp over {backend}, communication {ratio:g} times as long as the backward pass: {percent(ours)}. That is "
                     f"{100 * reached:.0f} % of what perfect overlap saves.",
                     *at_least(reached, 0.8, 0.5, "share of perfect overlap that was reached"),
                     "2 ranks instead of 32, and a slower link." + LAST_OF_BERT * (model == "BERT") +
                     " tcp takes the place of NCCL, which needs GPUs." * (backend == "tcp"), CHOSEN)
    judge_equal(figure, {ratio: saved for ratio, (saved, _) in found["tcp", models[0]].items()})
    judge_shrinking(figure, {ratio: saved for ratio, (saved, _) in found["gloo", models[0]].items() if ratio >= 1})


def told(curve):
    return ", ".join(f"{percent(saved)} at {ratio:g}" for ratio, saved in curve.items())


def judge_equal(figure, curve):
    """curve: {communication to backward pass: share that is saved}"""
    best = max(curve, key=curve.get)
    ends = max(curve[min(curve)], curve[max(curve)])
    figure.claim("The speedup is most effective when computation and communication take roughly the same time.",
                 f"Saved over tcp, by the ratio of communication to the backward pass: {told(curve)}.",
                 REPRODUCED if 0.5 <= best <= 2 and ends <= CLEARLY_LESS * curve[best] else IN_SHAPE if ends < curve[best] else NOT,
                 f"a ratio from 0.5 to 2 saves most, and both ends at most {100 * CLEARLY_LESS:.0f} % of that: reproduced; both ends save "
                 "less than the best: in shape",
                 "Overlap can save the shorter of the two, as a share of their sum.")


def judge_shrinking(figure, curve):
    """curve: as above, from where communication takes longer."""
    savings = list(curve.values())
    falls = all(b < a for a, b in zip(savings, savings[1:]))
    figure.claim("With Gloo the gain shrinks, as communication dominates the backward pass.",
                 f"Saved over gloo: {told(curve)}.",
                 NOT if not 0 < savings[-1] < savings[0] else
                 REPRODUCED if falls and savings[-1] <= CLEARLY_LESS * savings[0] else IN_SHAPE,
                 f"from 1 on each larger ratio saves less, and the largest at most {100 * CLEARLY_LESS:.0f} % of the first, but something: "
                 "reproduced; the largest less than the first, but something: in shape",
                 "What takes longer than the backward pass cannot be hidden behind it.")
