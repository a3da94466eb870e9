"""Figures of chapter 5: the life of a graph on two lanes, and what a graph holds on to.

`life` is one rung of the decode step: warm-up, capture, two replays. `addresses` is the smallest
worked example of the chapter, with the addresses that it prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import PREDICTED, canvas, draw_boxes
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.sim.predict import play
from mini_engine.sim.recorded import load_recording
from mini_engine.sim.trace import CPU, TraceEvent
from mini_engine.step.cards import load_spec
from mini_engine.step.curves import capture_cost
from mini_engine.step.kernels import StepShape, step_ops

CONTEXT = 512
MARGIN_US = 400.0  # of the capture, before the part that is enlarged
LABELS = {
    "launch": "CPU orders each kernel",
    "host": "CPU, all other work",
    "graph": "CPU launches the graph",
    "kernel": "GPU works",
}
COLOURS = {
    "launch": hue.LAUNCH,
    "host": hue.ENGINE,
    "copy": hue.COPY,
    "graph": hue.CALL,
    "wait": hue.IDLE,
    "kernel": hue.KERNEL,
    "node": hue.NODE,
}


@dataclass(frozen=True)
class Life:
    """One rung, from warm-up to second replay. Times in µs from the warm-up's first launch."""

    events: tuple[TraceEvent, ...]
    phases: tuple[tuple[str, float, float], ...]  # name, begin, end
    kernels: int  # of a step
    nodes: int  # those of them that are in the graph
    launch_us: float  # of a replay, on the CPU


def one_rung() -> Life:
    """The decode step of vLLM for one request: warmed up, captured as one graph, replayed twice."""
    spec = load_spec("h200")
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, CONTEXT), spec.ops)
    cost = capture_cost(ops, spec, "full")
    eager, _ = play([op for op in ops if op.by != "torch"], spec, "eager")  # what a capture warms
    replayed, counted = play(ops, spec, "full")
    step = [event for event in eager if event.category in ("copy", "launch", "kernel")]
    began = min(event.start_us for event in step)
    events, marks = [moved(event, -began) for event in step], []
    now = 0.0
    for name, took in (
        ("warm-up", cost.warmup_us),
        ("capture", cost.capture_us),
        ("instantiate", cost.instantiate_us),
    ):
        if name != "warm-up":
            kind = "launch" if name == "capture" else "host"  # Python writes each order once more
            events.append(TraceEvent(CPU, name, now, took, kind))
        marks.append((name, now, now + took))
        now += took
    for name in ("replay", "replay again"):
        took = max(event.end_us for event in replayed)
        events += [moved(event, now) for event in replayed]
        marks.append((name, now, now + took))
        now += took
    nodes = sum(event.category == "node" for event in replayed)
    launch_us = next(event.duration_us for event in replayed if event.category == "graph")
    return Life(tuple(events), tuple(marks), counted.kernels, nodes, launch_us)


def moved(event: TraceEvent, by_us: float) -> TraceEvent:
    return replace(event, start_us=event.start_us + by_us)


def life(path: Path) -> None:
    """Warm-up, capture, instantiation and two replays of one rung, CPU above GPU."""
    rung = one_rung()
    captured = next(phase for phase in rung.phases if phase[0] == "capture")
    title = (
        f"Capture: {(captured[2] - captured[1]) / 1e3:.1f} ms of CPU, no GPU. "
        f"Replay: one call of {rung.launch_us:.1f} µs"
    )
    caption = (
        f"{PREDICTED}: vLLM's {rung.kernels} kernels, Qwen3-0.6B for one request on an H200. The "
        f"graph holds {rung.nodes} of them, the few around the model stay outside. Pale: the CPU "
        "waits."
    )
    *_, instantiate, first, last = rung.phases
    end = last[2]
    with canvas(path, (6.9, 7.9), title=title, caption=caption) as figure:
        key, whole, right = figure.subplots(3, 1, height_ratios=[0.4, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in LABELS],
            loc="upper left", ncols=2, borderaxespad=0, columnspacing=1, fontsize=14,
            handlelength=1.2,
        )  # fmt: skip
        begin = instantiate[1] - MARGIN_US
        at, wide = (begin / 1e3, 0.02), (end - begin) / 1e3 - 0.03
        whole.add_patch(Rectangle(at, wide, 1.98, fill=False, linewidth=2, linestyle="--"))
        whole.text((begin + end) / 2e3, 2.1, "below", ha="center", va="bottom", size=14)
        phases(whole, rung, rung.phases[:2], (0, end))
        phases(right, rung, (instantiate, first, last), (begin, end))
        right.set_xlabel("time (ms)")


def phases(
    axes: Axes,
    rung: Life,
    shown: Sequence[tuple[str, float, float]],
    between_us: tuple[float, float],
) -> None:
    """Some phases of the life with their names, from one moment to another."""
    lanes(axes, rung.events)
    for name, begin, end in shown:
        at, side = ((begin + end) / 2e3, "center") if end - begin > 1e3 else (end / 1e3, "right")
        axes.text(
            at, 2.1, f"{name} ", ha=side, va="bottom", weight="bold", size=14, zorder=3,
            bbox={"facecolor": hue.PAPER, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        axes.axvline(begin / 1e3, color=hue.INK, linewidth=1)
        if name.startswith("replay"):
            axes.plot(begin / 1e3, 1.5, marker=9, markersize=14, color=COLOURS["graph"])
    axes.set(xlim=(between_us[0] / 1e3, between_us[1] / 1e3), ylim=(0, 2.6))


def lanes(axes: Axes, events: Sequence[TraceEvent]) -> None:
    """The events of a timeline as boxes, CPU above GPU. x in ms."""
    for category in COLOURS:
        boxes = []
        for event in events:
            if event.category == category:
                left, right = event.start_us / 1e3, event.end_us / 1e3
                low = 1.08 if event.lane == CPU else 0.08
                boxes.append([(left, low), (right, low), (right, low + 0.84), (left, low + 0.84)])
        draw_boxes(axes, boxes, COLOURS[category])
    axes.set_yticks([0.5, 1.5], ["GPU", "CPU"], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


# ---------------------------------------------------------------- addresses


def addresses(path: Path) -> None:
    """Names on the left, memory in the middle, the graph's node on the right."""
    device = Device(load_spec("h200"), memory_bytes=64 * 2**20)
    x, y = device.upload(np.ones(4, np.float32)), device.empty(4)
    with device.capture() as graph:
        device.launch(k.scale, y, x, by=2.0)
    graph.replay()
    rebound = device.upload(np.full(4, 5, np.float32))
    (node,) = graph.nodes
    cells = [
        (x, "1 1 1 1", "x during the capture"),
        (y, "2 2 2 2", "the output"),
        (rebound, "5 5 5 5", "x after x = fives"),
    ]
    title = "The name x has moved on; the graph still reads the address it was given"
    caption = "The simulated device after x was bound anew and the graph replayed."
    with canvas(path, (6.9, 5.36), title=title, caption=caption) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0.1, 8.2), ylim=(-0.3, 3.45))
        for text, at in (("names", 0.4), ("memory of the GPU", 3.45), ("node of the graph", 6.75)):
            axes.text(at, 3.4, text, ha="center", va="top", weight="bold", size=15)
        for row, (buffer, contents, what) in enumerate(cells):
            _cell(axes, 2.3 - row, buffer, contents, what)
        for name, height, colour in (
            ("x", 0.55, hue.KERNEL),
            ("y", 1.55, hue.KERNEL),
            ("x", 2.55, hue.OTHER),
        ):
            axes.text(
                0.4, height, name, size=22, ha="center", va="center", family="monospace",
                color=hue.OTHER if colour == hue.OTHER else hue.INK,
            )  # fmt: skip
            style = "--" if colour == hue.OTHER else "-"
            _arrow(axes, (0.6, height), (1.95, height), colour, style=style)
        axes.text(1.2, 2.66, "before", ha="center", va="bottom", color=hue.SOFT, size=14)
        axes.add_patch(Rectangle((5.4, 1.15), 2.8, 1.8, facecolor=hue.PANEL, edgecolor=hue.KERNEL))
        lines = [f"kernel {node.label}", f"in  {node.buffers[1].address:#x}"]
        lines += [f"out {node.buffers[0].address:#x}", f"by  {node.scalars['by']}"]
        axes.text(5.47, 2.05, "\n".join(lines), va="center", family="monospace", size=14)
        _arrow(axes, (4.95, 2.55), (5.4, 2.45), hue.MARK)
        _arrow(axes, (5.4, 1.6), (4.95, 1.55), hue.MARK)


def _cell(axes: Axes, bottom: float, buffer: Buffer, contents: str, what: str) -> None:
    axes.add_patch(Rectangle((1.95, bottom), 3.0, 0.62, facecolor=hue.PANEL, edgecolor=hue.ENGINE))
    text = f"{buffer.address:#x}\n{contents}"
    axes.text(3.45, bottom + 0.3, text, ha="center", va="center", family="monospace", size=14)
    axes.text(3.45, bottom - 0.04, what, ha="center", va="top", size=14, color=hue.SOFT)


def _arrow(
    axes: Axes,
    begin: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    *,
    style: str = "-",
) -> None:
    arrow = FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=18, linewidth=2)
    arrow.set(color=colour, linestyle=style)
    axes.add_patch(arrow)


# ---------------------------------------------------------------- fork and join


def branches(path: Path) -> None:
    """Four kernels in a row, and the same four with a second stream for one of them."""
    title = "A fork lets two kernels run at once, and the graph ends one kernel earlier"
    caption = "Drawn for kernels of equal length that leave most of the GPU idle."
    rows = {"one stream": 2.6, "main stream": 1.3, "side stream": 0.0}
    with canvas(path, (6.9, 5.4), title=title, caption=caption) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(0.6, 7.9), ylim=(-0.15, 3.8))
        for text, low in rows.items():
            above = 0.35 if low == 0.0 else 0.9
            axes.text(0.7, low + above, text, va="center", weight="bold")
        boxes = [
            ("x + 1", 0, 2.6),
            ("h * 10", 1, 2.6),
            ("h * 100", 2, 2.6),
            ("tens + hundreds", 3, 2.6),
        ]
        boxes += [("x + 1", 0, 1.3), ("h * 10", 1, 0.0), ("h * 100", 1, 1.3)]
        boxes.append(("tens + hundreds", 2, 1.3))
        for text, place, low in boxes:
            colour = hue.KERNEL if low == 0.0 else hue.NODE
            left = 0.7 + 1.85 * place
            axes.add_patch(Rectangle((left, low), 1.55, 0.7, facecolor=colour, edgecolor=hue.INK))
            wrapped = text.replace(" + h", "\n+ h")
            axes.text(left + 0.775, low + 0.35, wrapped, ha="center", va="center", size=14)
        for low, places in ((2.6, 3), (1.3, 2)):
            for place in range(places):
                end = 0.7 + 1.85 * place + 1.55
                _arrow(axes, (end - 0.06, low + 0.35), (end + 0.36, low + 0.35), hue.INK)
        _arrow(axes, (2.25, 1.4), (2.65, 0.45), hue.MARK)
        _arrow(axes, (4.05, 0.45), (4.5, 1.35), hue.MARK)
        axes.text(2.2, 0.75, "fork", ha="right", color=hue.MARK, weight="bold")
        axes.text(4.5, 0.75, "join", color=hue.MARK, weight="bold")
        axes.text(7.8, 3.5, "time →", ha="right", va="center", size=14)


# ---------------------------------------------------------------- recorded


def recorded(path: Path) -> None:
    """Where the time of recorded steps went, launched one by one and as graphs."""
    parts = {
        "kernels run": hue.KERNEL,
        "GPU waits for launch calls": hue.CALL,
        "GPU waits, no launch call": hue.LAUNCH,
    }
    rows = []
    for way in ("eager", "graph"):
        for batch in (1, 16):
            table = load_recording(f"sglang-qwen3-0.6b-h100-{way}", batch).table
            assert table is not None
            assert table.idle_us is not None
            waits = (table.idle_in_launch_us or 0.0, table.idle_us)
            many = "1 request" if batch == 1 else f"{batch} requests"
            rows.append((f"{way}, {many}", (table.busy_us, *waits)))
    work, wait, left = rows[0][1][0] / 1e3, sum(rows[0][1][1:]) / 1e3, sum(rows[2][1][1:]) / 1e3
    title = f"Of {wait:.0f} ms of waiting the graph left {left:.1f}, and all {work:.1f} ms of work"
    caption = "Recorded by others with nsys: SGLang, Qwen3-0.6B, one H100 (YiconRain/profiling)."
    with canvas(path, (6.9, 6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for row, (_, shares) in enumerate(rows):
            left = 0.0
            for us, colour in zip(shares, parts.values(), strict=True):
                axes.barh(row, us / 1e3, left=left, color=colour)
                left += us / 1e3
            axes.text(left, row, f" {left:.1f} ms", va="center", weight="bold")
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.17 * max(sum(shares) for _, shares in rows) / 1e3)
        axes.set_xlabel("time of a step (ms)")
        axes.grid(visible=False, axis="y")
        axes.legend(
            handles=[Patch(color=colour, label=label) for label, colour in parts.items()],
            loc="upper right", bbox_to_anchor=(1, -0.22), fontsize=14, borderaxespad=0,
        )  # fmt: skip


FIGURES = {
    "05-life-of-a-graph.svg": life,
    "05-addresses.svg": addresses,
    "05-fork-and-join.svg": branches,
    "05-recorded.svg": recorded,
}
