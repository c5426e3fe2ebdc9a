"""Makes one page that shows a job, from what `ddp-why DIR --json SUMMARY` has written.

    report.py SUMMARY PAGE       SUMMARY may be -: standard input

The page needs no network and no other file. plotly draws; this program decides what is drawn. Everything that comes from the job's
program (names, messages) is text that may hold anything: it goes through text() or label().
"""
import datetime
import html
import json
import statistics
import sys

try:
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs
except ImportError as missing:
    sys.exit(f"report.py: {sys.executable} has no plotly ({missing}): run `apt-get install python3-plotly`, or "
             f"`{sys.executable} -m pip install plotly`; `ddp-why DIR --json FILE` works without it")

# Limits for a large job: the items that are drawn one by one, and those that are summed up.
MOST_LINES = 12     # ranks
MOST_POINTS = 1500  # steps of a line
MOST_COLUMNS = 400  # steps of the heat map
MOST_ROWS = 256     # ranks of the heat map
MOST_BUCKET_RANKS = 16
MOST_TABLE_ROWS = 64
MOST_NAMES = 4      # parameters of a bucket

RANK_COLORS = ["#4c8dd6", "#e0803a", "#3aa76d", "#c45ab3", "#b8952e", "#3ba7bd", "#d65b5b", "#8a7be0"]
# key of the summary, name, color
PARTS = [
    ("own_ns", "own code between steps", "#8d99a6"),
    ("collectives_ns", "other collectives between steps", "#b48ad6"),
    ("backward_ns", "backward pass", "#4c8dd6"),
    ("hook_ns", "communication hook, in the backward pass", "#2fa08f"),
    ("exposed_ns", "waits in ddp_finalize (exposed communication)", "#e0803a"),
]
OVERLAPPED = ("overlapped_ns", "communication during the backward pass (overlapped)", "#c23b6b")

STYLE = """
:root { color-scheme: light dark; --page: #f4f5f7; --card: #ffffff; --ink: #1c2127; --soft: #57616c; --line: #dadfe5; --bad: #b3261e;
        --good: #22703f; --warn: #8a5a00 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1d2126; --ink: #e4e8ed; --soft: #9aa5b1; --line: #363d46; --bad: #ff8a80; --good: #7fd6a0; --warn: #f0c060 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1200px; padding: 1rem; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; margin: .5rem 0 0 } h2 { font-size: 1.2rem; margin: 1.6rem 0 .6rem } h3 { font-size: 1rem; margin: 0 0 .3rem }
section, .tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: 8px }
section { padding: 1rem; margin: .8rem 0; overflow-wrap: anywhere }
p { margin: .3rem 0 } .soft { color: var(--soft); font-size: .87rem }
.says { font-size: 1.05rem; border-left: 4px solid var(--good); padding-left: .7rem } .bad { border-color: var(--bad) }
.slow { border-color: var(--warn) } td.bad { color: var(--bad); border-color: var(--line) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem }
.tiles > div { padding: .6rem .8rem } .tiles b { display: block; font-size: 1.2rem } .tiles span { color: var(--soft); font-size: .82rem }
.table { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .87rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal }
td.where { min-width: 16rem; overflow-wrap: anywhere } th { color: var(--soft); font-weight: 600 } .number { text-align: right; white-space: nowrap }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; font-size: .87rem }
.plot { width: 100% }
/* plotly's own colors are those of one theme. */
.plot .xtick text, .plot .ytick text, .plot .xtitle, .plot .ytitle, .plot .legendtext, .plot .cbaxis text, .plot .colorbar text
  { fill: var(--ink) !important }
.plot .gridlayer path, .plot .zerolinelayer path { stroke: var(--line) !important }
.plot .legend .bg { fill: transparent !important }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc; --bad: #a00; --good: #060; --warn: #850 }
  body { padding: 0; font-size: 11px } section { break-inside: avoid; border-color: #ccc } .modebar { display: none !important }
  .table { overflow-x: visible } table { font-size: 9px } th, td { padding: .15rem .3rem }
}
@media (max-width: 700px) { body { padding: .5rem } section { padding: .6rem } .modebar { display: none !important } }
"""

SCRIPT = """
const plots = JSON.parse(document.getElementById('plots').textContent);
// plotly 7 would offer to send the data to its makers.
const config = {responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: ''};
const size = change => { for (const id in plots) Plotly.relayout(id, change) };
for (const id in plots) Plotly.newPlot(id, plots[id].data, plots[id].layout, config);
// Paper is narrower than a screen.
addEventListener('beforeprint', () => size({width: 680}));
addEventListener('afterprint', () => size({width: null, autosize: true}));
"""

# Nothing may be loaded or sent, whatever the job's program has put into its texts.
POLICY = "default-src 'none'; form-action 'none'; base-uri 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def text(value):
    return html.escape(str(value))


def label(value):
    """For plotly, which reads some HTML in its texts, and knows no &quot;."""
    return html.escape(str(value), quote=False)


def ms(ns):
    return None if ns is None else round(ns / 1e6, 4)


def duration(ns):
    for unit, length in (("s", 1e9), ("ms", 1e6)):
        if ns >= length:
            value = ns / length
            return f"{value:.{1 if value < 9.95 else 0}f} {unit}"
    return f"{ns / 1e3:.0f} µs"


def size(count):
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024


def mean(values):
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else 0


def binned(rows, most, join):
    """Rows of the same length with at most `most` values each: neighbors are joined. And how many have become one."""
    length = max(map(len, rows), default=0)
    step = -(-length // most) if length else 1
    return [[join([value for value in row[at:at + step] if value is not None] or [0]) for at in range(0, length, step)]
            for row in rows], step


def table(heads, rows, numbers=()):
    def cells(tag, row):
        return "".join(f"<{tag}{' class=number' if i in numbers else ''}>{cell}</{tag}>" if not str(cell).startswith("<td")
                       else cell for i, cell in enumerate(row))
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows[:MOST_TABLE_ROWS])
    more = f"<p class=soft>… and {len(rows) - MOST_TABLE_ROWS} more</p>" if len(rows) > MOST_TABLE_ROWS else ""
    return f"<div class=table><table><thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table></div>{more}"


def card(title, body, note=""):
    return f"<section><h3>{text(title)}</h3>{f'<p class=soft>{note}</p>' if note else ''}{body}</section>"


class Page:
    def __init__(self):
        self.plots = {}

    def plot(self, title, traces, height, note="", **layout):
        name = f"plot-{len(self.plots)}"
        figure = go.Figure(traces)
        figure.update_layout(
            template="none", height=height, margin={"l": 64, "r": 16, "t": 34, "b": 46}, paper_bgcolor="rgba(0,0,0,0)",
            plot_bgcolor="rgba(0,0,0,0)", font={"family": "system-ui, sans-serif", "size": 12}, hovermode="closest",
            modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#9aa5b1", "activecolor": "#4c8dd6"},
            legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"})
        figure.update_layout(**layout)
        figure.update_xaxes(automargin=True)
        figure.update_yaxes(automargin=True)
        self.plots[name] = json.loads(figure.to_json())
        return card(title, f'<div class=plot id={name} role=img aria-label="{text(title)}"></div>', note)

    def write(self, path, body):
        library = get_plotlyjs().replace("</script", r"<\/script")
        plots = json.dumps(self.plots).replace("<", r"\u003c")
        script = f"<script>{library}</script><script>{SCRIPT}</script>" if self.plots else ""
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(f'<!DOCTYPE html><html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">'
                       f'<meta http-equiv=Content-Security-Policy content="{POLICY}"><title>Report of a job</title>'
                       f"<style>{STYLE}</style></head><body>{body}"
                       f'<script type="application/json" id=plots>{plots}</script>{script}</body></html>\n')


def says(group):
    cause, pace = group["cause"], group["pace"]
    lines = [f"<p class='says bad'>{text(cause['sentence'])}</p>" if cause else "<p class=says>No rank waits for another.</p>"]
    if pace:
        sentence = text(pace["sentence"]) if pace["sentence"] else "No rank is slow."
        lines.append(f"<p class='says {'slow' if pace['sentence'] else ''}'>{sentence}</p>")
    else:
        lines.append("<p class=soft>The records do not share enough steps to say whether a rank is slow.</p>")
    return f"<section>{''.join(lines)}</section>"


def tiles(group):
    facts = [(group["world"], "ranks"), (text(group["backend"]) or "?", "backend")]
    if group["pace"]:
        facts += [(duration(group["pace"]["step_ns"]), "an average step"), (group["pace"]["steps"], "whole steps on all ranks")]
    for context in group["contexts"][:1]:
        of = [averages(rank) for rank in context["ranks"] if rank["steps"]]
        if not of:
            break
        exposed, hidden = mean(one["exposed_ns"] for one in of), mean(one["overlapped_ns"] for one in of)
        facts.append((size(mean(one["gradient_bytes"] for one in of)), "gradients of a step"))
        facts.append((duration(exposed), "a step waits in ddp_finalize"))
        if exposed + hidden > 0:
            facts.append((f"{100 * hidden / (exposed + hidden):.0f} %", "of communication overlapped"))
    return f"<div class=tiles>{''.join(f'<div><b>{value}</b><span>{what}</span></div>' for value, what in facts)}</div>"


def positions(group):
    rows = []
    named = [group[part][key] for part, key in (("cause", "rank"), ("pace", "slow")) if group[part]]
    ranks = group["ranks"]
    if len(ranks) > MOST_TABLE_ROWS:  # what is wrong comes first
        ranks = sorted(ranks, key=lambda rank: not (rank["killed"] or rank["life"] == "stopped" or rank["rank"] in named))
    for rank in ranks:
        bad = rank["killed"] or rank["life"] == "stopped"
        life = rank["ending"] or rank["life"]
        rows.append([rank["rank"], text(rank.get("pid", "–")), text(rank.get("host", "–")),
                     f"<td class=bad>{text(life)}</td>" if bad else text(life), f"<td class=where>{text(rank['where'])}</td>"])
    for first, last in group["without_record"]:
        rows.append([first if first == last else f"{first}–{last}", "–", "–", "unknown", "<td class=where>without a record</td>"])
    lost = max((rank.get("lost_events", 0) for rank in group["ranks"]), default=0)
    note = (f"The records hold the last events only: up to {lost} older ones of a rank are gone (DDP_RECORD_EVENTS)." if lost else "")
    return card("Where each rank is, or was", table(["rank", "pid", "host", "process", "place"], rows), note)


def errors(group):
    if not group["error"]:
        return ""
    error = group["error"]
    about = ", ".join(f"{key} {error[key]}" for key in ("rank", "step", "bucket") if error[key] >= 0)
    return card("The error that broke the group", f"<pre>{text(error['message'])}</pre>", about)


def color(rank):
    return RANK_COLORS[rank % len(RANK_COLORS)]


def step_times(page, context, slow):
    ranks = [rank for rank in context["ranks"] if any(value is not None for value in rank["step_ns"])]
    if not ranks:
        return ""

    def line(name, steps, values, **style):
        (values,), step = binned([values], MOST_POINTS, max)
        return go.Scatter(x=steps[::step], y=[ms(value) for value in values], mode="lines", name=name, line=style,
                          hovertemplate=f"{name}, step %{{x}}: %{{y:.3f}} ms<extra></extra>")

    def whole(rank):
        pairs = [(step, ns) for step, ns in zip(rank["steps"], rank["step_ns"]) if ns is not None]
        return [step for step, ns in pairs], [ns for step, ns in pairs]

    if len(ranks) <= MOST_LINES:
        traces = [line(f"rank {rank['rank']}", *whole(rank), width=1.4, color=color(rank["rank"])) for rank in ranks]
    else:
        at = {}
        for rank in ranks:
            for step, ns in zip(*whole(rank)):
                at.setdefault(step, []).append(ns)
        steps = sorted(at)
        traces = [line(name, steps, [of(at[step]) for step in steps], width=1.4, color=RANK_COLORS[i])
                  for i, (name, of) in enumerate((("slowest rank", max), ("median of ranks", statistics.median), ("fastest rank", min)))]
        traces += [line(f"rank {rank['rank']}, the slow one", *whole(rank), width=1.4, color=RANK_COLORS[3])
                   for rank in ranks if rank["rank"] == slow]
    longest = max(len(rank["steps"]) for rank in ranks)
    note = "From the end of the step before to the end of this one."
    if longest > MOST_POINTS:
        note += f" Each point is the longest of {-(-longest // MOST_POINTS)} steps."
    return page.plot("Time of each step", traces, 320, note, xaxis={"title": "step"}, yaxis={"title": "ms", "rangemode": "tozero"},
                     showlegend=True)


def averages(rank):
    """The means over the steps that begin and end in the record."""
    keys = [key for key, _, _ in PARTS] + [OVERLAPPED[0], "step_ns", "gradient_bytes", "sent_bytes"]
    whole = [i for i, ns in enumerate(rank["step_ns"]) if ns is not None]
    return {key: mean([rank[key][i] for i in whole]) for key in keys}


def parts(page, context):
    ranks = [rank for rank in context["ranks"] if any(ns is not None for ns in rank["step_ns"])]
    if not ranks:
        return ""
    of = {rank["rank"]: averages(rank) for rank in ranks}
    numbers = list(of)
    traces = [go.Bar(x=numbers, y=[ms(one[key]) for one in of.values()], name=name, marker={"color": fill, "line": {"width": 0}},
                     hovertemplate="rank %{x}: %{y:.3f} ms<extra>" + name + "</extra>")
              for key, name, fill in PARTS if any(one[key] > 0 for one in of.values())]
    key, name, fill = OVERLAPPED
    traces.append(go.Scatter(x=numbers, y=[ms(one[key]) for one in of.values()], name=name, mode="markers",
                             marker={"symbol": "diamond", "size": 9, "color": fill, "line": {"width": 1, "color": "#fff"}},
                             hovertemplate="rank %{x}: %{y:.3f} ms<extra>" + name + "</extra>"))
    few = len(numbers) <= 16
    plot = page.plot("Where a step goes", traces, 430, "Means over the steps of the record. The diamonds are inside the backward pass "
                     "and do not add to it.", barmode="stack", bargap=0.4 if few else 0, margin={"l": 64, "r": 16, "t": 110, "b": 46},
                     xaxis={"title": "rank", **({"tickvals": numbers, "ticktext": [str(n) for n in numbers]} if few else {})},
                     yaxis={"title": "ms"})
    heads = ["rank", "step", "own code", "other collectives", "backward", "hook", "exposed", "overlapped"]
    rows = [[number, *(duration(one[key]) for key in ["step_ns", *(key for key, _, _ in PARTS), OVERLAPPED[0]])]
            for number, one in sorted(of.items(), key=lambda item: (len(of) > MOST_TABLE_ROWS) * item[1]["exposed_ns"])]
    note = "The ranks that wait least come first." if len(of) > MOST_TABLE_ROWS else ""
    return plot + card("The same as a table", table(heads, rows, numbers=range(1, 8)), note)


def heat(page, lateness):
    rows = [[ms(ns) for ns in row] for row in lateness["behind_ns"]]
    if not rows or not rows[0]:
        return ""
    rows, steps = binned(rows, MOST_COLUMNS, statistics.fmean)
    columns, ranks = binned([list(column) for column in zip(*rows)], MOST_ROWS, max)
    rows = [[round(value, 4) for value in row] for row in zip(*columns)]
    values = sorted(value for row in rows for value in row)
    usual = values[int(0.95 * (len(values) - 1))]
    top = min(values[-1], 4 * usual) or values[-1] or 1
    trace = go.Heatmap(z=rows, x=lateness["steps"][::steps], y=[row * ranks for row in range(len(rows))], zmin=0, zmax=top,
                       colorscale=[[0, "rgba(214,72,40,0.04)"], [1, "rgba(214,72,40,1)"]],
                       colorbar={"title": {"text": "ms"}, "thickness": 12, "outlinewidth": 0},
                       hovertemplate="rank %{y}, step %{x}: %{z:.3f} ms after the first rank<extra></extra>")
    note = "How much later than the first rank a rank came to the collectives of a step."
    note += f" Each column is the mean of {steps} steps." if steps > 1 else ""
    note += f" Each row is the latest of {ranks} ranks." if ranks > 1 else ""
    note += f" What is more than {top:.3g} ms has the same color." if values[-1] > top else ""
    few = len(rows) <= 16
    return page.plot("Lateness of ranks", [trace], 160 + min(440, 24 * len(rows)), note, xaxis={"title": "step", "showgrid": False},
                     yaxis={"title": "rank", "autorange": "reversed", "showgrid": False, "zeroline": False,
                            **({"tickvals": list(range(len(rows)))} if few and ranks == 1 else {})},
                     margin={"l": 64, "r": 16, "t": 34, "b": 46})


def names_of(context, bucket):
    plan = context["plan"]
    names = plan[bucket] if bucket < len(plan) else []
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return label(", ".join(names[:MOST_NAMES])) + more


def buckets(page, context, which):
    step = context.get(which + "_step")
    if not step or not any(rank["buckets"] for rank in step["ranks"]):
        return ""
    ranks = step["ranks"]
    note = ""
    if len(ranks) > MOST_BUCKET_RANKS:
        ranks = sorted(ranks, key=lambda rank: max((b["launch_ns"] for b in rank["buckets"]), default=0))[-MOST_BUCKET_RANKS:]
        ranks.sort(key=lambda rank: rank["rank"])
        note = f" The {MOST_BUCKET_RANKS} ranks that launched last."
    if any(operation["all_there_ns"] is None for rank in ranks for bucket in rank["buckets"] for operation in bucket["operations"]):
        note += " Not all ranks have recorded these collectives: what travels may wait for other ranks, too."
    lanes = max(max((b["bucket"] for b in rank["buckets"]), default=0) for rank in ranks) + 1
    width = 0.84 / lanes
    phases = {"launched, waits for its turn": ("#9aa5b1", []), "waits for the other ranks": ("#e0803a", []), "travels": ("#4c8dd6", [])}
    turn, others, travels = (spans for _, spans in phases.values())
    for row, rank in enumerate(ranks):
        for bucket in rank["buckets"]:
            y = row - 0.42 + (bucket["bucket"] + 0.5) * width
            about = f"rank {rank['rank']}, bucket {bucket['bucket']}, {size(bucket['bytes'])}<br>{names_of(context, bucket['bucket'])}"
            at = bucket["launch_ns"]
            for operation in bucket["operations"]:
                begin, end = operation["begin_ns"], operation["end_ns"]
                there = begin if operation["all_there_ns"] is None else min(max(begin, operation["all_there_ns"]), end)
                turn.append((y, at, begin, about))
                others.append((y, begin, there, about))
                travels.append((y, there, end, about))
                at = end
    traces = []
    for name, (fill, spans) in phases.items():
        spans = [span for span in spans if span[2] > span[1]]
        traces.append(go.Bar(orientation="h", name=name, y=[span[0] for span in spans], base=[ms(span[1]) for span in spans],
                             x=[ms(span[2] - span[1]) for span in spans], width=width * 0.86, marker={"color": fill, "line": {"width": 0}},
                             text=[span[3] for span in spans], textposition="none",
                             hovertemplate="%{text}<br>" + name + " for %{x:.3f} ms, from %{base:.3f} ms on<extra></extra>"))
    traces.append(go.Scatter(x=[ms(rank["finalize_ns"]) for rank in ranks], y=list(range(len(ranks))), mode="markers",
                             name="ddp_finalize begins", marker={"symbol": "line-ns-open", "size": 22, "color": "#c23b6b",
                                                                 "line": {"width": 2, "color": "#c23b6b"}},
                             hovertemplate="ddp_finalize begins at %{x:.3f} ms<extra></extra>"))
    return page.plot(
        f"Buckets of the {which} step: step {step['step']}, {duration(step['step_ns'])}", traces,
        170 + len(ranks) * max(34, 10 * lanes),
        f"From launch to done, a lane for each bucket. 0 is the first gradient on any rank.{note}", barmode="overlay",
        margin={"l": 64, "r": 16, "t": 80, "b": 46}, xaxis={"title": "ms"},
        yaxis={"tickvals": list(range(len(ranks))), "ticktext": [f"rank {rank['rank']}" for rank in ranks], "autorange": "reversed",
               "showgrid": False, "zeroline": False})


def traffic(group):
    if not group["collectives"]:
        return ""
    rows = [[text(one["what"]), one["count"], size(one["bytes"]), duration(one["ns"] / one["count"] if one["count"] else 0)]
            for one in sorted(group["collectives"], key=lambda one: -one["ns"])]
    lines = []
    for context in group["contexts"]:
        of = [one for one in map(averages, context["ranks"]) if one["gradient_bytes"] and one["sent_bytes"]]
        if of:
            given, sent = mean(one["gradient_bytes"] for one in of), mean(one["sent_bytes"] for one in of)
            lines.append(f"<p>In a step a rank gives its hook {size(given)} of gradients, and the hook gives {size(sent)} to collectives: "
                         + (f"{given / sent:.1f} times less.</p>" if given > 1.05 * sent else "it does not compress.</p>"))
    return card("Collectives and bytes", "".join(lines) + table(["what", "how often", "bytes in all", "time of one, with waits"], rows,
                                                                numbers=(1, 2, 3)), "Means of the ranks, over the record.")


def marks(page, processes):
    marked = [process for process in processes if process["marks"]]
    if not marked:
        return ""
    marked.sort(key=lambda process: process["launch_rank"])
    names = sorted({mark["name"] for process in marked for mark in process["marks"]})
    of = [{mark["name"]: mark for mark in process["marks"]} for process in marked]
    total = {name: [one[name]["ns"] for one in of if name in one] for name in names}
    names.sort(key=lambda name: max(total[name]))
    shown = names[-40:]

    def bars(name, values, fill):
        return go.Bar(orientation="h", name=name, y=[label(shorten(mark)) for mark in shown], x=[ms(value) for value in values],
                      marker={"color": fill}, hovertemplate="%{y}, " + name + ": %{x:.1f} ms<extra></extra>")

    if len(marked) <= MOST_LINES:
        traces = [bars(who(process), [one[name]["ns"] if name in one else None for name in shown],
                       color(process["launch_rank"] if process["launch_rank"] >= 0 else i))
                  for i, (process, one) in enumerate(zip(marked, of))]
    else:
        traces = [bars("rank with the most", [max(total[name]) for name in shown], RANK_COLORS[1]),
                  bars("mean of ranks", [mean(total[name]) for name in shown], RANK_COLORS[0])]
    plot = page.plot("Marks of the program", traces, 130 + 26 * len(shown) + 9 * len(shown) * min(len(marked), MOST_LINES),
                     "Time in all between ddp_mark_begin and ddp_mark_end. A mark within another counts for both.",
                     barmode="group", xaxis={"title": "ms"}, showlegend=True)
    rows = [[text(name), max(one[name]["count"] for one in of if name in one), duration(mean(total[name])), duration(min(total[name])),
             duration(max(total[name]))] for name in reversed(names)]
    return plot + card("Marks as a table", table(["mark", "how often", "mean of ranks", "least", "most"], rows, numbers=range(1, 5)))


def shorten(name):
    return name if len(name) <= 40 else name[:39] + "…"


def who(process):
    return f"rank {process['launch_rank']}" if process["launch_rank"] >= 0 else f"pid {process['pid']}"


def show_group(page, group, several):
    slow = group["pace"]["slow"] if group["pace"] else None
    body = [f"<h2>Group '{text(group['name'])}'</h2>" if several or group["name"] else "", says(group), tiles(group), errors(group), positions(group)]
    shown = [context for context in group["contexts"] if any(rank["steps"] for rank in context["ranks"])]
    for context in shown:
        if len(shown) > 1:
            body.append(f"<h2>Context {context['context']}</h2>")
        body += [step_times(page, context, slow), parts(page, context)]
        body += [buckets(page, context, "median"), buckets(page, context, "worst")]
    body.append(heat(page, group["lateness"]))
    if not shown:
        body.append("<section><p>The records hold no step that has ended.</p></section>")
    body.append(traffic(group))
    return "".join(body)


def show(summary, path):
    page = Page()
    made = datetime.datetime.fromtimestamp(summary["made_at"]).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    body = [f"<h1>Report of a job</h1><p class=soft>From the records in {text(summary['folder'])}, {text(made)}</p>"]
    groups = summary["groups"]
    if not groups:
        body.append("<section><p class='says bad'>There is no record of a group of several ranks.</p><p>Each rank writes a record "
                    "when it runs under ddprun, or when DDP_RECORD names a folder.</p></section>")
    if summary["complaints"]:
        body.append(card("What could not be read", "".join(f"<pre>{text(line)}</pre>" for line in summary["complaints"])))
    body += [show_group(page, group, len(groups) > 1) for group in groups]
    body.append(marks(page, summary["processes"]))
    page.write(path, "".join(body))


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: report.py SUMMARY PAGE")
    with (sys.stdin.buffer if sys.argv[1] == "-" else open(sys.argv[1], "rb")) as file:
        summary = json.load(file)
    if summary.get("format") != "ddp-why 1":
        sys.exit(f"report.py: {sys.argv[1]} is not what `ddp-why --json` of this version writes")
    try:
        show(summary, sys.argv[2])
    except OSError as error:
        sys.exit(f"report.py: cannot write {sys.argv[2]}: {error.strerror}")


if __name__ == "__main__":
    main()
