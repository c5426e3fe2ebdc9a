"""The bucket cap that libddp finds (DDP_CONTEXT_AUTOTUNE), beside the usual one and the best of a sweep."""
from statistics import median

from running import ms
from two_hosts import Place

# MiB
SWEEP = (0.25, 1, 2, 4, 8, 16, 25, 50, 100)
OF_BEST, OF_USUAL = 1.05, 1.02
USUAL, USUAL_SHM = 25, 1
FEWEST = 6
# Where passes compute beside communication, loops with one and the same plan differ by up to 5 % within a launch.
LAUNCHES_THAT_COMPUTE = 3
SECONDS = 20
MODEL = "60x400000"  # 96 MB in equal gradients
SMALL = "2000x256"
RATE, FAST_RATE = "2gbit", "5gbit"


def subjects(options):
    """Places, and the models and milliseconds of compute of what runs there."""
    return [
        (Place("one host, shm", "shm"), [("resnet50", 100), (MODEL, 50)]),
        (Place("one host, tcp", "tcp"), [("resnet50", 100), (SMALL, 20)]),
        (Place(f"two hosts, {RATE}, 2 x 1", options.link_backend, RATE), [("resnet50", 200), (MODEL, 200)]),
        (Place(f"two hosts, {RATE}, 2 x 2", options.hierarchical, RATE, 2), [("resnet50", 200)]),
        (Place(f"two hosts, {FAST_RATE}, 2 x 1", options.link_backend, FAST_RATE), [("resnet50", 100)]),
    ]


class Measured:
    """Medians over launches. In each launch the usual cap, those of the sweep and the cap that is found take turns."""

    def __init__(self, section, options, place, model, compute):
        usual = USUAL_SHM if place.backend == "shm" else USUAL
        sweep = [cap for cap in (SWEEP[1::4] if options.quick else SWEEP) if cap != usual]
        launches = 1 if options.quick or place.rate else LAUNCHES_THAT_COMPUTE
        command = ["replay", "--model", model, "--compute-ms", compute, "--bucket-mb", usual, "--first-bucket-mb", min(1, usual), "--also-mb",
                   ",".join(map(str, sweep)), "--autotune", *(["--sleep"] if place.rate else []), "--seconds", 1 if options.quick else SECONDS]
        *fixed, self.found = zip(*(place.rows(section, options, command) for _ in range(launches)))  # each the rows of all launches
        self.usual = fixed[0]
        self.best = min(fixed, key=of_usual)


def of_usual(rows):
    return median(row["ratio"] for row in rows)


def middle_ms(rows):
    return ms(median(row["median_ms"] for row in rows))


def found_caps(rows):
    return " / ".join(sorted({f"{row['bucket_mb']:.3g}" for row in rows}, key=float))


def autotune(section, options):
    section.open_with(
        "Steps of `ddp-bench replay` with the usual bucket cap, with each cap of a sweep, and with the cap that libddp finds on the running job "
        "(`autotune`, [steps.md](steps.md#finding-the-bucket-cap)). All of them take turns after libddp has found its cap. Between hosts the "
        f"passes sleep, as on a GPU. On one host they compute, and times and ratios are medians of {LAUNCHES_THAT_COMPUTE} launches. The best "
        "cap of the sweep is the one that was fastest in these very steps, so noise favours it.")
    lines, of_best, ratios = [], [], []
    for place, cases in subjects(options):
        if reason := place.why_impossible(options):
            section.judge(place.name, reason, None)
            continue
        with place.reached():
            for model, compute in cases:
                rows = Measured(section, options, place, model, compute)
                ratios.append(of_usual(rows.found))
                of_best.append(ratios[-1] / of_usual(rows.best))
                lines.append([place.name, model, compute, middle_ms(rows.usual), f"{rows.best[0]['bucket_mb']:g}", middle_ms(rows.best),
                              found_caps(rows.found), middle_ms(rows.found), f"{of_best[-1]:.3f}", f"{ratios[-1]:.3f}",
                              max(row["tuning_steps"] for row in rows.found)])
                print(*lines[-1], sep=", ", flush=True)
    section.table(["Group", "Model", "Compute, ms", "Usual cap", "Best cap, MiB", "With it", "Found cap, MiB", "With it", "Of the best",
                   "Of the usual", "Steps until found"], lines)
    section.commands = section.commands[:1]  # the others differ in their numbers
    section.judge(f"at least {FEWEST} settings, in each at most {100 * OF_BEST - 100:.0f} % slower than with the best cap",
                  f"{sum(ratio <= OF_BEST for ratio in of_best)} of {len(of_best)}, at most {max(of_best, default=0):.3f} times",
                  len(of_best) >= FEWEST and max(of_best) <= OF_BEST)
    section.judge(f"at most {100 * OF_USUAL - 100:.0f} % slower than with the usual cap", f"at most {max(ratios, default=0):.3f} times",
                  bool(ratios) and max(ratios) <= OF_USUAL)
