"""The sections on a slow link between two hosts, which are network namespaces of this machine."""
import contextlib
import os
import pathlib
import sys
import tempfile
from statistics import median

import running
from running import ms

import namespaces
import processes

TCP_STREAMS = pathlib.Path(__file__).resolve().parent / "tcp_streams.c"
RESNET50_BYTES = 102228128
LAST_LAYER_BYTES = 8196000  # of resnet50: the first gradient of the backward pass, 8 % of all
SIZES = [26214400, 64 << 20, RESNET50_BYTES]
OVER_WIRE, OF_PYTORCH, OVERLAPPED = 1.02, 0.68, 1.08
FAST_SIZES = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 26214400, 64 << 20, 240 << 20]
OF_TCP, OF_GLOO_AT_4_KIB, ENCRYPTED_OF_PLAIN = 0.85, 0.20, 0.72
BUCKET_MB = 4
GROUPS = (1, 2)  # in turn
BY_WORK = "by work"
PORT = 29401


class Place:
    """Where a group is: two ranks of one host, or with `rate`, that of their link, so many on each of two hosts."""

    def __init__(self, name, backend, rate=None, ranks_a_host=1):
        self.name, self.backend, self.rate = name, backend, rate
        self.ranks_a_host = ranks_a_host if rate else 2
        self.world = self.ranks_a_host * (2 if rate else 1)
        self.hosts = None

    def why_impossible(self, options):
        """None where it can be measured here, else the reason."""
        if self.rate and (reason := namespaces.why_impossible(self.rate)):
            return reason
        return None if running.works(options, self.backend) else f"this build has no backend {self.backend}"

    @contextlib.contextmanager
    def reached(self):
        if not self.rate:
            yield
            return
        with namespaces.Link(self.rate) as self.hosts:
            yield

    def rows(self, section, options, command):
        command = [*command, "--backend", self.backend]
        if self.rate:
            return job_rows(section, self.hosts, options, self.ranks_a_host, command)
        return running.run(section, [options.bench, *command, "--world", self.world, "--json"], options.timeout)


def require_link(options):
    reason = namespaces.why_impossible(options.rate)
    if reason:
        raise running.Missing(f"network namespaces cannot be made here ({reason})")


def wire_ms(link, options, size, times, streams=1):
    """So many bytes each way at once over TCP, without libddp: the median."""
    program = pathlib.Path(options.bench).with_name("tcp_streams")
    processes.run(["cc", "-O2", "-o", str(program), str(TCP_STREAMS)], 60)

    def command(host):
        return list(map(str, [program, ("listen", "connect")[host], link.addresses[0], PORT, size, times, streams]))

    return median(map(float, namespaces.run_on_hosts(link, command, options.timeout).split()))


def job_rows(section, link, options, ranks_a_host, command):
    """The rows of a ddp-bench command with so many ranks on each host."""
    words = list(map(str, [options.bench, *command, "--json"]))
    section.command([options.ddprun, "--nnodes", 2, "-n", ranks_a_host, *words], "on each host: ")
    print(f"{section.name}: {' '.join(words)}, 2 x {ranks_a_host} ranks", file=sys.stderr, flush=True)
    return running.rows_of(namespaces.run_job(link, options.ddprun, ranks_a_host, words, options.timeout))


def replay_ms(section, link, options, ranks_a_host, backend, compute=0, groups=1, model="resnet50"):
    row, = job_rows(section, link, options, ranks_a_host, [
        "replay", "--model", model, "--backend", backend, "--compute-ms", compute, "--seconds", seconds(options),
        "--groups", groups,
        # Small enough that the wire need not wait long for the first bucket, nor the program for the last.
        "--bucket-mb", BUCKET_MB, "--first-bucket-mb", 1])
    return row["median_ms"]


def seconds(options):
    return 1 if options.quick else 15


def rounds(options):
    return 1 if options.quick else 3


def link(section, options):
    require_link(options)
    section.open_with(f"Two hosts with {options.rate} each way between them (`tools/bench/runs/namespaces.py`), against the wire's time and "
                      "PyTorch's DistributedDataParallel. The wire's time is measured in the same run: one TCP stream each way at once, "
                      "with as many bytes as are reduced (`tests/bench/performance/tcp_streams.c`). 2 x 1 ranks are one "
                      "rank on each host, and 2 x 2 ranks are two on each.")
    with namespaces.Link(options.rate) as hosts:
        wire_limit(section, hosts, options)
        beside_pytorch(section, hosts, options)
        overlap(section, hosts, options)


def wire_limit(section, hosts, options):
    lines, worst = [], (0, 0)
    for size in SIZES[:1] if options.quick else SIZES:
        def ours(size=size):
            row, = job_rows(section, hosts, options, 1, ["allreduce", "--backend", options.link_backend, "--bytes", size,
                                                         "--seconds", seconds(options)])
            return row["median_ms"]

        wire, mine = running.in_turns(rounds(options), [lambda size=size: wire_ms(hosts, options, size, 5), ours])
        lines.append([running.bytes_text(size), ms(wire), ms(mine), f"{mine / wire:.3f}"])
        worst = max(worst, (mine / wire, size))
    section.say("Allreduce, 2 x 1 ranks:")
    section.table(["Bytes", "Wire", f"libddp {options.link_backend}", "Times the wire"], lines)
    section.judge(f"2 x 1 ranks: within {100 * (OVER_WIRE - 1):.0f} % of the wire's time",
                  f"{worst[0]:.3f} times ({running.bytes_text(worst[1])})", worst[0] <= OVER_WIRE)


def pytorch_ms(hosts, options, model, cap, mode):
    """A step of PyTorch's DDP on 2 x 2 ranks."""
    script = str(running.ROOT / "tools/bench/peers/replay.py")
    command = [options.python, script, "--model", model, "--bucket-mb", cap, "--modes", mode, "--seconds",
               str(seconds(options))]
    places = [processes.Place(tuple(hosts.prefix(host)), hosts.interfaces[host]) for host in range(2)]
    with tempfile.TemporaryFile("w+") as output:
        status = processes.run_ranks(command, 4, options.timeout, places, output)
        output.seek(0)
        rows = running.rows_of(output.read())
    if status != 0 or not rows:
        raise running.Missing(f"PyTorch is not here, or failed: status {status} of {' '.join(command)}")
    return rows[0]["median_ms"]


def beside_pytorch(section, hosts, options):
    criterion = (f"2 x 2 ranks, resnet50: hierarchical with the best number of round robin groups takes at most {OF_PYTORCH:g} of PyTorch "
                 "DDP's time")
    backend = options.hierarchical
    if not running.works(options, backend):
        section.judge(criterion, f"this build has no backend {backend}", None)
        return
    with tempfile.NamedTemporaryFile("w", prefix="ddp-model-") as model:
        model.write(processes.run([options.bench, "models", "--model", "resnet50"], 60)[1])
        model.flush()
        settings = [("25", "view")] if options.quick else [("25", "view"), ("5", "view"), ("25", "copy")]
        theirs = [lambda cap=cap, mode=mode: pytorch_ms(hosts, options, model.name, cap, mode) for cap, mode in settings]
        ours = [lambda groups=groups: replay_ms(section, hosts, options, 2, backend, groups=groups) for groups in GROUPS]
        try:
            times = running.in_turns(rounds(options), [*ours, *theirs])
        except running.Missing as reason:
            section.judge(criterion, str(reason), None)
            return
    mine, others = times[:len(GROUPS)], times[len(GROUPS):]
    section.say("A step of resnet50 without compute, 2 x 2 ranks:")
    section.table(["", "Setting", "Step"], [
        *([f"libddp {backend}", f"view, {BUCKET_MB} MiB, {groups} round robin group{'s' * (groups > 1)}", ms(time)]
          for groups, time in zip(GROUPS, mine)),
        *(["PyTorch DDP", f"{mode}, {cap} MiB", ms(time)] for (cap, mode), time in zip(settings, others))])
    share = min(mine) / min(others)
    section.judge(criterion, f"{ms(min(mine))} ms of {ms(min(others))} ms: {share:.3f}", share <= OF_PYTORCH)


def without_uses(text):
    """A model whose work is spread by size alone: without how often each element is used."""
    return "\n".join(line.split("@")[0] for line in text.splitlines()) + "\n"


def overlap(section, hosts, options):
    by_size = pathlib.Path(options.bench).with_name("resnet50-by-size")
    by_size.write_text(without_uses(processes.run([options.bench, "models", "--model", "resnet50"], 60)[1]))
    cases = [(compute, spread, model, groups) for compute in (400, 800) for spread, model, groups in (
        (BY_WORK, "resnet50", 1), (BY_WORK, "resnet50", 2), (BY_WORK, "resnet50", 4), ("by size", by_size, 1))]
    wire, *steps = running.in_turns(rounds(options), [lambda: wire_ms(hosts, options, RESNET50_BYTES, 3), *(
        lambda compute=compute, model=model, groups=groups: replay_ms(
            section, hosts, options, 1, options.link_backend, compute, groups, model)
        for compute, _, model, groups in cases)])
    section.say(f"A step of resnet50 with compute, 2 x 1 ranks. The wire alone takes {ms(wire)} ms. The two ranks keep both processors "
                "busy, and encryption takes some of their time (`wire=encrypted`, the default). The compute is spread over the gradients in one "
                "of two ways:")
    section.say(f"- {BY_WORK}: by the multiply-adds of their layers. The last layers have most of the bytes and little of the work.\n"
                "- by size (`ddp-bench models | cut -d@ -f1`), as no such network works. The first gradient alone is then 8 % of all, "
                "and nothing can be sent before it. Even if communication needed no processor, no step could take less than 8 % of "
                "the compute plus the wire's time: the column \"Least\".")
    table, over = [], {}
    for (compute, spread, _, groups), step in zip(cases, steps):
        longer = max(compute, wire)
        first = 0 if spread == BY_WORK else compute * LAST_LAYER_BYTES / RESNET50_BYTES
        table.append([compute, spread, groups, ms(step), f"{step / longer:.3f}", f"{max(compute, first + wire) / longer:.3f}"])
        if spread == BY_WORK:
            over.setdefault(compute, []).append(step / longer)
    section.table(["Compute", "Spread", "Round robin groups", "Step", "Times the longer of compute and wire", "Least"], table)
    for compute, ratios in over.items():
        section.judge(f"2 x 1 ranks, {compute} ms of compute, with the best number of round robin groups: a step takes at most "
                      f"{OVERLAPPED:g} times the longer of compute and wire", f"{min(ratios):.3f} times",
                      min(ratios) <= OVERLAPPED)


def tcp_ms(hosts, options, size):
    """With the number of streams that is best for so many bytes."""
    times = 5 if options.quick else max(5, min(200, (1 << 30) // size))
    return min(wire_ms(hosts, options, size, times, streams) for streams in (1, 2, 4))


def gcm_ms(section, size):
    """The time of AES-128-GCM alone to encrypt and decrypt the bytes that a rank sends and receives, on one processor; None without openssl."""
    command = ["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm", "-mr"]
    try:
        status, output = processes.run(command, 60)
    except OSError:
        return None
    speeds = [line.split(":")[-1] for line in output.splitlines() if line.startswith("+F:")]
    if status != 0 or not speeds:
        return None
    section.command(command)
    return 1e3 * 2 * size / float(speeds[0])


def fast_link(section, options):
    """As fast as the kernel passes bytes from one namespace to the other."""
    require_link(options)
    backends = {"plain": "tcp:wire=plain", "encrypted": "tcp:wire=encrypted", "Gloo": "gloo"}
    section.open_with(
        "Allreduce between two hosts, 2 x 1 ranks, on a link that nothing slows: both ends and the kernel between them share the "
        f"{len(os.sched_getaffinity(0))} processors of this machine. Beside it TCP alone (`tests/bench/performance/tcp_streams.c`), which "
        "sends as many bytes each way over 1, 2 or 4 connections, whichever is best, and adds nothing up.")
    sizes = [FAST_SIZES[0], 26214400] if options.quick else FAST_SIZES
    lines, by_size = [], {}
    with namespaces.Link(None) as hosts:
        for size in sizes:
            def ours(backend, size=size):
                row, = job_rows(section, hosts, options, 1, ["allreduce", "--backend", backend, "--bytes", size, "--seconds",
                                                             1 if options.quick else 3])
                return row["median_ms"]

            found = running.in_turns(rounds(options), [lambda size=size: tcp_ms(hosts, options, size), *(
                lambda backend=backend: ours(backend) for backend in backends.values())])
            by_size[size] = dict(zip(["TCP", *backends], found))
            lines.append([running.bytes_text(size), *map(ms, found)])
    section.table(["Bytes", "TCP alone", *(f"libddp tcp, {name}" for name in list(backends)[:2]), "libddp gloo"], lines)
    section.commands = [command for command in section.commands if "--bytes 26214400" in command]  # the others differ in the number
    judge_fast_link(section, by_size)


def judge_fast_link(section, by_size):
    middle, small = by_size[26214400], by_size[FAST_SIZES[0]]
    section.judge(f"25 MiB, plain: at least {100 * OF_TCP:.0f} % of what TCP alone does",
                  f"{100 * middle['TCP'] / middle['plain']:.0f} %", middle["TCP"] / middle["plain"] >= OF_TCP)
    ratio, size = min((row["Gloo"] / row["plain"], size) for size, row in by_size.items())
    section.judge("plain is faster than Gloo at every size", f"at least {ratio:.2f} times as fast ({running.bytes_text(size)})", ratio > 1)
    section.judge(f"4 KiB, plain: at most {OF_GLOO_AT_4_KIB:g} of Gloo's time", f"{small['plain'] / small['Gloo']:.3f}",
                  small["plain"] / small["Gloo"] <= OF_GLOO_AT_4_KIB)
    section.judge(f"25 MiB, encrypted: at least {100 * ENCRYPTED_OF_PLAIN:.0f} % of plain", f"{100 * middle['plain'] / middle['encrypted']:.0f} %",
                  middle["plain"] / middle["encrypted"] >= ENCRYPTED_OF_PLAIN)
    alone = gcm_ms(section, 26214400)
    if alone is not None:
        section.note("for comparison: AES-128-GCM alone, for the 25 MiB that a rank encrypts and the 25 MiB that it decrypts",
                     f"{ms(alone)} ms")


def round_robin(section, options):
    """Round robin groups, on one host and on the link."""
    if not running.works(options, "gloo", "--groups", "2"):
        raise running.Missing("this build has no round robin groups")
    numbers = (1, 2, 4)
    command = ["replay", "--model", "resnet50", "--backend", "gloo", "--bucket-mb", 5, "--groups"]

    def here(number):
        row, = running.run(section, [options.bench, *command, number, "--world", 2, "--seconds",
                                     0.5 if options.quick else 3, "--json"], options.timeout)
        return row["median_ms"]

    def linked(hosts, number):
        row, = job_rows(section, hosts, options, 1, [*command, number, "--seconds", seconds(options)])
        return row["median_ms"]

    local = running.in_turns(rounds(options), [lambda number=number: here(number) for number in numbers])
    slow = [None] * len(numbers)
    reason = namespaces.why_impossible(options.rate)
    if not reason:
        with namespaces.Link(options.rate) as hosts:
            slow = running.in_turns(rounds(options), [lambda number=number: linked(hosts, number) for number in numbers])
    section.open_with("A step of resnet50 over Gloo without compute, with 1, 2 and 4 round robin groups. There is no criterion.")
    section.table(["Groups", "One host, 2 ranks", f"Two hosts, {options.rate}"], [
        [number, ms(one), "" if two is None else ms(two)] for number, one, two in zip(numbers, local, slow)])
