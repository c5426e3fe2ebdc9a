"""Draws the panels of a figure as SVG, from the data that its JSON file holds."""
import sys

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"]
ROOM = 0.16  # of the axis, for what lines across are called
WIDTH, HEIGHT, COLUMNS = 5.6, 3.9, 2  # inches of a panel


def find_matplotlib():
    """matplotlib's pyplot, or None and a line."""
    try:
        import matplotlib
    except ImportError:
        print(f"no picture is drawn: there is no matplotlib (python3-matplotlib) in {sys.executable}", file=sys.stderr)
        return None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ddp", "font.family": "sans-serif", "font.size": 9,
                                "axes.spines.top": False, "axes.spines.right": False})
    import matplotlib.pyplot as pyplot
    return pyplot


def draw(figure, path):
    """figure: what its JSON file holds. Whether it was drawn."""
    pyplot = find_matplotlib()
    if pyplot is None:
        return False
    panels = figure["panels"]
    if not panels:
        return False
    columns = min(COLUMNS, len(panels))
    wide = any(panel["bars"] for panel in panels)
    if wide:
        columns = 1
    rows = -(-len(panels) // columns)
    sheet, axes = pyplot.subplots(rows, columns, figsize=(WIDTH * (2 if wide else columns), HEIGHT * rows), squeeze=False)
    for place, panel in zip(axes.flat, panels):
        draw_panel(place, panel)
    for place in list(axes.flat)[len(panels):]:
        place.set_axis_off()
    sheet.tight_layout(h_pad=2.5, w_pad=2)
    sheet.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(sheet)
    return True


def draw_panel(axes, panel):
    simulated = panel["series"] and all(series["simulated"] for series in panel["series"])
    axes.set_title(panel["title"] + (" (simulated)" if simulated else ""), fontsize=10, loc="left")
    axes.set_xlabel(panel["x"])
    axes.set_ylabel(panel["y"])
    axes.grid(axis="y", linewidth=0.3)
    if panel["bars"]:
        draw_bars(axes, panel["bars"])
    else:
        draw_series(axes, panel)
    axes.set_axisbelow(True)
    if panel["y_scale"] != "log":
        axes.set_ylim(top=axes.get_ylim()[1] + 0.04 * max(map(abs, axes.get_ylim())))
        below = any(point[1] < 0 for series in panel["series"] for point in series["points"])
        axes.set_ylim(bottom=axes.get_ylim()[0] if below else 0)


def draw_bars(axes, bars):
    """Two bars side by side for each group; a label's last line tells them apart."""
    colours = {}
    places = [number + 0.3 * (number // 2) for number in range(len(bars))]
    for place, (_, parts) in zip(places, bars):
        bottom = 0
        for part, height in parts:
            first = part not in colours
            colour = colours.setdefault(part, COLOURS[len(colours)])
            axes.bar(place, height, bottom=bottom, width=0.85, color=colour, label=part if first else None)
            if height >= 0.06:
                axes.text(place, bottom + height / 2, f"{height:.2f}", ha="center", va="center", fontsize=7, color="white")
            bottom += height
    axes.set_xticks(places, [label.rpartition("\n")[2] for label, _ in bars], fontsize=8)
    for first in range(0, len(bars), 2):
        axes.text((places[first] + places[first + 1]) / 2, -0.11, bars[first][0].rpartition("\n")[0], ha="center", va="top", fontsize=8,
                  transform=axes.get_xaxis_transform())
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncol=3, frameon=False)


def draw_series(axes, panel):
    every = sorted({point[0] for series in panel["series"] if series["style"] != "level" for point in series["points"]})
    position = {x: number for number, x in enumerate(every)} if panel["scale"] == "places" else {x: x for x in every}
    number, several = 0, len({series["simulated"] for series in panel["series"]}) > 1
    for series in panel["series"]:
        colour = COLOURS[number % len(COLOURS)]
        if series["style"] == "dots":  # of the line before them
            axes.plot(*zip(*[(position[x], y) for x, y, *_ in series["points"]]), ".", markersize=2.5, alpha=0.35,
                      color=COLOURS[(number - 1) % len(COLOURS)], zorder=1)
            continue
        if series["style"] == "level":
            draw_level(axes, series)
            continue
        draw_line(axes, series, position, colour, several)
        number += 1
    if panel["scale"] == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_xticks(every, [short(x) for x in every])
        if any(series["style"] == "level" for series in panel["series"]):
            axes.set_xlim(right=every[-1] * (every[-1] / every[0]) ** ROOM)
    if panel["scale"] == "places":
        axes.set_xticks(range(len(every)), [f"{x:g}" for x in every])
    if panel["y_scale"] == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(which="minor", axis="y", linewidth=0.15)
    axes.legend(fontsize=8, frameon=False)


def short(x):
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}K" if x >= 1e4 else f"{x:g}"


def draw_level(axes, series):
    value = series["points"][0][1]
    axes.axhline(value, color="#555555", linewidth=0.8, linestyle=":")
    axes.text(0.995, value, series["label"], transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=7, color="#555555")


def draw_line(axes, series, position, colour, several):
    """several: the panel has both measured and simulated series, so the legend tells."""
    xs = [position[point[0]] for point in series["points"]]
    ys = [point[1] for point in series["points"]]
    steps, bound = series["style"] == "steps", series["style"] == "bound"
    label = series["label"] + (", simulated" if series["simulated"] and several else "")
    axes.plot(xs, ys, color=colour, linewidth=1.4, linestyle="--" if series["simulated"] else ":" if bound else "-", label=label,
              drawstyle="steps-post" if steps else "default", marker=None if steps or bound or len(xs) > 40 else "o", markersize=4,
              markerfacecolor="white" if series["simulated"] else colour, zorder=2)
    if any(len(point) > 2 for point in series["points"]):
        low = [max(0, point[1] - point[2]) for point in series["points"]]
        high = [max(0, point[3] - point[1]) for point in series["points"]]
        axes.errorbar(xs, ys, [low, high], color=colour, linestyle="none", linewidth=0.8, capsize=3)
