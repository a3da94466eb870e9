"""One step on two lanes: what the CPU and the GPU did, for several ways to launch it.

Above, the whole step, on one time axis for all; below, the same short window of each, large enough
to read the names of the kernels. Time 0 is the first event of each timeline."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from mini_engine.plots import hue
from mini_engine.plots.canvas import PREDICTED, canvas, draw_boxes
from mini_engine.sim.trace import CPU, GPU, LANES, TraceEvent, busy_us

COLOURS = {  # category: colour and what the legend calls it
    "host": (hue.ENGINE, "CPU: engine"),
    "copy": (hue.COPY, "copy of inputs"),
    "launch": (hue.LAUNCH, "CPU: launch of one kernel"),
    "graph": (hue.CALL, "CPU: launch of a graph"),
    "wait": (hue.IDLE, "CPU: waits for the GPU"),
    "kernel": (hue.KERNEL, "GPU: kernel launched alone"),
    "node": (hue.NODE, "GPU: kernel in a graph"),
}
WIDTH_INCHES, MARGIN_INCHES = 16.0, 1.8  # of the figure, and what of it an axis does not get
CPU_TALL, GPU_TALL, GPU_ZOOM_TALL, LEGEND_TALL = 0.8, 1.0, 3.1, 1.2  # heights, in lanes ...
LANE_INCHES = 0.44  # ... of so many inches
POINTS = 12.0  # of the names in the boxes


class _Step(NamedTuple):
    name: str  # as the beginning of a sentence
    events: list[TraceEvent]  # from time 0
    itl_us: float
    idle: float  # share of the step in which the GPU had nothing to do
    begin_us: float  # of the short window


def timeline(
    timelines: Mapping[str, Sequence[TraceEvent]], path: Path | str, *, title: str | None = None,
    caption: str = PREDICTED, zoom_us: float = 60.0, middle: bool = False,
) -> None:  # fmt: skip
    """Without a `title`, the first timeline is held against the last. The short windows are
    `zoom_us` wide, from the first call that is not the engine's own work, or from the kernel in the
    `middle` of each step. `caption` names model, device and op list, and says whether they are
    predicted. Raises ValueError when one has no events on the GPU."""
    steps = [_step(name, events, middle) for name, events in timelines.items()]
    first, last = steps[0], steps[-1]
    finding = f"{first.name}: ITL {first.itl_us / 1e3:.2f} ms, the GPU idle {first.idle:.0%}"
    if last is not first:
        finding += f". {last.name}: {last.itl_us / 1e3:.2f} ms, idle {last.idle:.0%}"
    # engines that do not work equally long before it are drawn from their first call on
    together = len({step.begin_us for step in steps}) == 1
    whole_us = 1.12 * max(step.itl_us for step in steps)  # room for its length behind it
    heights = [CPU_TALL + GPU_TALL] * len(steps) + [CPU_TALL + GPU_ZOOM_TALL] * len(steps)
    tall_inches = 3.0 + LANE_INCHES * sum(heights) + 0.7 * len(steps)
    size = (WIDTH_INCHES, tall_inches)
    with canvas(path, size, title=title or finding, caption=caption) as figure:
        rows = figure.subplots(2 * len(steps) + 1, 1, height_ratios=[LEGEND_TALL, *heights])
        above, below = rows[1 : len(steps) + 1], rows[len(steps) + 1 :]
        used = {e.category for step in steps for e in step.events}
        handles = [Patch(color=c, label=told) for one, (c, told) in COLOURS.items() if one in used]
        rows[0].set_axis_off()
        rows[0].legend(
            handles=handles, loc="upper left", ncols=4, borderaxespad=0, columnspacing=1.4,
            handlelength=1.2,
        )  # fmt: skip
        for axes, step in zip(above, steps, strict=True):
            _whole(axes, step, whole_us)
        above[-1].set_xlabel("ms since the step began: the whole step")
        for axes, step in zip(below, steps, strict=True):
            _zoom(axes, step, 0.0 if together else step.begin_us, zoom_us, middle)
        since = "the step began" if together else "its middle" if middle else "its first call"
        below[-1].set_xlabel(f"µs since {since}: the same {zoom_us:,g} µs of each")
        for axes in (*above[:-1], *below[:-1]):
            axes.tick_params(axis="x", labelbottom=False)


def _step(name: str, events: Sequence[TraceEvent], middle: bool) -> _Step:
    if not any(event.lane == GPU for event in events):
        raise ValueError(f"timeline {name!r}: no events on the GPU, so there is no step to draw")
    zero = min(event.start_us for event in events)
    moved = [replace(e, start_us=e.start_us - zero) for e in events if e.lane in LANES]
    itl_us = max(event.end_us for event in moved)
    at_work = [e for e in moved if e.lane == GPU or e.category not in ("host", "wait")]
    begin_us = min(e.start_us for e in at_work)
    if middle:
        kernels = sorted(e.start_us for e in moved if e.lane == GPU)
        begin_us = kernels[len(kernels) // 2]
    idle = 1 - busy_us(moved, GPU) / itl_us
    return _Step(name[:1].upper() + name[1:], moved, itl_us, idle, begin_us)


def _whole(axes: Axes, step: _Step, end_us: float) -> None:
    _lanes(axes, step.events, 0.001, GPU_TALL, edge=0.0)
    axes.set_xlim(0, end_us / 1e3)
    end_ms = step.itl_us / 1e3
    axes.axvline(end_ms, color=hue.INK, linewidth=1.5)
    axes.text(
        end_ms, (CPU_TALL + GPU_TALL) / 2, f"  ITL\n  {end_ms:.2f} ms",
        va="center", weight="bold", linespacing=1.3,
    )  # fmt: skip
    axes.set_title(f"{step.name}: GPU idle {step.idle:.0%} of the step", pad=3)


def _zoom(axes: Axes, step: _Step, zero_us: float, zoom_us: float, middle: bool) -> None:
    """A short window, with names in the boxes where they fit. `zero_us`: the axis's 0."""
    begin_us = step.begin_us - zero_us - 0.02 * zoom_us
    end_us = begin_us + zoom_us
    moved = [replace(e, start_us=e.start_us - zero_us) for e in step.events]
    inside = [e for e in moved if e.end_us > begin_us and e.start_us < end_us]
    _lanes(axes, inside, 1.0, GPU_ZOOM_TALL, edge=0.8)
    axes.set_xlim(begin_us, end_us)
    kernels = sum(e.lane == GPU and e.category != "copy" and e.end_us <= end_us for e in inside)
    where = "its middle" if middle else "the first kernel"
    axes.set_title(f"{step.name}, from {where} on: {kernels} done in {zoom_us:,g} µs", pad=3)
    for event in inside:
        left, right = max(event.start_us, begin_us), min(event.end_us, end_us)
        label, turned = _fit(event, (right - left) / zoom_us * (WIDTH_INCHES - MARGIN_INCHES))
        if label:
            colour = COLOURS.get(event.category, (hue.IDLE,))[0]
            height = GPU_ZOOM_TALL / 2 if event.lane == GPU else GPU_ZOOM_TALL + CPU_TALL / 2
            axes.text(
                (left + right) / 2, height, label, size=POINTS, rotation=90 if turned else 0,
                ha="center", va="center" if turned else "center_baseline",
                color=hue.ink_on(colour), linespacing=0.95,
            )  # fmt: skip


def _lanes(
    axes: Axes, events: Sequence[TraceEvent], scale: float, gpu_tall: float, *, edge: float
) -> None:
    """CPU above, GPU below: one rectangle an event, all of a colour in one collection, which is
    quick for thousands."""
    axes.set_ylim(0, gpu_tall + CPU_TALL)
    axes.set_yticks([gpu_tall / 2, gpu_tall + CPU_TALL / 2], [GPU, CPU], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.axhline(gpu_tall, color=hue.ENGINE, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    heights = {GPU: (0.12, gpu_tall - 0.05), CPU: (gpu_tall + 0.05, gpu_tall + CPU_TALL - 0.1)}
    for category in {e.category: None for e in events}:  # in order of appearance, to repeat exactly
        polygons = []
        for e in (e for e in events if e.category == category):
            (low, high), left, right = heights[e.lane], e.start_us * scale, e.end_us * scale
            polygons.append([(left, low), (left, high), (right, high), (right, low)])
        colour = COLOURS.get(category, (hue.IDLE,))[0]
        draw_boxes(axes, polygons, colour, edge)


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
