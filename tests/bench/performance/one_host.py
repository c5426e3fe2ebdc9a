"""The sections that need one host only."""
from statistics import median

import running
from running import bytes_text, ms

K, M = 1 << 10, 1 << 20
SIZES = [4 * K, 16 * K, 64 * K, 256 * K, M, 4 * M, 16 * M, 26214400, 64 * M, 102228128, 240 * M]
QUICK_SIZES = [4 * K, M, 26214400]
FASTER_THAN_GLOO, FASTER_THAN_MPI, OF_LIMIT, LIMIT_FROM = 8.0, 1.3, 0.70, 4 * M
OF_PYTORCH = 0.1
OVERHEAD_MS = 0.3
CROWD = 3.0
MOST_TAIL, TAIL_SIZES = 5.0, [4 * K, 64 * K, M]


def allreduce(section, options):
    sizes = QUICK_SIZES if options.quick else SIZES
    command = [options.bench, "peers", "allreduce", "--world", 2, "--backend", options.backend, "--memory", "group,own",
               "--bytes", ",".join(map(str, sizes)), "--rounds", 1 if options.quick else 5,
               "--seconds", 0.1 if options.quick else 0.3, "--python", options.python, "--json"]
    if options.page:
        command += ["--svg", options.page.with_suffix(".svg")]
    rows = [row for row in running.run(section, command, options.timeout) if row["best"]]
    by_peer = {}
    for row in rows:
        by_peer.setdefault(row["peer"], {})[row["bytes"]] = row
    ours = next(iter(by_peer))
    section.open_with(
        f"An allreduce of {bytes_text(sizes[0])} to {bytes_text(sizes[-1])} between 2 ranks of one host, beside Gloo, Open MPI and "
        "PyTorch (`torch.distributed` over Gloo), each with its best setting at each size. libddp's data lies in the group's "
        "memory (`ddp_mem_alloc`), where it works fastest, or in own memory, which is any other.")
    section.open_with(
        "The limit of the memory is the time that this machine needs for the memory traffic alone: each rank reads and writes as "
        f"many bytes as are reduced, and no rank waits. For large messages, from {bytes_text(LIMIT_FROM)} on, the bar is the share "
        "of this limit that libddp reaches.")
    if options.page:
        section.say(f"![Time against bytes]({options.page.with_suffix('.svg').name})")
    section.say(f"Milliseconds, and in parentheses the ratio to {ours}:")
    section.table(["Bytes", *by_peer, "Limit of the memory", "Share of the limit"],
                  [allreduce_line(size, by_peer, ours) for size in by_peer[ours]])
    judge_allreduce(section, by_peer, ours)


def allreduce_line(size, by_peer, ours):
    cells = [bytes_text(size)]
    for peer, rows in by_peer.items():
        row = rows.get(size)
        cells.append("" if row is None else ms(row["median_ms"]) + ("" if peer == ours else f" ({row['ratio']:.3g})"))
    row = by_peer[ours][size]
    return [*cells, ms(row["limit_ms"]), f"{100 * row['fraction']:.0f} %"]


def judge_allreduce(section, by_peer, ours):
    large = [(row["fraction"], size) for size, row in by_peer[ours].items() if size >= LIMIT_FROM]
    fraction, size = min(large)
    section.judge(f"from {bytes_text(LIMIT_FROM)} at least {100 * OF_LIMIT:g} % of the limit of the memory",
                  f"at least {100 * fraction:.0f} % ({bytes_text(size)})", fraction >= OF_LIMIT)
    for peer, least in (("Open MPI", FASTER_THAN_MPI), ("Gloo", FASTER_THAN_GLOO)):
        criterion = f"at every size at least {least:g} times as fast as {peer} at its best"
        if peer not in by_peer:
            section.judge(criterion, f"{peer} is not here", None)
            continue
        ratio, size = min((row["ratio"], size) for size, row in by_peer[peer].items())
        section.judge(criterion, f"at least {ratio:.3g} times ({bytes_text(size)})", ratio >= least)
        most, size = min((row["median_ms"] / by_peer[ours][size]["limit_ms"], size) for size, row in by_peer[peer].items())
        section.note(f"for comparison: the limit of the memory against {peer} at its best",
                     f"at least {most:.3g} times as fast ({bytes_text(size)})")
    for peer, rows in by_peer.items():
        if peer.startswith("libddp") and peer != ours:
            note_other(section, by_peer, peer, rows)


def note_other(section, by_peer, peer, rows):
    """How libddp compares in memory of another kind."""
    for other in ("Open MPI", "Gloo"):
        if other in by_peer:
            ratio, size = min((by_peer[other][size]["median_ms"] / row["median_ms"], size) for size, row in rows.items())
            section.note(f"for comparison: {peer}, against {other} at its best",
                         f"at least {ratio:.3g} times as fast ({bytes_text(size)})")


def tail(section, options):
    section.open_with("Small allreduces between 2 ranks of one host while something else wants the processors. Messages lie in the "
                      "group's memory, and times are microseconds. The tail is the 99th percentile divided by the median.")
    rounds = 1 if options.quick else 5
    tail_beside(section, options, "a Gloo group of the same ranks", f"{options.backend},gloo", 0, rounds)
    tail_beside(section, options, "a busy loop", options.backend, 1, rounds)


def tail_beside(section, options, what, backends, loops, rounds):
    command = [options.bench, "allreduce", "--world", 2, "--backend", backends, "--memory", "group", "--bytes",
               ",".join(map(str, TAIL_SIZES)), "--iters", 50 if options.quick else 2000, "--json"]
    found = {size: [] for size in TAIL_SIZES}
    for _ in range(rounds):  # where the scheduler puts the ranks is the same for much of a round
        with running.busy_loops(loops):
            rows = running.run(section, command, options.timeout)
        for size, row in zip(TAIL_SIZES, rows[::len(rows) // len(TAIL_SIZES)]):
            found[size].append(row)
    section.table([f"Beside {what}", "Median", "Tail", "Worst round's tail"],
                  [[bytes_text(size), f"{1e3 * running.median(row['median_ms'] for row in rows):.3g}",
                    f"{running.median(row['tail'] for row in rows):.3g}", f"{max(row['tail'] for row in rows):.3g}"]
                   for size, rows in found.items()])
    most, size = max((running.median(row["tail"] for row in rows), size) for size, rows in found.items())
    section.judge(f"beside {what}, from {bytes_text(TAIL_SIZES[0])} to {bytes_text(TAIL_SIZES[-1])}: the 99th percentile at most "
                  f"{MOST_TAIL:g} times the median", f"at most {most:.3g} times ({bytes_text(size)})", most <= MOST_TAIL)


def replay_rows(section, options, model, world, rounds, seconds, caps):
    return running.run(section, [
        options.bench, "peers", "replay", "--model", model, "--compute-ms", 0, "--world", world, "--backend",
        options.backend, "--modes", "view", "--bucket-mb", caps, "--rounds", rounds, "--seconds", seconds, "--python",
        options.python, "--json"], options.timeout)


def best_over_local(rows):
    """The best of each side. PyTorch's "direct" is left out: no PyTorch program can do it."""
    sides = {}
    for row in rows:
        if not row["setting"].startswith("direct"):
            sides.setdefault(row["peer"], []).append(row)
    return {peer: min(same, key=lambda row: row["over_local_ms"]) for peer, same in sides.items()}


def replay_table(section, rows):
    best = best_over_local(rows).values()
    section.table(["", "Setting", "Step", "Local loop", "Over the local loop"],
                  [[row["peer"], row["setting"] + (", best" if row in best else ""), ms(row["median_ms"]),
                    ms(row["local_ms"]), ms(row["over_local_ms"])] for row in rows])


def replay(section, options):
    section.open_with("A step that writes the gradients of a model in the order of a backward pass, without compute, on 2 ranks of one "
                      "host, beside PyTorch's DistributedDataParallel. The local loop is the same without communication. The criterion "
                      "compares the time over the local loop, each side with its best setting.")
    section.open_with("libddp's gradients live in the buckets (view). PyTorch's are copied (copy), live in the buckets (view), or are "
                      "written into the buckets directly (direct), which no PyTorch program does and the criterion leaves out.")
    for model, rounds, seconds, caps in (("resnet50", 5, 2, "1,5,25"), ("bert-base", 3, 4, "1,25")):
        if options.quick:
            rounds, seconds, caps = 1, 0.1, "25"
        rows = replay_rows(section, options, model, 2, rounds, seconds, caps)
        section.say(f"{model}:")
        replay_table(section, rows)
        ours, *peers = best_over_local(rows).values()
        criterion = f"{model}: time over the local loop at most {OF_PYTORCH:g} of PyTorch DDP's"
        if not peers:
            section.judge(criterion, "PyTorch is not here", None)
            continue
        share = ours["over_local_ms"] / peers[0]["over_local_ms"]
        section.judge(criterion, f"{ms(ours['over_local_ms'])} ms of {ms(peers[0]['over_local_ms'])} ms: {share:.3f}",
                      share <= OF_PYTORCH)


def overhead(section, options):
    rounds, seconds = (1, 0.2) if options.quick else (5, 2)
    rows = replay_rows(section, options, "2000x256", 1, rounds, seconds, "25")
    section.open_with("A step of 2,000 parameters of 256 floats on 1 rank, beside PyTorch's DistributedDataParallel: what the library "
                      "itself costs.")
    replay_table(section, rows)
    ours = next(iter(best_over_local(rows).values()))["over_local_ms"]
    section.judge(f"at most {OVERHEAD_MS:g} ms over the local loop", f"{ours:.3f} ms", ours <= OVERHEAD_MS)


def crowd(section, options):
    """More ranks than cores."""
    def measure(world):
        row, = running.run(section, [
            options.bench, "allreduce", "--world", world, "--backend", options.backend, "--memory", "group", "--bytes",
            26214400, "--seconds", 0.5 if options.quick else 2, "--json"], options.timeout)
        return row["median_ms"]

    few, many = running.in_turns(1 if options.quick else 5, [lambda: measure(2), lambda: measure(8)])
    share = many / (4 * few)
    section.open_with(f"An allreduce of 26,214,400 bytes on the same cores: {ms(few)} ms with 2 ranks, {ms(many)} ms with 8 ranks, whose "
                      "traffic is 4 times as large.")
    section.judge(f"8 ranks take at most {CROWD:g} times as long as 2 ranks would take for 4 times the traffic",
                  f"{share:.2f} times", share <= CROWD)


def join(section, options):
    """The descriptors and threads of a rank of a large job, and the time for all to join."""
    world, backends, figures = 8 if options.quick else 64, ("tcp", "gloo"), ("median_ms", "descriptors", "threads")

    def measure(backend):
        row, = running.run(section, [options.bench, "join", "--world", world, "--backend", backend, "--json"], options.timeout)
        return [row[figure] for figure in figures]

    rounds = [[measure(backend) for backend in backends] for _ in range(1 if options.quick else 5)]
    ours, gloo = ([median(values) for values in zip(*side)] for side in zip(*rounds))
    section.open_with(f"{world} ranks of one host join a group, over libddp's tcp and over Gloo. The time goes from the moment when the last "
                      "rank begins until the last one has joined. Descriptors and threads are what that has added to a rank, at most.")
    section.table(["Backend", "Milliseconds", "Descriptors", "Threads"], [
        [f"libddp {backend}", ms(time), *counts] for backend, (time, *counts) in zip(backends, (ours, gloo))])
    for what, mine, theirs in zip(("descriptors", "the time to join"), (ours[1], ours[0]), (gloo[1], gloo[0])):
        section.judge(f"{what}: at most a third of Gloo's", f"{mine / theirs:.3f}", 3 * mine <= theirs)
