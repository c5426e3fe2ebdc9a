"""One job of a rank in C and one in each other language ends with the weights of as many ranks in C.

    one_job_test.py C-EXAMPLE FOLDER --rank COMMAND... [--rank COMMAND...]      ddprun is $DDPRUN; FOLDER is for the weights
"""
import array
import itertools
import pathlib
import shlex
import sys

from jobs import run_ranks

# The languages add up the same numbers in other orders, which makes 2.5e-7 in these steps. One gradient that is not averaged
# moves weights by more than a thousand times that.
BOUND = 1e-5
TRAINING = ["--epochs", "1", "--compare-local"]


def train(commands, path):
    """The weights that rank 0, which is in C, ends with. All ranks compare theirs with what each gets alone."""
    cases = "".join(f"{rank}) exec {shlex.join(command)} \"$@\";; " for rank, command in enumerate(commands))
    output = run_ranks(len(commands), "bash", "-c", f"case $RANK in {cases} esac", "one_job", *TRAINING, timeout=120)
    print(output)
    assert ": met" in output, "ranks do not have the weights that they get alone"
    weights = array.array("f")
    weights.frombytes(path.read_bytes())
    return weights


def main():
    in_c, folder, *rest = sys.argv[1:]
    folder = pathlib.Path(folder)
    groups = [list(words) for split, words in itertools.groupby(rest, lambda word: word == "--rank") if not split]
    saved = folder / "one_job.weights"
    first = [in_c, "--save", str(saved)]
    mixed = train([first, *groups], saved)
    expected = train([first, *([in_c] for _ in groups)], saved)
    saved.unlink()
    assert len(mixed) == len(expected) > 0
    apart = max(abs(a - b) for a, b in zip(mixed, expected))
    print(f"{len(groups) + 1} ranks, {len(mixed)} weights: difference to as many ranks in C {apart:.3g}, bound {BOUND:g}")
    assert apart <= BOUND


main()
