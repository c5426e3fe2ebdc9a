"""The pages: Markdown for the documentation, and one HTML file that holds its pictures. Both are made from the JSON files alone."""
import html
import json
import sys

from figure import KINDS, VERDICTS

COMMAND = "tools/evaluation/run"
TITLE = "The paper's evaluation, repeated"
INTRODUCTION = [
    "You need this if you know the paper on PyTorch's DDP and ask which of its figures libddp reproduces.",
    "libddp implements what Li et al. describe in \"PyTorch Distributed: Experiences on Accelerating Data Parallel Training\" (VLDB "
    "2020). This page repeats the evaluation of that paper on one machine: each figure, what the paper claims, what libddp measured, and "
    "why the two differ.",
    "The paper used 32 and up to 256 GPUs. This machine has none and stands for two hosts: network namespaces with a slow link between "
    "them. Worlds that do not fit are simulated by `ddp-bench predict`, and each picture marks them with dashed lines. So a figure is "
    "about the shape of a curve, and its numbers are about this machine. libddp's own connections are not encrypted here "
    "(`DDP_WIRE=plain`): neither are those of the paper, nor Gloo's.",
]
VERDICTS_TOLD = ("The data decides each verdict by the rule beside it. \"In shape\" is the weaker of the two rules. A claim is measured on "
                 "this machine, or simulated. With a chosen ratio it is measured, but at a ratio of communication to computing that was "
                 "computed from the paper's own number.")
QUICK = "from a quick run (`--quick`): few repetitions, and BERT with narrower layers. A run without it gives the final ones."
COLUMNS = {"paper": "The paper", "ours": "Here", "verdict": "Verdict", "kind": "Kind", "rule": "Rule", "reason": "Reason"}
STYLE = """body { font: 15px/1.5 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13px }
th, td { border: 1px solid #ccc; padding: .3em .5em; vertical-align: top; text-align: left }
pre { background: #f4f4f4; padding: .6em; overflow-x: auto; font-size: 12px } code { font-size: 92% } svg { max-width: 100%; height: auto }
.reproduced { background: #d9f0d9 } .reproduced-in-shape { background: #f5f0cf }
.not-reproduced { background: #f6dcdc } .not-run-here { background: #eee }"""


def order(name):
    return int(name)


def load(folder):
    """The figures of a folder, in the order of the paper."""
    found = []
    for path in folder.glob("figure-*.json"):
        figure = json.loads(path.read_text(encoding="utf-8"))
        if "size" in figure:
            found.append(figure)
        else:
            print(f"{path} is of an older version of this command and is left out: measure it again", file=sys.stderr)
    return sorted(found, key=lambda figure: order(figure["figure"]))


def why_unfit(figure):
    """Why the documentation cannot have a figure, or None."""
    if figure["size"] == "tiny":
        return "figures of --tiny mean nothing"
    return f"no commit is {figure['commit']}" if figure["commit"].endswith("-dirty") else None


def heading(figure):
    return f"Figure {figure['figure']}: {figure['title']}"


def quick_told(figures):
    """Which figures are not final, or None."""
    quick = [figure["figure"] for figure in figures if figure["size"] == "quick"]
    if not quick:
        return None
    if len(quick) == len(figures):
        return f"These figures come {QUICK}"
    return f"Figure {quick[0]} comes {QUICK}" if len(quick) == 1 else f"Figures {', '.join(quick[:-1])} and {quick[-1]} come {QUICK}"


def count(figures):
    """[(verdict, [how often, of each kind])]"""
    found = [(claim["verdict"], claim["kind"]) for figure in figures for claim in figure["claims"]]
    return [(verdict, [found.count((verdict, kind)) for kind in KINDS]) for verdict in VERDICTS]


def measured(figure):
    simulated = all(not panel["bars"] and all(series["simulated"] for series in panel["series"]) for panel in figure["panels"])
    return f"{'Simulated' if simulated else 'Measured'} on {figure['date']} at commit {figure['commit']}: {figure['machine']}."


def cell(text):
    return text.replace("|", "\\|")


def markdown(figures, pictures):
    """pictures: the folder of the SVG files, from the page."""
    parts = [f"# {TITLE}", *INTRODUCTION, VERDICTS_TOLD, f"`{COMMAND}` measures everything again; `{COMMAND} --page docs/evaluation.md` "
                                                         "also writes this page, from a clean "
             "commit. `--only 7,8` repeats some figures, and `--python` names a Python with PyTorch."]
    if told := quick_told(figures):
        parts.append(f"**{told}**")
    parts.append("\n".join([f"| Claims | {' | '.join(KINDS)} |", "|---" * (1 + len(KINDS)) + "|",
                            *(f"| {verdict} | {' | '.join(map(str, numbers))} |" for verdict, numbers in count(figures))]))
    for figure in figures:
        parts += markdown_of(figure, pictures)
    return "\n\n".join(parts) + "\n"


def markdown_of(figure, pictures):
    yield f"## {heading(figure)}"
    yield from figure["method"]
    if figure["drawn"]:
        yield f"![{heading(figure)}]({pictures}/figure-{figure['figure']}.svg)"
    yield from (f"Left out: {line}." for line in figure["left_out"])
    lines = ["| " + " | ".join(cell(claim[key]) for key in COLUMNS) + " |" for claim in figure["claims"]]
    yield "\n".join(["| " + " | ".join(COLUMNS.values()) + " |", "|" + "---|" * len(COLUMNS), *lines])
    yield measured(figure)


def inline(text):
    """Markdown's `code` and nothing else."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def document(figures, folder):
    """One HTML file, with the pictures of the folder in it."""
    parts = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">', f"<title>libddp: {html.escape(TITLE)}</title>",
             f"<style>{STYLE}</style></head><body>",
             f"<h1>{html.escape(TITLE)}</h1>", *(f"<p>{inline(text)}</p>" for text in (*INTRODUCTION, VERDICTS_TOLD))]
    if told := quick_told(figures):
        parts.append(f"<p><b>{inline(told)}</b></p>")
    heads = "".join(f"<th>{name}</th>" for name in ("Claims", *KINDS))
    parts.append(f"<table><tr>{heads}</tr>" + "".join(
        f'<tr><td class="{mark(verdict)}">{verdict}</td>' + "".join(f"<td>{number}</td>" for number in numbers) + "</tr>"
        for verdict, numbers in count(figures)) + "</table>")
    for figure in figures:
        parts += section(figure, folder)
    return "\n".join([*parts, "</body></html>", ""])


def mark(verdict):
    return verdict.replace(" ", "-")


def section(figure, folder):
    yield f"<h2>{html.escape(heading(figure))}</h2>"
    yield from (f"<p>{inline(text)}</p>" for text in figure["method"])
    if figure["drawn"]:
        picture = (folder / f"figure-{figure['figure']}.svg").read_text(encoding="utf-8")
        yield unique(picture[picture.index("<svg"):], f"f{figure['figure']}-")
    yield from (f"<p>Left out: {inline(line)}.</p>" for line in figure["left_out"])
    yield "<table><tr>" + "".join(f"<th>{title}</th>" for title in COLUMNS.values()) + "</tr>"
    for claim in figure["claims"]:
        marks = {key: f' class="{mark(claim[key])}"' if key == "verdict" else "" for key in COLUMNS}
        yield "<tr>" + "".join(f"<td{marks[key]}>{inline(claim[key])}</td>" for key in COLUMNS) + "</tr>"
    yield f"</table><p>{html.escape(measured(figure))}</p>"
    yield "<details><summary>Commands</summary><pre>" + html.escape("\n".join(figure["commands"])) + "</pre></details>"


def unique(picture, prefix):
    """Several pictures in one document must not share the names that parts of them refer to."""
    return picture.replace('id="', f'id="{prefix}').replace("url(#", f"url(#{prefix}").replace('href="#', f'href="#{prefix}')
