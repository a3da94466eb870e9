"""Steps as stacked bars: what each of them spent its time on.

The picture is read on a phone: narrow, with large letters."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.patches import Patch

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

# Where the time of a step goes: first a kernel runs, then the GPU waits.
RUNS, WAITS = "a kernel runs", "no kernel runs"
LAUNCHES, OTHER_WORK = "idle: the CPU is in a launch call", "idle: the CPU does other work"
COLOURS = {RUNS: hue.KERNEL, WAITS: hue.IDLE, LAUNCHES: hue.CALL, OTHER_WORK: hue.LAUNCH}
WIDTH_INCHES = 6.9  # 14 points are 10 pixels where the picture is 358 wide


def step_bars(
    rows: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str, caption: str
) -> None:
    """A bar for each step, and below it the parts' names. `rows`: of each step ("recorded") its
    parts in µs, keys of `COLOURS` in that order."""
    shown = [part for part in COLOURS if any(parts.get(part) for parts in rows.values())]
    whole_ms = max(sum(parts.values()) for parts in rows.values()) / 1e3
    form = ".1f" if whole_ms > 8 else ".2f"  # two digits would not fit into a short part
    heights = [0.6 + 0.95 * len(rows), 0.3 * len(shown)]
    size = (WIDTH_INCHES, 2.6 + sum(heights))
    with canvas(path, size, title=title, caption=caption) as figure:
        axes, names = figure.subplots(2, 1, height_ratios=heights)
        for y, (step, parts) in enumerate(rows.items()):
            left = 0.0
            axes.text(0, y - 0.36, step, va="bottom")
            for part, us in parts.items():
                ms, colour = us / 1e3, COLOURS[part]
                axes.barh(y, ms, left=left, height=0.55, color=colour, edgecolor=hue.PAPER)
                if ms > 0.07 * whole_ms:
                    ink = hue.ink_on(colour)
                    axes.text(left + ms / 2, y, f"{ms:{form}}", ha="center", va="center", color=ink)
                left += ms
            axes.text(left + 0.01 * whole_ms, y, f"{left:{form}} ms", va="center", weight="bold")
        axes.set(xlim=(0, 1.25 * whole_ms), ylim=(len(rows) - 0.5, -0.8), xlabel="ms of one step")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        names.set_axis_off()
        handles = [Patch(color=COLOURS[part], label=part) for part in shown]
        names.legend(handles=handles, loc="upper left", borderaxespad=0, handlelength=1.2)
