"""Faults while a group is joined: a scenario for each seed, and the errors that its ranks may report."""
import random
import re

STORES = ("tcp", "file", "launcher")
BACKENDS = ("shm", "tcp", "gloo", "hierarchical", "shm x3", "tcp x2")  # "x3": a round robin group of three
CLASSES = ("kill", "kill at", "stop", "stop at", "stop and continue", "cut", "stall", "kill by bytes", "stop by bytes", "descriptors",
           "memory", "tasks", "file size", "locked memory", "call fails", "options", "two of one rank", "absent")
TIMEOUT_MS = 3000
# The time that a call may take beyond the timeout of its group, to learn who is to blame: the store's answer (1 s), the
# verdict (1 s), the others' answers (0.5 s), and the grace of the store's client (2 s).
GRACE_MS = 4500
# Freeing takes 1 s at most, and half a second more where a rank that was cut off from this one's store still has to read the verdict.
FREE_MS = 1500

# Functions of the C library that take part in a join, by what needs them, and the errors with which they may really fail.
POINTS = ("socket", "connect", "bind", "listen", "accept4", "send", "sendmsg", "recvmsg", "write", "pwrite64", "memfd_create", "epoll_create1",
          "eventfd", "ftruncate64", "pthread_create")
FAILURES = {"socket": ("EMFILE", "ENOBUFS"), "epoll_create1": ("EMFILE", "ENOMEM"), "eventfd": ("EMFILE", "ENOMEM"),
            "memfd_create": ("EMFILE", "ENOMEM"), "ftruncate64": ("ENOMEM", "ENOSPC"), "pthread_create": ("EAGAIN",),
            "accept4": ("EMFILE", "ENOBUFS"), "pwrite64": ("ENOSPC",)}
TIMES = {"pthread_create": 14, "socket": 14, "eventfd": 8, "epoll_create1": 6, "sendmsg": 24, "send": 12, "write": 40, "pwrite64": 30}


class Scenario:
    """Made of nothing but its seed, or of what is given: one that was found once, or where every point is tried."""

    def __init__(self, seed, sanitized="", given=None):
        self.seed = seed
        source = random.Random(seed)
        # Every class, store and backend comes often; their combinations vary with the seed.
        self.kind = CLASSES[seed % len(CLASSES)]
        self.store = source.choice(STORES)
        self.backend = source.choice(BACKENDS)
        self.world = source.randint(2, 5)
        self.victim = source.randrange(self.world)
        self.settings = {}  # of the victim
        self.signal_after = self.continue_after = None  # seconds
        self.proxy = None  # direction, bytes, action
        self.uid = 0
        # How long after the others each rank begins.
        self.stagger = [source.choice((0, 0, 0, source.uniform(0, 0.02), source.uniform(0, 0.4))) for _ in range(self.world)]
        self.hold = source.random() < 0.6  # whether a rank that has an error stays
        self.count = source.choice((1, 1000, 300_000))
        if given:
            self.stagger, self.hold, self.count = [0] * given["world"], True, 1000
            vars(self).update(given)
        else:
            getattr(self, "_" + self.kind.replace(" ", "_"))(source, sanitized)
        self.name = f"{self.kind}: {self.store}, {self.backend}, world {self.world}, rank {self.victim}{self._details()}"

    def _moment(self, source):
        """Mostly within the few milliseconds of a join."""
        return source.choice((source.uniform(0, 0.01), source.uniform(0, 0.05), source.uniform(0, 0.5))) + self.stagger[self.victim]

    def _point(self, source, action, names=POINTS):
        function = source.choice(names)
        self.settings["point"] = f"{function}:{source.randint(1, TIMES.get(function, 4))}:{action}"

    def _by_bytes(self, source, action):
        if self.store == "file":
            self.store = "launcher"
        if self.store == "tcp":
            self.victim = source.randint(1, self.world - 1)  # rank 0's connection is its own
        self.proxy = (source.choice(("up", "down")), source.randint(0, 4000), action)

    def _kill(self, source, _):
        self.signal_after = self._moment(source)

    def _kill_at(self, source, sanitized):
        if sanitized:
            return self._kill(source, sanitized)
        self._point(source, "kill")

    def _stop(self, source, _):
        self.signal_after = self._moment(source)

    def _stop_at(self, source, sanitized):
        if sanitized:
            return self._stop(source, sanitized)
        self._point(source, "stop")

    def _stop_and_continue(self, source, _):
        self.signal_after = self._moment(source)
        self.continue_after = source.choice((source.uniform(0, 0.3), source.uniform(0.5, 1.5), source.uniform(3.5, 5)))

    def _cut(self, source, _):
        self._by_bytes(source, source.choice(("rst", "fin", "half")))

    def _stall(self, source, _):
        self._by_bytes(source, "stall")

    def _kill_by_bytes(self, source, _):
        self._by_bytes(source, "kill")

    def _stop_by_bytes(self, source, _):
        self._by_bytes(source, "stop")

    def _descriptors(self, source, _):
        self.settings["limit"] = f"nofile:{source.choice((source.randint(0, 14), source.randint(0, 40)))}"

    def _memory(self, source, sanitized):
        if sanitized:  # their shadow is larger than any limit
            return self._descriptors(source, sanitized)
        self.settings["limit"] = f"{source.choice(('as', 'data'))}:{int(2 ** source.uniform(0, 19))}"

    def _tasks(self, source, _):
        self.settings["limit"] = f"nproc:{source.randint(0, 12 * self.world)}"
        self.uid = 30_000 + self.seed % 30_000

    def _file_size(self, source, _):
        self.settings["limit"] = f"fsize:{int(2 ** source.uniform(0, 26))}"

    def _locked_memory(self, source, _):
        self.settings["limit"] = f"memlock:{source.choice((0, 4096, 65536))}"

    def _call_fails(self, source, sanitized):
        if sanitized:
            return self._descriptors(source, sanitized)
        function = source.choice(sorted(FAILURES))
        self._point(source, source.choice(FAILURES[function]), (function,))

    def _options(self, source, _):
        backend, _, groups = self.backend.partition(" x")
        others = [name for name in ("shm", "tcp", "gloo", "hierarchical") if name != backend]
        self.settings.update(source.choice((
            {"world": self.world + 1}, {"backend": source.choice(others)}, {"groups": int(groups or 1) + 1}, {"flags": 1}, {"name": "other"},
            {"secret": "other"} if self.store != "file" else {"name": "other"}, {"backend": "nonesuch"}, {"options": "nonesuch=1"}, {"timeout": 1500})))

    def _two_of_one_rank(self, source, _):
        self.second_after = source.choice((0, source.uniform(0, 0.02), source.uniform(0, 0.2)))

    def _absent(self, source, _):
        pass

    def _details(self):
        parts = [f"{key}={value}" for key, value in self.settings.items()]
        if self.signal_after is not None:
            parts.append(f"after {self.signal_after * 1000:.1f} ms")
        if self.continue_after is not None:
            parts.append(f"for {self.continue_after * 1000:.0f} ms")
        if self.proxy:
            parts.append("{2} after {1} bytes {0}".format(*self.proxy))
        if any(self.stagger):
            parts.append("late " + "/".join(f"{1000 * late:.0f}" for late in self.stagger))
        return ", " + ", ".join(parts + ([] if self.hold else ["no hold"])) if parts else ""

    @property
    def groups(self):
        return int(self.backend.partition(" x")[2] or 1)

    @property
    def must_succeed(self):
        return self.kind in ("locked memory", "two of one rank") or self.stops_briefly

    @property
    def stops_briefly(self):
        return self.kind == "stop and continue" and self.continue_after < 2

    def timeout_ms(self, slack):
        """The timeout of the groups. A slow build has as much longer where every rank is to succeed, and where all need an answer of
        ddprun, which is as slow. Elsewhere many wait for the timeout."""
        return TIMEOUT_MS * max(1, slack if self.must_succeed or self.store == "launcher" else slack / 2)

    @property
    def may_end_by_signal(self):
        """Whether the victim is killed: by the scenario, or by the driver once nothing more is expected of it."""
        return self.kind in ("kill", "kill at", "kill by bytes") or self.stays_stopped

    @property
    def stays_stopped(self):
        return self.kind in ("stop", "stop at", "stop by bytes")


def fixed_scenarios(sanitized=""):
    """Faults at every point of a short stretch, and those that are told apart by where the other ranks are."""

    def add(kind, store, backend, world, victim, **more):
        given.append(dict(kind=kind, store=store, backend=backend, world=world, victim=victim, **more))

    given = []
    # Between the claim of a rank and the end of the join.
    for after in range(0, 1000, 60):
        add("cut", "launcher", "shm", 2, 1, proxy=("up", after, "rst"))
    for left in range(16):
        add("descriptors", "file", "shm", 3, 0, settings={"limit": f"nofile:{left}"})
        add("descriptors", "launcher", "tcp", 3, 1, settings={"limit": f"nofile:{left + 4}"})
    if not sanitized:
        # The victim does not take over the shared memory of the second of three groups: rank 0 waits for it there, the others have
        # gone on to the third and wait for both.
        add("kill at", "file", "shm x3", 4, 2, settings={"point": "recvmsg:2:kill"})
        add("stop at", "file", "shm x3", 4, 2, settings={"point": "recvmsg:2:stop"})
        # The maker of the shared memory, while it hands it over.
        add("kill at", "launcher", "shm", 2, 0, settings={"point": "accept4:1:kill"})
        for call in range(1, 16):
            add("call fails", "tcp", "tcp", 3, 1, settings={"point": f"pthread_create:{call}:EAGAIN"})
    return [Scenario(number, sanitized, one) for number, one in enumerate(given)]


class Outcome:
    """The result of one process of a scenario."""

    def __init__(self, rank, victim, result, status, output, hung="", freed_ms=None):
        self.rank, self.victim, self.result, self.status, self.output, self.hung = rank, victim, result, status, output, hung
        self.freed_ms = freed_ms

    @property
    def fine(self):
        return self.result is not None and self.result["at"] == "all"

    def __str__(self):
        who = f"rank {self.rank}{' (victim)' if self.victim else ''}"
        if self.result is None:
            return f"{who}: no result, status {self.status}\n{self.output[-3000:]}\n{self.hung[-9000:]}"
        if self.fine:
            return f"{who}: fine, longest call {self.result['ms']:.0f} ms" + ("" if self.status == 0 else f", status {self.status}")
        return "{}: {at} failed after {ms:.0f} ms, {status}, object {object}, names {named}: {message}".format(who, **self.result) + (
            "" if self.status == 0 else f"\n        ended with status {self.status}\n{self.output[-3000:]}\n{self.hung[-9000:]}")


def named_in(text):
    """The ranks that a text names, but for general advice."""
    text = re.sub(r"\(rank 0 or the launcher\)", "", text)
    found = set()
    for match in re.finditer(r"(?:\branks? |within \d+ ms: )(\d+(?:(?:, | and )\d+)*)", text):
        found.update(int(number) for number in re.findall(r"\d+", match.group(1)))
    return found


def judge(scenario, outcomes, slack=1.0):
    """Complaints as (class, text): abort, hang, slow, object, empty, name, disagree, mixed, values."""
    complaints = []

    def complain(kind, outcome, text):
        complaints.append((kind, f"{f'rank {outcome.rank}: ' if outcome else ''}{text}"))

    for o in outcomes:
        # A store that is stopped holds up those that leave it, and a rank that is stopped is not to blame for its time.
        if o.freed_ms and o.freed_ms > FREE_MS * slack * scenario.groups and not scenario.kind.startswith("stop"):
            complain("slow", o, f"freeing took {o.freed_ms:.0f} ms")
        if o.hung:
            complain("hang", o, "no result in time, or no end")
        elif o.status is not None and o.status < 0 and not (o.victim and scenario.may_end_by_signal):
            complain("abort", o, f"ended by signal {-o.status}")
        elif o.status not in (0, None) and not (o.victim and scenario.may_end_by_signal):
            complain("abort", o, f"ended with status {o.status}")
        if o.result is None:
            continue
        r = o.result
        longest = scenario.timeout_ms(slack) * (5 if r["at"] == "create" and " x" in scenario.backend else 1) + GRACE_MS * slack
        if r["ms"] > longest and not (o.victim and scenario.kind == "stop and continue"):
            complain("slow", o, f"{r['at']} took {r['ms']:.0f} ms")
        if o.fine:
            continue
        if not r["object"] or r["code"] != r["status"]:
            complain("object", o, f"{r['status']} without its error object")
        message = r["message"].strip()
        if r["object"] and (not message or re.search(r": *;|: *$|\branks *(;|$)", message)):
            complain("empty", o, f"the message says nothing: '{message}'")
        if r["status"] == "DDP_ERROR_INTERNAL":
            complain("values" if "wrong values" in message else "internal", o, message)
        complaints += [(kind, f"rank {o.rank}: {text}") for kind, text in judge_name(scenario, o)]

    survivors = [o for o in outcomes if not o.victim and o.result]
    failed = [o for o in survivors if not o.fine]
    if failed and len(failed) < len(survivors) and any(o.result["at"] != "barrier" for o in failed):
        complain("mixed", None, "some ranks succeeded, others failed in " + ", ".join(sorted({o.result["at"] for o in failed})))
    names = {o.result["named"] for o in failed if not unreachable(o) and not alone(scenario, o)}
    if len(names) > 1 and scenario.settings.get("name") is None:
        complain("disagree", None, f"ranks name {sorted(names)}")
    # A host of the store that was stopped until others gave up finds nothing but that they have not come.
    given_up = {o.rank for o in outcomes if o.result and not o.fine and unreachable(o)}
    if scenario.kind == "stop and continue" and scenario.victim == 0 and scenario.store == "tcp":
        late = {o.rank for o in outcomes if o.result and o.result["named"] in given_up}
        complaints = [c for c in complaints if c[0] != "name" or int(c[1].split()[1].rstrip(":")) not in late]
    complaints += expectations(scenario, outcomes, survivors, failed)
    return complaints


def unreachable(o):
    return o.result["named"] == -1 and "was not reached" in o.result["message"]


def outcomes_before(scenario, o):
    """The ranks that began before this one, and may have left."""
    return [rank for rank, late in enumerate(scenario.stagger) if late < scenario.stagger[o.rank] and rank != scenario.victim]


def alone(scenario, o):
    """A rank that came when the others had left, and the file with them: of its group it knows nothing."""
    others = set(range(scenario.world)) - {o.rank}
    return scenario.store == "file" and outcomes_before(scenario, o) and named_in(o.result["message"]) == others


def judge_name(scenario, o):
    r = o.result
    named, text = r["named"], named_in(r["message"])
    if named >= 0 and r["status"] == "DDP_ERROR_ALREADY_EXISTS":
        return
    if named >= 0 and named not in text:
        yield "name", f"rank {named} is named, but not in the text"
    if r["status"] == "DDP_ERROR_MISMATCH":
        if scenario.victim not in text or named not in text:
            yield "name", f"a mismatch names {named}, its text {sorted(text)}"
    elif o.victim:
        # A rank whose connection carries nothing any more sees a store that does not answer.
        blamed = named not in (-1, scenario.victim)
        cut = scenario.proxy and scenario.proxy[2] == "stall" and named == 0
        apart = "name" in scenario.settings or "secret" in scenario.settings  # it meets nobody
        # One that wakes up when all have gone, and the file with them, finds nobody.
        woken = scenario.kind == "stop and continue" and scenario.store == "file" and len(text) == scenario.world - 1
        if blamed and not cut and not apart and not woken and scenario.kind != "two of one rank":
            yield "name", f"the faulty rank blames rank {named}"
    elif named == -1:
        secret = scenario.victim == 0 and r["status"] == "DDP_ERROR_PERMISSION_DENIED"
        # Nobody can tell a host of the store that never came from one that has left, as all did after a failure.
        if not secret and not (unreachable(o) and (scenario.victim == 0 or len(outcomes_before(scenario, o)) > 0)):
            yield "name", "nobody is named"
    elif named != scenario.victim and not alone(scenario, o):
        yield "name", f"rank {named} is blamed, but rank {scenario.victim} is the cause"


def expectations(scenario, outcomes, survivors, failed):
    """The events that must happen in certain classes."""
    kind = scenario.kind
    if kind == "two of one rank":
        refused = [o for o in outcomes if o.victim and o.result and not o.fine]
        if failed:
            yield "needless", "ranks failed because a process was refused"
        if len(refused) != 1 or refused[0].result["status"] != "DDP_ERROR_ALREADY_EXISTS":
            yield "needless", f"{len(refused)} of the two were refused"
    elif kind == "absent" and len(failed) < len(survivors):
        yield "mixed", "ranks succeeded without one of them"
    elif scenario.stops_briefly and any(not o.fine for o in outcomes):
        yield "needless", "a short stop made ranks fail"
    elif kind == "locked memory" and any(not o.fine for o in outcomes):
        yield "needless", "locked memory is not needed"
    elif kind == "options" and not any(not o.fine for o in outcomes) and "timeout" not in scenario.settings:
        yield "needless", "different options were not noticed"
