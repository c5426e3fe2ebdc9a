"""The store of a large job: how long thousands of clients need to join, to meet and to hear of a key."""
import json
import subprocess
from statistics import median

import running
from running import ms

CLIENTS = (10, 100, 1000, 2000, 5000, 10000)
QUICK = (10, 100)
OF_A_PROCESS = 1000
ROUNDS = 5
MET_MS = 5000.0


def start(options, *arguments):
    return subprocess.Popen([options.clients, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def once(options, count):
    """One store, and so many clients, in processes that begin at the same time."""
    store = start(options, "serve")
    parts = []
    try:
        address = store.stdout.readline().strip()
        for first in range(0, count, OF_A_PROCESS):
            parts.append(start(options, "join", address, first, min(OF_A_PROCESS, count - first), count))
        for part in parts:
            if part.stdout.readline().strip() != "ready":
                raise running.Missing(f"{options.clients} does not start")
        for part in parts:
            part.stdin.write("go\n")
            part.stdin.flush()
        rows = [json.loads(part.stdout.readline() or "{}") for part in parts]
        if not all(rows):
            raise running.Missing(f"a client of {count} failed")
        store.stdin.write("memory\n")
        store.stdin.flush()
        row = {name: max(part[name] for part in rows) for name in ("joined_ms", "met_ms", "heard_ms")}
        row["server_kib"] = int(store.stdout.readline())
        return row
    except OSError as reason:
        raise running.Missing(f"{options.clients} ended early: {reason}") from None
    finally:
        end([store, *parts])


def store(section, options):
    section.open_with("Clients of one tcp store that begin at the same time, on this machine, up to 1,000 in a process: each proves that it "
                      "knows the secret (TLS 1.3), sets a key, waits for all others, and then waits for a key that the last one "
                      "sets. Times are those of the slowest client since all began; the median over rounds. All clients and the store share the "
                      "processors of this machine, which in a real job have machines of their own.")
    section.command([options.clients, "serve"])
    section.command([options.clients, "join", "STORE", "FIRST", "COUNT", "ALL"])
    rows, met = [], {}
    for count in QUICK if options.quick else CLIENTS:
        series = [once(options, count) for _ in range(1 if options.quick else ROUNDS)]
        met[count] = median(row["met_ms"] for row in series)
        rows.append([f"{count:,}", ms(median(row["joined_ms"] for row in series)), ms(met[count]),
                     ms(median(row["heard_ms"] - row["met_ms"] for row in series)), f"{met[count] / count:.3f}",
                     f"{median(row['server_kib'] for row in series) / 1024:.0f} MiB"])
    most = max(met)
    section.judge(f"{most:,} clients join and meet within 5 s", f"{met[most] / 1000:.2f} s", met[most] <= MET_MS)
    section.table(["Clients", "Joined", "All met", "A key, after that", "Milliseconds a client", "Peak memory of the store's process"], rows)
