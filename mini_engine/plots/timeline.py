"""One step on two lanes: what the CPU and the GPU did, for several ways to launch it.

In:  for each way ("eager", "piecewise", "one graph") the events of one step, as `TraceEvent`s.
Out: a PNG. Above, the whole step, on one time axis for all; below, the same short window of each,
     large enough to read the names of the kernels.

Time 0 is the first event of each timeline. Where a GPU lane is empty, the GPU has nothing to do;
the share of that time is written above the lane.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from mini_engine.plots.canvas import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PREDICTED,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
)
from mini_engine.sim.trace import CPU, GPU, LANES, TraceEvent, busy_us

COLOURS = {  # category: colour and what the legend calls it
    "host": (GREY, "CPU: engine"),
    "copy": (PURPLE, "copy of inputs"),
    "launch": (ORANGE, "CPU: launch of one kernel"),
    "graph": (VERMILION, "CPU: launch of a graph"),
    "wait": (PALE, "CPU: waits for the GPU"),
    "kernel": (BLUE, "GPU: kernel launched alone"),
    "node": (SKY, "GPU: kernel in a graph"),
}
OTHER = (PALE, "other")
DARK = (BLUE, GREY, VERMILION)  # text on these is white
WIDTH_INCHES = 16.0
ZOOM_US = 60.0
PLOT_INCHES = 14.2  # of the width, what an axis gets: to know which names fit
POINTS = 12.0  # of the names in the boxes
CPU_TALL, GPU_TALL, GPU_ZOOM_TALL = 0.8, 1.0, 3.1  # heights of lanes, in lanes ...
LANE_INCHES = 0.44  # ... of so many inches


class _Step(NamedTuple):
    """One timeline, from time 0, with its figures."""

    name: str  # as the beginning of a sentence
    events: list[TraceEvent]
    itl_us: float
    idle: float  # share of the step in which the GPU had nothing to do
    begin_us: float  # of the first thing that is not the engine's own work


def timeline(
    timelines: Mapping[str, Sequence[TraceEvent]],
    path: Path | str,
    *,
    title: str | None = None,
    caption: str = PREDICTED,
    zoom_us: float = ZOOM_US,
) -> None:
    """Write the figure to `path`. Without a `title`, the first timeline is held against the last.

    The short windows are `zoom_us` wide, from the first call that is not the engine's own work.
    `caption` names model, device and op list, and says whether they are predicted. Raises
    ValueError when there is no timeline, or one has no events on the GPU.
    """
    steps = [_step(name, events) for name, events in timelines.items()]
    if not steps:
        raise ValueError("no timelines: give the events of at least one step")
    first, last = steps[0], steps[-1]
    finding = f"{first.name}: ITL {first.itl_us / 1e3:.2f} ms, the GPU idle {first.idle:.0%}"
    if last is not first:
        finding += f". {last.name}: {last.itl_us / 1e3:.2f} ms, idle {last.idle:.0%}"
    # engines that do not work equally long before it are drawn from their first call on
    together = len({step.begin_us for step in steps}) == 1
    since = "the step began" if together else "its first call"
    whole_us = max(step.itl_us for step in steps)
    heights = [CPU_TALL + GPU_TALL] * len(steps) + [CPU_TALL + GPU_ZOOM_TALL] * len(steps)
    size = (WIDTH_INCHES, 3.0 + LANE_INCHES * sum(heights) + 0.7 * len(steps))
    with canvas(path, size, title=title or finding, caption=caption) as figure:
        rows = figure.subplots(2 * len(steps) + 1, 1, height_ratios=[1.2, *heights])
        above, below = rows[1 : len(steps) + 1], rows[len(steps) + 1 :]
        _legend(rows[0], steps)
        for axes, step in zip(above, steps, strict=True):
            _whole(axes, step, whole_us)
        above[-1].set_xlabel("time since the step began (ms): the whole step")
        for axes, step in zip(below, steps, strict=True):
            _zoom(axes, step, 0.0 if together else step.begin_us, zoom_us)
        below[-1].set_xlabel(f"time since {since} (µs): the same {zoom_us:g} µs of each")
        for axes in (*above[:-1], *below[:-1]):
            axes.tick_params(axis="x", labelbottom=False)


def _step(name: str, events: Sequence[TraceEvent]) -> _Step:
    if not any(event.lane == GPU for event in events):
        raise ValueError(f"timeline {name!r}: no events on the GPU, so there is no step to draw")
    zero = min(event.start_us for event in events)
    moved = [replace(e, start_us=e.start_us - zero) for e in events if e.lane in LANES]
    itl_us = max(event.end_us for event in moved)
    begin_us = min(e.start_us for e in moved if e.lane == GPU or e.category not in ("host", "wait"))
    name = name[:1].upper() + name[1:]
    return _Step(name, moved, itl_us, 1 - busy_us(moved, GPU) / itl_us, begin_us)


# ---------------------------------------------------------------- panels


def _legend(axes: Axes, steps: Sequence[_Step]) -> None:
    """What the colours that are used mean."""
    used = {e.category for step in steps for e in step.events}
    shown = [COLOURS[c] for c in COLOURS if c in used] + [OTHER] * bool(used - set(COLOURS))
    axes.set_axis_off()
    axes.legend(
        handles=[Patch(color=colour, label=label) for colour, label in shown],
        loc="upper left", ncols=4, columnspacing=1.4, handlelength=1.2, borderaxespad=0,
    )  # fmt: skip


def _whole(axes: Axes, step: _Step, whole_us: float) -> None:
    """The whole step, on an axis that all steps share, with its ITL at its end."""
    _lanes(axes, GPU_TALL)
    _boxes(axes, step.events, 0.001, GPU_TALL, edge=0.0)
    axes.set_xlim(0, whole_us / 1e3 * 1.12)
    end_ms = step.itl_us / 1e3
    axes.axvline(end_ms, color="black", linewidth=1.5)
    axes.text(
        end_ms, (CPU_TALL + GPU_TALL) / 2, f"  ITL\n  {end_ms:.2f} ms",
        va="center", weight="bold", linespacing=1.3,
    )  # fmt: skip
    axes.set_title(f"{step.name}: GPU idle {step.idle:.0%} of the step", pad=3)


def _zoom(axes: Axes, step: _Step, zero_us: float, zoom_us: float) -> None:
    """A short window, with names in the boxes where they fit. `zero_us`: the axis's 0."""
    begin_us = step.begin_us - zero_us - 0.02 * zoom_us
    end_us = begin_us + zoom_us
    moved = [replace(e, start_us=e.start_us - zero_us) for e in step.events]
    inside = [e for e in moved if e.end_us > begin_us and e.start_us < end_us]
    _lanes(axes, GPU_ZOOM_TALL)
    _boxes(axes, inside, 1.0, GPU_ZOOM_TALL, edge=0.8)
    axes.set_xlim(begin_us, end_us)
    kernels = sum(e.lane == GPU and e.category != "copy" and e.end_us <= end_us for e in inside)
    axes.set_title(
        f"{step.name}, from the first kernel on: {kernels} done in {zoom_us:g} µs", pad=3
    )
    for event in inside:
        left, right = max(event.start_us, begin_us), min(event.end_us, end_us)
        inches = (right - left) / zoom_us * PLOT_INCHES
        label, turned = _fit(event, inches)
        if label:
            colour = COLOURS.get(event.category, OTHER)[0]
            middle = GPU_ZOOM_TALL / 2 if event.lane == GPU else GPU_ZOOM_TALL + CPU_TALL / 2
            axes.text(
                (left + right) / 2, middle, label, size=POINTS, rotation=90 if turned else 0,
                ha="center", va="center" if turned else "center_baseline",
                color="white" if colour in DARK else "black",
                linespacing=0.95,
            )  # fmt: skip


def _lanes(axes: Axes, gpu_tall: float) -> None:
    """CPU above, GPU below; only vertical grid lines."""
    axes.set_ylim(0, gpu_tall + CPU_TALL)
    axes.set_yticks([gpu_tall / 2, gpu_tall + CPU_TALL / 2], [GPU, CPU], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.axhline(gpu_tall, color=GREY, linewidth=0.8)
    axes.grid(visible=False, axis="y")


def _boxes(
    axes: Axes, events: Sequence[TraceEvent], scale: float, gpu_tall: float, *, edge: float
) -> None:
    """One rectangle an event, all of a colour in one collection: quick for thousands."""
    heights = {GPU: (0.12, gpu_tall - 0.05), CPU: (gpu_tall + 0.05, gpu_tall + CPU_TALL - 0.1)}
    for category in {e.category: None for e in events}:  # in order of appearance, to repeat exactly
        polygons = []
        for e in events:
            if e.category == category:
                (low, high), left, right = heights[e.lane], e.start_us * scale, e.end_us * scale
                polygons.append([(left, low), (left, high), (right, high), (right, low)])
        colour = COLOURS.get(category, OTHER)[0]
        axes.add_collection(
            PolyCollection(
                polygons, facecolors=colour, edgecolors="white", linewidths=edge, snap=False
            )
        )


def _fit(event: TraceEvent, inches: float) -> tuple[str, bool]:
    """What fits into a box of that width ("" for nothing), and whether turned by 90 degrees."""
    letter, line = POINTS / 72 * 0.6, POINTS / 72 * 1.1  # inches
    if len(event.name) * letter < inches:
        return event.name, False
    if event.lane != GPU:
        return "", False
    tall = int(0.95 * LANE_INCHES * GPU_ZOOM_TALL / letter)  # letters that fit along the lane
    lines = [""]  # broken after "_", "." or a space
    for part in re.findall(r"[^_. ]*[_. ]?", event.name):
        if lines[-1] and len(lines[-1]) + len(part) > tall:
            lines.append("")
        lines[-1] += part
    fits = len(lines) * line < inches and max(map(len, lines)) <= tall
    return ("\n".join(lines), True) if fits else ("", True)
