"""A figure of the paper, measured here: its data, its pictures, and the paper's claims beside the measurements."""
import pathlib
import sys
from dataclasses import asdict, dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench/runs"))
import report  # noqa: E402  (tools/bench/runs)

REPRODUCED, IN_SHAPE, NOT, NOT_RUN = "reproduced", "reproduced in shape", "not reproduced", "not run here"
VERDICTS = (REPRODUCED, IN_SHAPE, NOT, NOT_RUN)
MEASURED, SIMULATED, CHOSEN = "measured", "simulated", "chosen ratio"
KINDS = (MEASURED, SIMULATED, CHOSEN)
FACTOR, FAR = 2.0, 10.0  # between our number and the paper's: up to the first "reproduced", up to the second "in shape"


@dataclass
class Series:
    """points: (x, y) or (x, y, low, high). simulated: drawn dashed and named so. style: "line", "steps", "dots" (of the line
    before), "level" (a line across) or "bound" (a limit that was computed)."""
    label: str
    points: list
    simulated: bool = False
    style: str = "line"


@dataclass
class Panel:
    """One pair of axes. scale: of x, "log", "linear" or "places" (as many places as there are different x). bars: instead of
    series; (label, [(part, height), ...]) from below."""
    title: str
    x: str
    y: str
    series: list = field(default_factory=list)
    bars: list = field(default_factory=list)
    scale: str = "places"
    y_scale: str = "linear"


@dataclass
class Claim:
    """paper: with its numbers. kind: of what the verdict is about. rule: how it follows from the data."""
    paper: str
    ours: str
    verdict: str
    kind: str
    rule: str
    reason: str


class Figure(report.Section):
    """Everything that the page tells of one figure."""

    def __init__(self, name, title):
        super().__init__(name, title)
        self.claims, self.panels, self.rows, self.left_out = [], [], [], []
        self.no_link = ""  # why ranks that should be on two hosts are on one

    def claim(self, paper, ours, verdict, rule, reason, kind=MEASURED):
        if self.no_link and kind != SIMULATED:
            self.cannot_run(paper, self.no_link, kind)
        else:
            self.add(Claim(paper, ours, verdict, kind, rule, reason))

    def cannot_run(self, paper, why, kind=MEASURED):
        self.add(Claim(paper, "–", NOT_RUN, kind, "–", why))

    def add(self, claim):
        self.claims.append(claim)
        print(f"Figure {self.name}: {claim.verdict} ({claim.kind}): {claim.paper} Here: {claim.ours}", flush=True)

    def leave_out(self, line):
        """A part of the figure that this machine cannot measure."""
        self.left_out.append(line)
        print(f"Figure {self.name}: left out: {line}", file=sys.stderr, flush=True)

    def keep(self, rows, **more):
        """Raw rows for the JSON file."""
        self.rows += [{**row, **more} for row in rows]
        return rows

    def as_json(self, facts):
        return {"figure": self.name, "title": self.title, **facts, "method": self.opening, "left_out": self.left_out,
                "panels": [asdict(panel) for panel in self.panels], "claims": [asdict(claim) for claim in self.claims],
                "commands": self.commands, "rows": self.rows}


# RULES: each gives a verdict and says how.

def near(paper, ours):
    """Two numbers of one sign, and within a factor."""
    rule = f"within a factor of {FACTOR:g} of the paper's number: reproduced; of {FAR:g}: in shape"
    times = ours / paper
    return REPRODUCED if 1 / FACTOR <= times <= FACTOR else IN_SHAPE if 1 / FAR <= times <= FAR else NOT, rule


def at_least(ours, full, shape, what):
    """ours: the larger, the more like the paper."""
    return (REPRODUCED if ours >= full else IN_SHAPE if ours >= shape else NOT,
            f"{what} at least {full:g}: reproduced; at least {shape:g}: in shape")


def at_most(ours, full, shape, what):
    return (REPRODUCED if ours <= full else IN_SHAPE if ours <= shape else NOT,
            f"{what} at most {full:g}: reproduced; at most {shape:g}: in shape")


def saving(before, after):
    """The share of a time that is saved."""
    return 1 - after / before


def percent(share):
    return f"{100 * share:.1f} %"
