"""One job of a rank in C and one in each other language ends with the weights of as many ranks in C. Its timeline has the marks of all.

    one_job_test.py C-EXAMPLE FOLDER --rank COMMAND... [--rank COMMAND...]      ddprun is $DDPRUN; FOLDER is for the weights
"""
import array
import itertools
import json
import pathlib
import shlex
import sys

from jobs import run_ranks

# The languages add up the same numbers in other orders, which makes 2.5e-7 in these steps. One gradient that is not averaged
# moves weights by more than a thousand times that.
BOUND = 1e-5
TRAINING = ["--epochs", "1", "--compare-local"]


def train(commands, path, options=()):
    """The weights that rank 0, which is in C, ends with. All ranks compare theirs with what each gets alone."""
    cases = "".join(f"{rank}) exec {shlex.join(command)} \"$@\";; " for rank, command in enumerate(commands))
    output = run_ranks(len(commands), "bash", "-c", f"case $RANK in {cases} esac", "one_job", *TRAINING, timeout=250,
                       options=options)
    print(output)
    assert ": met" in output, "ranks do not have the weights that they get alone"
    weights = array.array("f")
    weights.frombytes(path.read_bytes())
    return weights


def check_timeline(path, ranks):
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [(names[event["pid"]], event["name"]) for event in events if event["ph"] == "X"]
    for rank in range(ranks):
        mine = {span for name, span in spans if name.startswith(f"rank {rank} of group 'world'")}
        assert "train alone" in mine, f"rank {rank} has no mark in {path}"
        assert "step 10: backward pass" in mine and "bucket 0 of step 10" in mine, f"rank {rank} has no step 10 in {path}"
    path.unlink()


def main():
    in_c, folder, *rest = sys.argv[1:]
    folder = pathlib.Path(folder)
    groups = [list(words) for split, words in itertools.groupby(rest, lambda word: word == "--rank") if not split]
    saved = folder / "one_job.weights"
    first = [in_c, "--save", str(saved)]
    timeline = folder / "one_job.trace"
    mixed = train([first, *groups], saved, ["--trace", str(timeline)])
    check_timeline(timeline, len(groups) + 1)
    expected = train([first, *([in_c] for _ in groups)], saved)
    saved.unlink()
    assert len(mixed) == len(expected) > 0
    apart = max(abs(a - b) for a, b in zip(mixed, expected))
    print(f"{len(groups) + 1} ranks, {len(mixed)} weights: difference to as many ranks in C {apart:.3g}, bound {BOUND:g}")
    assert apart <= BOUND


main()
