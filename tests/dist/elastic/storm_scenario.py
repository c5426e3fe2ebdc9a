"""The events of one scenario of the storm, made of its seed alone, and a check of the output of its ranks."""
import dataclasses
import random
import re

KINDS = ("shm", "tcp", "gloo", "hierarchical", "hosts", "etcd")
# Where a process can die (worker.c).
PLACES = ("join", "meet", "rebuild", "step", "finalize", "optimizer", "commit", "committed")
# Between ddp_finalize and ddp_elastic_commit, of programs that call something there.
DOUBTFUL_PLACES = ("finalize", "norm", "optimizer", "loss", "commit")


class Scenario:
    def __init__(self, seed, kinds=KINDS):
        chance = random.Random(seed)
        self.seed = seed
        self.kind = chance.choice(kinds)
        self.world = chance.randrange(2, 7)
        large = chance.random() < 0.15
        self.steps = chance.randrange(30, 60) if large else chance.randrange(60, 200)
        backends = {"hosts": ("tcp", "gloo", "hierarchical"), "etcd": ("tcp", "shm")}.get(self.kind, (self.kind,))
        self.settings = {"backend": chance.choice(backends), "max": self.world, "steps": self.steps,
                         "pause": chance.choice((600, 2000, 5000)), "size": 200_000 if large else chance.choice((100, 2000, 50_000)),
                         "unused": int(chance.random() < 0.3), "rebuild": chance.choice((0, 0, 2, 3, 5))}
        hook = chance.choice(("", "", "", "fp16", "powersgd"))
        if hook:
            self.settings["hook"] = hook
        if hook == "powersgd":
            self.settings["hook-options"] = "rank=2,start=3"
        self.starters = [self.process(chance) for _ in range(self.world)]
        self.events = [self.event(chance) for _ in range(chance.randrange(1, 6))]
        if self.kind == "etcd":
            self.events.insert(chance.randrange(len(self.events) + 1), Event(chance.random() * 0.6, "leader"))
        self.settings["calls"] = chance.choice(("", "", "norm", "loss", "norm,loss"))
        self.settings["contexts"] = chance.choice((1, 1, 2))
        self.settings["accumulate"] = chance.choice((1, 1, 3))

    def process(self, chance):
        """Settings of one process: some die at a place, and some leave."""
        if chance.random() < 0.3:
            place = chance.choice(PLACES)
            once = {"join": 1, "meet": 3}.get(place, self.steps)
            after = chance.choice((0, chance.randrange(300), chance.randrange(50_000)))
            return {"die": place, "die-at": chance.randrange(1, once + 1), "die-after": after}
        if chance.random() < 0.15:
            return {"leave-at": chance.randrange(self.steps)}
        return {}

    def event(self, chance):
        cuts = ("cut", "cut") if self.kind == "hosts" else ()
        what = chance.choice(("kill", "kill", "two", "stop", "join", "join") + cuts)
        event = Event(chance.random() * 0.6, what, chance.random())
        if what == "join":
            event.settings = self.process(chance)
        elif what == "stop":
            event.lasts_s = chance.choice((0.1, 4.0, 6.0))
        elif what == "cut":
            event.lasts_s = chance.choice((0.2, 1.0, 8.0))
        return event

    def reference(self):
        """The end that decides the last line of every rank; None where the worlds do."""
        if self.settings.get("hook") == "powersgd":
            return None
        return {name: self.settings[name] for name in ("steps", "size", "unused", "accumulate")}

    def __str__(self):
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        starters = "; ".join(" ".join(f"{k}={v}" for k, v in one.items()) or "-" for one in self.starters)
        return f"seed {self.seed}: {self.kind}, world {self.world}: {settings}\n  starts: {starters}\n  events: " + \
            "; ".join(map(str, self.events))


class OneKill(Scenario):
    """One of three ranks is killed at a random moment. The program calls something between ddp_finalize and ddp_elastic_commit, so the
    others can be anywhere between these: with none of the step, with all of it, or with a part."""

    def __init__(self, seed, kinds=("shm", "tcp")):
        chance = random.Random(seed)
        self.seed = seed
        self.kind = chance.choice(kinds)
        self.world = 3
        self.steps = chance.randrange(10, 30)
        self.settings = {"backend": self.kind, "max": 3, "min": 2, "steps": self.steps, "pause": chance.choice((300, 1500)),
                         "size": chance.choice((100, 50_000)), "unused": 0, "sums": 1,
                         **chance.choice(({"calls": "loss"}, {"calls": "norm,loss"}, {"contexts": 2}, {"contexts": 2, "calls": "loss"}))}
        self.settings.setdefault("contexts", 1)
        self.starters = [{} for _ in range(self.world)]
        self.events = []
        if chance.random() < 0.4:
            self.events = [Event(chance.random() * 0.3, "kill", chance.random())]
        else:
            at = {"die": chance.choice(DOUBTFUL_PLACES), "die-at": chance.randrange(1, self.steps), "die-after": chance.randrange(2000)}
            self.starters[chance.randrange(self.world)] = at
        self.settings["accumulate"] = chance.choice((1, 1, 4))


class OneStop(OneKill):
    """One of three ranks is stopped at a random moment, for longer than the others wait for it. It comes back as it was in the middle of a
    step that they have undone, and may commit nothing but what they have committed."""

    def __init__(self, seed, kinds=("shm", "tcp", "hierarchical")):
        super().__init__(seed, kinds)
        chance = random.Random(seed)
        self.starters = [{} for _ in range(self.world)]
        self.steps = self.settings["steps"] = 60
        self.settings["min"] = 1  # it may come when the others are done, and begins anew then
        if chance.random() < 0.5:
            self.settings.update(calls="", contexts=1)
        self.events = [Event(chance.random() * 0.4, "stop", chance.random(), chance.choice((4.0, 5.0, 6.5)))]


@dataclasses.dataclass
class Event:
    after_s: float
    what: str
    who: float = 0  # of those that run, from 0 to 1
    lasts_s: float = 0
    settings: dict = dataclasses.field(default_factory=dict)

    def __str__(self):
        return f"{self.after_s:.2f} s {self.what} {self.who:.2f} {self.lasts_s:g} {self.settings or ''}".strip()


ROSTER = re.compile(r"roster (\d+) step (\d+) rank (\d+) of (\d+) ")
APPLIED = re.compile(r"applied (\d+) in (\d+)(?: (\w+))?$")


class History:
    """The rosters and steps that all processes report. Every process does one step after the other; ranks that train together agree;
    and nobody begins a roster behind what one of its members had applied. window: of so many steps the last one applies them all."""

    def __init__(self, steps, window=1):
        self.steps, self.window = steps, window
        self.faults = []
        self.rosters = {}  # number -> [(step, rank, world)]
        self.came_with = {}  # number -> the most that a member had applied, as far as is known
        self.applied = {}  # number -> the most that was applied after it
        self.sums = {}  # step -> {checksum after it: who says so}

    def add(self, name, text):
        """Returns the last roster of the process."""
        number = next_step = None
        for line in text.splitlines():
            if match := ROSTER.match(line):
                number, step, rank, world = map(int, match.groups())
                self.rosters.setdefault(number, []).append((step, rank, world))
                if next_step is not None:
                    self.came_with[number] = max(self.came_with.get(number, 0), next_step - next_step % self.window)
                next_step = step
            elif match := APPLIED.match(line):
                step, within = int(match.group(1)), int(match.group(2))
                if match.group(3):
                    self.sums.setdefault(step, {})[match.group(3)] = name
                if within != number or step != next_step:
                    self.faults.append(f"{name} applied step {step} in roster {within}, and step {next_step} of roster {number} was due")
                next_step = step + 1
                self.applied[within] = max(self.applied.get(within, 0), next_step)
            elif line.startswith("left behind"):
                number = next_step = None
            elif line.startswith("done") and next_step != self.steps:
                self.faults.append(f"{name} is done with {self.steps} steps, and step {next_step} was due")
        return number

    def judge(self):
        self.faults += [f"after step {step} ranks have other bits: {sums}" for step, sums in self.sums.items() if len(sums) > 1]
        most = 0
        for number, seen in sorted(self.rosters.items()):
            steps, ranks, worlds = ({one[i] for one in seen} for i in range(3))
            if len(steps) > 1 or len(worlds) > 1 or len(ranks) < len(seen) or max(ranks) >= min(worlds):
                self.faults.append(f"roster {number}: its members say (step, rank, world) {sorted(seen)}")
            step = min(steps)
            if step < self.came_with.get(number, 0):
                self.faults.append(f"roster {number} begins with step {step}, and a member had applied {self.came_with[number]}")
            if step > most:
                self.faults.append(f"roster {number} begins with step {step}, and nobody has applied more than {most}")
            most = max(most, self.applied.get(number, 0))
        return self.faults
