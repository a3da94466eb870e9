"""The first page: what its template is given.

The race's table is that of `course/draw/ch00_race.py`, the path that of course/README.md, and the
points are the published steps of `mini_engine validate`, predicted by a fit without their source.
"""

from __future__ import annotations

import re
import subprocess
from itertools import groupby
from math import log10
from pathlib import Path
from statistics import median
from typing import Any

from course.draw.ch00_race import race
from course.draw.ch14 import shipped_rows
from course.site.path import chapters
from course.site.stills import still

WIDE, TALL, LEFT, BELOW = 460, 360, 44, 40  # of the picture, and the room for its numbers
ENDS = 0.8, 100.0  # ms, on both axes, which are logarithmic
TICKS = 1, 3, 10, 30, 100


def context(root: Path) -> dict[str, Any]:
    """For `landing.html`."""
    eager, path = race()["eager"], chapters(root)
    rows = [row for row in shipped_rows() if row.left_out_error is not None]
    return {
        "idle": f"{1 - eager.busy[0] / eager.itl[0]:.0%}",
        "parts": [(part, list(of)) for part, of in groupby(path, key=lambda one: one.part)],
        "hours": re.findall(r"^About (\d+) hours", (root / "course/README.md").read_text(), re.M)[
            0
        ],
        "first_lab": next(lab for chapter in path for lab in chapter.labs.values()),
        "points": len(shipped_rows()),
        "unseen": f"{median(abs(row.left_out_error or 0.0) for row in rows):.1%}",
        "scatter": scatter(rows),
        "still": still("race"),
        "clone": clone(root),
    }


def clone(root: Path) -> str:
    """How to get the repository, if git knows where it came from: a line for a shell, or ""."""
    asked = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        url = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
    address = re.fullmatch(r"https://[\w./-]+?/([\w-]+)(\.git)?", url)
    return f"git clone {url} && cd {address[1]}" if address else ""


def scatter(rows: Any) -> str:
    """Measured against predicted, as an SVG: a path of dots for each way of launching."""

    def x(ms: float) -> float:
        return LEFT + (WIDE - LEFT - 16) * log10(ms / ENDS[0]) / log10(ENDS[1] / ENDS[0])

    def y(ms: float) -> float:
        return TALL - BELOW - (TALL - BELOW - 8) * log10(ms / ENDS[0]) / log10(ENDS[1] / ENDS[0])

    low, high = ENDS
    parts = [
        f'<path class="tenth" d="M{x(low):.0f} {y(low / 1.1):.0f}L{x(high):.0f} {y(high / 1.1):.0f}'
        f'V{y(high * 1.1):.0f}L{x(low):.0f} {y(low * 1.1):.0f}z"/>'
    ]
    for mode in ("NONE", "FULL"):
        dots = "".join(
            f"M{x(row.point.itl_ms):.0f} {y(row.left_out_ms):.0f}h0"
            for row in rows
            if row.launched == mode
            and all(low <= ms <= high for ms in (row.point.itl_ms, row.left_out_ms))
        )
        parts.append(f'<path class="dots {mode.lower()}" d="{dots}"/>')
    for tick in TICKS:
        parts.append(
            f'<text x="{x(tick):.0f}" y="{TALL - BELOW + 18}" text-anchor="middle">{tick}</text>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick}</text>')
    parts.append(f'<text x="{WIDE - 4}" y="{TALL - 4}" text-anchor="end">measured, ms</text>')
    parts.append('<text x="2" y="-6">predicted, ms</text>')
    return (
        f'<svg viewBox="0 -20 {WIDE} {TALL + 20}" role="img" aria-label="Predicted against '
        f'measured milliseconds of {len(rows)} decode steps">{"".join(parts)}</svg>'
    )
