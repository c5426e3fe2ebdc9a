"""Running ddp-bench and reading what it prints."""
import contextlib
import json
import pathlib
import subprocess
import sys
from statistics import median

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools/bench/peers"))
import processes  # noqa: E402  (tools/bench/peers)


class Missing(Exception):
    """Something that a section needs does not work here; the text says what."""


def rows_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run(section, command, timeout):
    """The rows that a command prints; the section shows the command."""
    section.command(command)
    print(f"{section.name}: {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    status, output = processes.run(list(map(str, command)), timeout)
    if status != 0:
        raise Missing(f"status {status} of {' '.join(map(str, command))}")
    return rows_of(output)


def works(options, backend, *more):
    """Whether this build has a backend, or a further option of ddp-bench."""
    command = [options.bench, "allreduce", "--world", "1", "--backend", backend, "--bytes", "64", "--iters", "1",
               "--timeout", "30", *more]
    return processes.run(command, 60)[0] == 0


def require(options, backend):
    if not works(options, backend):
        raise Missing(f"this build has no backend {backend}")


def in_turns(rounds, measurements):
    """Calls each function once a round, and returns the median of what each returned."""
    found = [[] for _ in measurements]
    for _ in range(rounds):
        for values, measure in zip(found, measurements):
            values.append(measure())
    return [median(values) for values in found]


@contextlib.contextmanager
def busy_loops(count):
    """That many processes that want a processor all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def bytes_text(size):
    for power, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def ms(value):
    return f"{value:.4g}"
