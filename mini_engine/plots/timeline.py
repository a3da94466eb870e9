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
ZOOM_US = 60.0
MARGIN_INCHES = 1.8  # of the width, what an axis does not get: to know which names fit
CPU_TALL, GPU_TALL, GPU_ZOOM_TALL = 0.8, 1.0, 3.1  # heights of lanes, in lanes ...
LANE_INCHES = 0.44  # ... of so many inches


class _Look(NamedTuple):
    """How steps are drawn."""

    width: float  # inches
    points: float  # of the names in the boxes
    legend: tuple[int, float]  # its columns, and its height in lanes
    room: float  # of the axis behind the longest step, in steps
    length: str  # what the whole step is called
    from_: str  # where the short windows begin, if they do not begin together: ...
    first: str  # ... at this


DECODE = _Look(16.0, 12.0, (4, 1.2), 0.12, "ITL", "its first call", "the first kernel")
# Where a picture 7.5 inches wide is shown on a phone, 390 pixels wide, 14 points are 10 pixels.
RECORDED = _Look(7.5, 14.0, (2, 3.2), 0.25, "in all", "a layer's attention", "a layer's attention")


class _Step(NamedTuple):
    """One timeline, from time 0, with its figures."""

    name: str  # as the beginning of a sentence
    events: list[TraceEvent]
    itl_us: float
    idle: float  # share of the step in which the GPU had nothing to do
    begin_us: float  # of the short window


def timeline(
    timelines: Mapping[str, Sequence[TraceEvent]],
    path: Path | str,
    *,
    title: str | None = None,
    caption: str = PREDICTED,
    zoom_us: float = ZOOM_US,
    recorded_us: Mapping[str, float] | None = None,
) -> None:
    """Write the figure to `path`. Without a `title`, the first timeline is held against the last.

    The short windows are `zoom_us` wide, from the first call that is not the engine's own work, or
    from `recorded_us`, counted from the first event of each: these are steps as they were recorded,
    drawn to be read on a phone, and they may have another work than to decode.
    `caption` names model, device and op list, and says whether they are predicted. Raises
    ValueError when there is no timeline, or one has no events on the GPU.
    """
    look, begins = (RECORDED, recorded_us) if recorded_us else (DECODE, {})
    steps = [_step(name, events, begins.get(name)) for name, events in timelines.items()]
    if not steps:
        raise ValueError("no timelines: give the events of at least one step")
    first, last = steps[0], steps[-1]
    finding = f"{first.name}: ITL {first.itl_us / 1e3:.2f} ms, the GPU idle {first.idle:.0%}"
    if last is not first:
        finding += f". {last.name}: {last.itl_us / 1e3:.2f} ms, idle {last.idle:.0%}"
    # engines that do not work equally long before it are drawn from their first call on
    together = len({step.begin_us for step in steps}) == 1 and not recorded_us
    since = "the step began" if together else look.from_
    columns, legend_tall = look.legend
    whole_us = max(step.itl_us for step in steps) * (1 + look.room)
    heights = [CPU_TALL + GPU_TALL] * len(steps) + [CPU_TALL + GPU_ZOOM_TALL] * len(steps)
    lanes = sum(heights) + legend_tall - 1.2
    size = (look.width, 3.0 + LANE_INCHES * lanes + 0.7 * len(steps))
    with canvas(path, size, title=title or finding, caption=caption) as figure:
        rows = figure.subplots(2 * len(steps) + 1, 1, height_ratios=[legend_tall, *heights])
        above, below = rows[1 : len(steps) + 1], rows[len(steps) + 1 :]
        _legend(rows[0], steps, columns)
        for axes, step in zip(above, steps, strict=True):
            _whole(axes, step, whole_us, look)
        above[-1].set_xlabel("ms since the step began: the whole step")
        for axes, step in zip(below, steps, strict=True):
            _zoom(axes, step, 0.0 if together else step.begin_us, zoom_us, look)
        below[-1].set_xlabel(f"µs since {since}: the same {zoom_us:,g} µs of each")
        for axes in (*above[:-1], *below[:-1]):
            axes.tick_params(axis="x", labelbottom=False)


def _step(name: str, events: Sequence[TraceEvent], begin_us: float | None) -> _Step:
    if not any(event.lane == GPU for event in events):
        raise ValueError(f"timeline {name!r}: no events on the GPU, so there is no step to draw")
    zero = min(event.start_us for event in events)
    moved = [replace(e, start_us=e.start_us - zero) for e in events if e.lane in LANES]
    itl_us = max(event.end_us for event in moved)
    if begin_us is None:
        at_work = [e for e in moved if e.lane == GPU or e.category not in ("host", "wait")]
        begin_us = min(e.start_us for e in at_work)
    name = name[:1].upper() + name[1:]
    return _Step(name, moved, itl_us, 1 - busy_us(moved, GPU) / itl_us, begin_us)


# ---------------------------------------------------------------- panels


def _legend(axes: Axes, steps: Sequence[_Step], columns: int) -> None:
    """What the colours that are used mean."""
    used = {e.category for step in steps for e in step.events}
    shown = [COLOURS[c] for c in COLOURS if c in used] + [OTHER] * bool(used - set(COLOURS))
    axes.set_axis_off()
    legend = axes.legend(
        handles=[Patch(color=colour, label=label) for colour, label in shown],
        loc="upper left", ncols=columns, borderaxespad=0,
        columnspacing=0.35 * columns, handlelength=0.4 + 0.2 * columns,
    )  # fmt: skip
    legend.set_in_layout(columns > 2)  # on a phone, a long name must not make the lanes narrow


def _whole(axes: Axes, step: _Step, end_us: float, look: _Look) -> None:
    """The whole step, on an axis that all steps share, with its ITL at its end."""
    _lanes(axes, GPU_TALL)
    _boxes(axes, step.events, 0.001, GPU_TALL, edge=0.0)
    axes.set_xlim(0, end_us / 1e3)
    end_ms = step.itl_us / 1e3
    axes.axvline(end_ms, color="black", linewidth=1.5)
    axes.text(
        end_ms, (CPU_TALL + GPU_TALL) / 2, f"  {look.length}\n  {end_ms:.2f} ms",
        va="center", weight="bold", linespacing=1.3,
    )  # fmt: skip
    idle = f": GPU idle {step.idle:.0%} of the step" if look is DECODE else ""
    axes.set_title(f"{step.name}{idle}", pad=3)


def _zoom(axes: Axes, step: _Step, zero_us: float, zoom_us: float, look: _Look) -> None:
    """A short window, with names in the boxes where they fit. `zero_us`: the axis's 0."""
    begin_us = step.begin_us - zero_us - 0.02 * zoom_us
    end_us = begin_us + zoom_us
    moved = [replace(e, start_us=e.start_us - zero_us) for e in step.events]
    inside = [e for e in moved if e.end_us > begin_us and e.start_us < end_us]
    _lanes(axes, GPU_ZOOM_TALL)
    _boxes(axes, inside, 1.0, GPU_ZOOM_TALL, edge=0.8)
    axes.set_xlim(begin_us, end_us)
    kernels = sum(e.lane == GPU and e.category != "copy" and e.end_us <= end_us for e in inside)
    axes.set_title(f"{step.name}, from {look.first} on: {kernels} done in {zoom_us:,g} µs", pad=3)
    for event in inside:
        left, right = max(event.start_us, begin_us), min(event.end_us, end_us)
        label, turned = _fit(
            event, (right - left) / zoom_us * (look.width - MARGIN_INCHES), look.points
        )
        if label:
            colour = COLOURS.get(event.category, OTHER)[0]
            middle = GPU_ZOOM_TALL / 2 if event.lane == GPU else GPU_ZOOM_TALL + CPU_TALL / 2
            axes.text(
                (left + right) / 2, middle, label, size=look.points, rotation=90 if turned else 0,
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


def _fit(event: TraceEvent, inches: float, points: float) -> tuple[str, bool]:
    """What fits into a box of that width ("" for nothing), and whether turned by 90 degrees."""
    letter, line = points / 72 * 0.6, points / 72 * 1.1  # inches
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
