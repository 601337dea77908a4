#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws each NAME.json beside this script as NAME.svg.

    docs/figures/plot.py            draws all anew
    docs/figures/plot.py --check    fails if a drawing is not what its figures give

A bar is the ratio of the means to the peer's, turned so that longer is better; the scale is
logarithmic, the line is the peer itself, and the tick of a work is its goal.
"""

import html
import json
import math
import pathlib
import sys

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 760, 250, 60, 56, 40, 13
COLOURS = ["#2a6fbb", "#d97a1f"]
LEAST, MOST = 0.5, 8.0


def place(ratio):
    """The x of a ratio; what is off the scale lies at its end."""
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def better(work, series):
    """How many times as good as the peer."""
    mean = {key: sum(work[key]) / len(work[key]) for key in (series, "peer")}
    ratio = mean[series] / mean["peer"]
    return 1 / ratio if work.get("less_is_better") else ratio


def goal(work):
    return 1 / work["goal"] if work.get("less_is_better") else work["goal"]


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y}" {more}>{html.escape(words)}</text>'


def draw(figures):
    height = TOP + ROW * len(figures["works"]) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(12, 20, figures["title"], 'font-size="14" font-weight="bold"'),
    ]
    for number, series in enumerate(figures["series"]):
        x = 12 + 90 * number
        parts.append(f'<rect x="{x}" y="31" width="12" height="12" fill="{COLOURS[number]}"/>')
        parts.append(text(x + 17, 41, series))
    legend = 12 + 90 * len(figures["series"])
    parts.append(f'<path d="M{legend + 4} 30V44" stroke="black" stroke-width="2"/>')
    parts.append(text(legend + 12, 41, "goal"))
    bottom = TOP + ROW * len(figures["works"])
    for ratio in (0.5, 1, 2, 4, 8):
        stroke = "black" if ratio == 1 else "#cccccc"
        parts.append(f'<path d="M{place(ratio)} {TOP - 4}V{bottom}" stroke="{stroke}"/>')
        name = figures["peer"] if ratio == 1 else f"{ratio:g}x"
        parts.append(text(place(ratio), bottom + 16, name, 'text-anchor="middle"'))
    for row, work in enumerate(figures["works"]):
        y = TOP + ROW * row
        parts.append(text(LEFT - 10, y + 19, work["name"], 'text-anchor="end"'))
        for number, series in enumerate(figures["series"]):
            ratio = better(work, series)
            top, start, end = y + 2 + BAR * number, *sorted((place(1), place(ratio)))
            parts.append(
                f'<rect x="{start}" y="{top}" width="{round(end - start, 1)}" height="{BAR - 1}" '
                f'fill="{COLOURS[number]}"/>'
            )
            parts.append(text(max(end, place(1)) + 5, top + 10, f"{ratio:.2g}x", 'font-size="10"'))
        parts.append(f'<path d="M{place(goal(work))} {y}V{y + 30}" stroke="black" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    stale = []
    for source in sorted(pathlib.Path(__file__).parent.glob("*.json")):
        drawing, target = draw(json.loads(source.read_text())), source.with_suffix(".svg")
        if sys.argv[1:] != ["--check"]:
            target.write_text(drawing)
        elif not target.exists() or target.read_text() != drawing:
            stale.append(target.name)
    if stale:
        raise SystemExit(f"{', '.join(stale)}: not what the figures give; run docs/figures/plot.py")


if __name__ == "__main__":
    main()
