"""The page that the figures go to: a block of markdown for each section, with its verdicts and its commands."""
import contextlib
import datetime
import pathlib
import platform
import re
import shlex
import subprocess

HEAD = """# Performance

libddp is measured against Gloo, Open MPI and PyTorch, and against the limits of the machine: its memory on one host, and the
wire between two hosts. Each section says what was measured and against what, and then which criteria the figures meet.

- Times are milliseconds: the median over iterations of the slowest rank's time.
- Programs that are compared run alternately, in rounds. A figure is the median over the rounds.
- A ratio is a time divided by libddp's time in the same round, as the median over the rounds. Above 1, libddp is faster.

`tests/bench/performance/performance.py` measures every figure again and writes this page: `performance.py --page
docs/performance.md`, or with the names of sections after it.
"""


class Section:
    """The findings of one section."""

    def __init__(self, name, title):
        self.name, self.title = name, title
        self.opening, self.body, self.verdicts, self.commands = [], [], [], []
        self.measured = ""  # when and at which commit, if not now and here

    def open_with(self, text):
        """Says the subject of the measurement and its peers: before the verdicts."""
        self.opening.append(text)

    def say(self, text):
        self.body.append(text)

    def table(self, header, rows):
        lines = [header, ["---"] * len(header), *rows]
        self.body.append("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))

    def judge(self, criterion, figure, passed):
        """passed: None where it could not be measured, and `figure` says why."""
        verdict = "not measured" if passed is None else "PASS" if passed else "FAIL"
        self.verdicts.append((verdict, criterion, figure))
        print(f"{self.name}: {verdict}: {criterion}: {figure}", flush=True)

    def note(self, what, figure):
        """A figure without a criterion."""
        self.verdicts.append(("", what, figure))

    def command(self, words, where=""):
        line = where + " ".join(shlex.quote(str(word)) for word in words)
        if line not in self.commands:
            self.commands.append(line)

    @property
    def failed(self):
        return any(verdict == "FAIL" for verdict, *_ in self.verdicts)

    def markdown(self, facts):
        parts = [f"## {self.title}", *self.opening]
        if self.verdicts:
            lines = [("", "Criterion", "Measured"), ("---",) * 3, *self.verdicts]
            parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
        parts += [*self.body, f"Measured on {self.measured or facts['date'] + ' at commit ' + facts['commit']}."]
        if self.commands:
            parts.append("```\n" + "\n".join(self.commands) + "\n```")
        return "\n\n".join(parts)


def facts():
    def first(pattern, path):
        found = re.search(pattern, pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)
        return found.group(1) if found else "unknown"

    commit = ""
    with contextlib.suppress(OSError):  # without git
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
                                cwd=pathlib.Path(__file__).parent).stdout.strip()
    cores = len(re.findall(r"^processor", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE))
    memory = int(first(r"^MemTotal:\s+(\d+)", "/proc/meminfo")) / (1 << 20)
    processor = first(r"^model name\s*: (.*)$", "/proc/cpuinfo")
    return {
        "machine": f"{processor}, {cores} cores, {memory:.0f} GiB of memory, Linux {platform.release()}",
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
    }


def marks(name):
    return f"<!-- section {name} -->\n", f"<!-- end of {name} -->\n"


def write_page(path, sections, order, known):
    """Replaces the blocks of these sections and leaves the others as they are. known: facts(), from before anything of the
    page was written."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    blocks = {}
    for name in order:
        begin, end = marks(name)
        if begin in old and end in old:
            blocks[name] = old.split(begin)[1].split(end)[0]
    for section in sections:
        blocks[section.name] = section.markdown(known) + "\n"
    text = f"{HEAD}\nThe machine of the last run: {known['machine']}.\n"
    for name in order:
        if name in blocks:
            begin, end = marks(name)
            text += f"\n{begin}{blocks[name]}{end}"
    path.write_text(text, encoding="utf-8")
