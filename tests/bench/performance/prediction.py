"""Predicted steps beside measured ones."""
import json
import os
import sys
import tempfile

import running
import two_hosts
from running import ms
from two_hosts import Place

SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 26214400, 64 << 20, two_hosts.RESNET50_BYTES]
WITHIN = 0.15
FEWEST = 20
SLOW_RATE, SLOW_MOST = "200mbit", 26214400
SMALL = "60x400000"  # 96 MB in equal gradients
SMALLER = "30x200000"  # 24 MB


def cases_of(model="resnet50", buckets=(1, 25), computes=(0,), more=()):
    """compute: of backward passes; with 0 only the gradients are written."""
    return [*((model, bucket, compute, 1, "") for compute in computes for bucket in buckets), *more]


def subjects(options):
    """Places, and what is measured there."""
    local = [(SMALL, 5, compute, 1, "") for compute in (100, 200)]
    linked = [("resnet50", 5, 400, 2, ""), ("resnet50", 25, 400, 1, "fp16"), (SMALL, 5, 400, 1, "")]
    slow = [(SMALLER, 2, 400, 2, ""), (SMALLER, 2, 400, 1, "fp16")]
    return [
        (Place("one host, shm", "shm"), cases_of(computes=(100, 200), more=local)),
        (Place("one host, tcp", "tcp"), cases_of(computes=(100, 200), more=local)),
        (Place(f"two hosts, {options.rate}, 2 x 1", options.link_backend, options.rate), cases_of(computes=(0, 400, 800), more=linked)),
        (Place(f"two hosts, {SLOW_RATE}, 2 x 1", options.link_backend, SLOW_RATE), cases_of(SMALLER, (1, 5), (0, 400), slow)),
        (Place(f"two hosts, {options.rate}, 2 x 2", options.hierarchical, options.rate, 2), cases_of()),
    ]


def measured(section, options, place, case):
    model, bucket, compute, groups, hook = case
    row, = place.rows(section, options, [
        "replay", "--model", model, "--bucket-mb", bucket, "--first-bucket-mb", 1, "--compute-ms", compute, "--groups", groups,
        "--seconds", 0.3 if options.quick else 2, *(["--hook", hook] if hook else [])])
    return row


def predicted(section, options, place, case, table, row, busy):
    model, bucket, _, groups, hook = case
    command = [options.bench, "predict", "--model", model, "--world", place.world, "--measured", table, "--compute-ms", row["local_ms"],
               "--forward-ms", 0, "--bucket-mb", bucket, "--first-bucket-mb", 1, "--groups", groups, "--cores",
               os.cpu_count() / place.world, "--communication-cores", round(busy, 3), *(["--hook", hook] if hook else []), "--json"]
    return running.run(section, command, options.timeout)[0]["step_ms"]


def busy_cores(row):
    """How many cores communication keeps busy on a rank, from a step without compute."""
    communication = row["median_ms"] - row["local_ms"]
    return min(1.0, max(0.0, (row["cpu_ms"] - row["local_ms"]) / communication)) if communication > 0 else 0.0


def calibrated(section, options, place, model, table):
    """Measures what the simulator has to know of a place. Writes the times of allreduces into `table`, and returns busy_cores."""
    sizes = [size for size in SIZES if size <= (SLOW_MOST if place.rate == SLOW_RATE else SIZES[-1])]
    rows = place.rows(section, options, ["allreduce", "--memory", "group", "--bytes", ",".join(map(str, sizes)),
                                         "--seconds", 0.2 if options.quick else 2])
    table.seek(0)
    table.truncate()
    table.write("".join(json.dumps(row) + "\n" for row in rows))
    table.flush()
    return busy_cores(measured(section, options, place, (model, 25, 0, 1, "")))


def compare(section, options, place, cases):
    """A line for each case, and the errors."""
    lines, errors = [], []
    with place.reached(), tempfile.NamedTemporaryFile("w", prefix="ddp-allreduce-") as table:
        busy = None
        for case in cases:
            # Where the processors bound everything, what they do in a second changes from minute to minute.
            if busy is None or not place.rate:
                busy = calibrated(section, options, place, cases[0][0], table)
            row = measured(section, options, place, case)
            model, bucket, compute, groups, hook = case
            step = row["hook_ms" if hook else "median_ms"]
            said = predicted(section, options, place, case, table.name, row, busy)
            errors.append(said / step - 1)
            print(f"{place.name} {case}: {step:.1f} ms, predicted {said:.1f}: {100 * errors[-1]:+.1f} %", file=sys.stderr, flush=True)
            lines.append([place.name, model, bucket, compute, groups, hook or "–", ms(step), ms(said), f"{100 * errors[-1]:+.0f} %"])
    return lines, errors


def predict(section, options):
    section.open_with(
        "Predictions of `ddp-bench predict` beside steps measured by `ddp-bench replay`. The simulator knows the measured times of "
        "allreduces in the same group (`--measured`), the time of the backward pass alone and, where both share processors, how many of "
        "them communication keeps busy; on one host both are measured again for each setting. libddp itself plans the buckets and runs "
        "the hook. On one host every setting has compute: without it, the memory bounds a step. The simulator does not know the memory, "
        "and its predictions were then wrong by -54 to +29 % (2026-11-26).")
    lines, errors = [], []
    for place, cases in subjects(options):
        if reason := place.why_impossible(options):
            section.judge(place.name, reason, None)
            continue
        more, wrong = compare(section, options, place, cases)
        lines += more
        errors += wrong
    section.table(["Group", "Model", "Bucket, MiB", "Compute, ms", "Groups", "Hook", "Measured", "Predicted", "Error"], lines)
    section.commands = section.commands[:3]  # the others differ in their numbers
    worst = max(errors, key=abs, default=0.0)
    section.judge(f"at least {FEWEST} settings, all within {100 * WITHIN:.0f} %",
                  f"{sum(abs(error) <= WITHIN for error in errors)} of {len(errors)}, at most {100 * worst:+.0f} %",
                  len(errors) >= FEWEST and abs(worst) <= WITHIN)
