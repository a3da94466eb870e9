"""Figures of chapter 9: one step on two lanes in each mode, and a recorded layer in pieces.

`laid_out` puts a step on the two lanes by the rule of `mini_engine.step.run`; chapters 8
and 15 draw with it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.plots.timeline import COLOURS
from mini_engine.sim.recorded import load_recording
from mini_engine.sim.trace import CPU, GPU
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import (
    Mode,
    Work,
    around,
    input_copy,
    is_live,
    kernel_us,
    launched,
    step_time,
)

CPU_LOW, GPU_LOW, TALL = 1.3, 0.05, 0.8  # where the two lanes stand


class Box(NamedTuple):
    """Something on a lane, in µs since the step began."""

    low: float
    kind: str
    label: str
    start_us: float
    end_us: float


def laid_out(
    ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1
) -> tuple[list[Box], float]:
    """Every kernel of a step on the two lanes, and its ITL, which `step_time` agrees to."""
    works = [("copy", [_COPY], input_copy(spec)), *_with_ops(ops, spec, mode)]
    before_us, beside_us = around(spec, num_reqs)
    cpu_us, end_us = before_us, 0.0
    boxes = [Box(CPU_LOW, "host", "engine", 0.0, cpu_us)]
    for kind, inside, work in works:
        boxes.append(Box(CPU_LOW, kind, inside[0].name, cpu_us, cpu_us + work.cpu_us))
        cpu_us += work.cpu_us
        start_us = max(cpu_us, end_us + spec.stream_gap_us if end_us else 0.0)
        end_us = start_us + work.gpu_us
        on_gpu = {"launch": "kernel", "graph": "node"}.get(kind, kind)
        for op in inside:  # of a graph one after the other, otherwise one
            took_us = kernel_us(op, spec) if kind == "graph" else work.gpu_us
            boxes.append(Box(GPU_LOW, on_gpu, op.name, start_us, start_us + took_us))
            start_us += took_us + spec.graph_gap_us
    boxes.append(Box(CPU_LOW, "host", "engine", cpu_us, cpu_us + beside_us))  # the next step's
    cpu_us += beside_us
    itl_us = max(cpu_us, end_us) + spec.sync_us
    boxes.append(Box(CPU_LOW, "wait", "wait", cpu_us, itl_us))
    assert abs(itl_us - step_time(ops, spec, mode, num_reqs).itl_us) < 1e-6
    return boxes, itl_us


_COPY = OpCost("copy", 0, 0)


def _with_ops(
    ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode
) -> list[tuple[str, list[OpCost], Work]]:
    """kind, ops and work of each launch, in the order of `launched`."""
    groups: list[tuple[str, list[OpCost]]] = []
    for live, group in groupby(ops, key=lambda op: is_live(mode, op.splitting, op.by)):
        inside = list(group)
        groups += [("launch", [op]) for op in inside] if live else [("graph", inside)]
    works = launched(ops, spec, mode)
    return [(kind, inside, work) for (kind, inside), work in zip(groups, works, strict=True)]


def draw_lanes(
    axes: Axes, boxes: Sequence[Box], begin_us: float, end_us: float, *, edge: float = 0.0
) -> None:
    """A window of the step; the caller sets the title and the labels."""
    for box in boxes:
        if box.end_us > begin_us and box.start_us < end_us:
            width = box.end_us - box.start_us
            axes.add_patch(
                Rectangle(
                    (box.start_us, box.low), width, TALL, facecolor=COLOURS[box.kind][0],
                    edgecolor=hue.PAPER, linewidth=edge,
                )
            )  # fmt: skip
    axes.set_xlim(begin_us, end_us)
    axes.set_ylim(0, CPU_LOW + TALL + 0.1)
    axes.set_yticks([GPU_LOW + TALL / 2, CPU_LOW + TALL / 2], ["GPU", "CPU"], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def lane_legend(axes: Axes, kinds: Sequence[str], columns: int) -> None:
    """What the colours mean, in an axis of its own."""
    axes.set_axis_off()
    told = {kind: COLOURS[kind][1].replace("launched ", "") for kind in kinds}
    legend = axes.legend(
        handles=[Patch(color=COLOURS[kind][0], label=told[kind]) for kind in kinds],
        loc="center left", ncols=columns, columnspacing=1, handlelength=0.9, borderaxespad=0,
    )  # fmt: skip
    legend.set_in_layout(False)  # a long name must not make the lanes narrow


# ---------------------------------------------------------------- one step, three modes


def split_step(path: Path) -> None:
    """The beginning of a decode step: eager, in pieces, as one graph."""
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    ops = step_ops(config, StepShape.decode(1, 512), spec.ops)
    ways: tuple[tuple[str, Mode], ...] = (
        ("NONE", "eager"), ("PIECEWISE", "piecewise"), ("FULL", "full"),
    )  # fmt: skip
    begin_us = spec.host_step_us
    end_us = begin_us + WINDOW_US
    none, pieces, full = (_layers_reached(laid_out(ops, spec, m)[0], end_us) for _, m in ways)
    with canvas(
        path, (6.9, 8.76),
        title=f"{WINDOW_US:g} µs reach layer {none} eagerly, layer {pieces} in pieces, layer "
        f"{full} in one graph",
        caption="Predicted: the beginning of one decode step of Qwen3-0.6B on an H200. 1, 2 …: "
        "attention of that layer. Grey: the engine.",
    ) as figure:  # fmt: skip
        rows = figure.subplots(4, 1, height_ratios=[0.5, 1, 1, 1])
        lane_legend(rows[0], ("launch", "graph", "kernel", "node"), 2)
        for axes, (name, mode) in zip(rows[1:], ways, strict=True):
            boxes, itl_us = laid_out(ops, spec, mode)
            boxes = [_copy_as_launch(box) for box in boxes]  # one colour fewer to explain
            issued = [b for b in boxes if b.low == CPU_LOW and b.kind not in ("host", "wait")]
            draw_lanes(axes, boxes, begin_us, end_us, edge=0.6)
            _point_at_attention(axes, boxes, begin_us, end_us)
            axes.set_title(f"{name}: {len(issued)} launches, step {itl_us:,.0f} µs", pad=4)
        for axes in rows[1:-1]:
            axes.tick_params(axis="x", labelbottom=False)
        rows[-1].set_xlabel("µs since the step began")


WINDOW_US = 420.0


def _copy_as_launch(box: Box) -> Box:
    """The copy of the inputs is one more launch, and one more thing that the GPU does."""
    if box.kind != "copy":
        return box
    return box._replace(kind="launch" if box.low == CPU_LOW else "kernel")


def _layers_reached(boxes: Sequence[Box], end_us: float) -> int:
    """How many layers' attention has begun on the GPU by then."""
    reached = (b for b in boxes if b.label == "attention" and b.low == GPU_LOW)
    return sum(box.start_us < end_us for box in reached)


def _point_at_attention(axes: Axes, boxes: Sequence[Box], begin_us: float, end_us: float) -> None:
    attentions = (box for box in boxes if box.label == "attention" and box.low == GPU_LOW)
    for layer, box in enumerate(attentions, start=1):
        if begin_us < box.start_us < end_us:
            axes.annotate(
                str(layer), ((box.start_us + box.end_us) / 2, GPU_LOW + TALL), xytext=(0, 3),
                textcoords="offset points", ha="center", size=14, weight="bold",
            )  # fmt: skip


# ---------------------------------------------------------------- recorded: a layer in pieces

RECORDED = "vllm-gpt-oss-piecewise"
OPS = {  # what the CPU does between two graphs, by the name in the recording: colour, words
    "hipGraphLaunch": (hue.CALL, "graph"),
    "vllm::unified_kv_cache_update": (hue.LAUNCH, "KV write"),
    "vllm::unified_attention_with_output": (hue.LAUNCH, "attention, live"),
}


def recorded_pieces(path: Path) -> None:
    """Two graph launches of a recorded step on the CPU, and the same layer on the GPU."""
    recording = load_recording(RECORDED)
    cpu = [e for e in recording.events if e.lane == CPU and e.name in OPS]
    gpu = sorted((e for e in recording.events if e.lane == GPU), key=lambda e: e.start_us)
    graphs = sorted((e for e in cpu if e.category == "graph"), key=lambda e: e.start_us)
    first, last = graphs[LAYER], graphs[LAYER + 1]
    launch, whole = first.duration_us, last.start_us - first.start_us
    runs = [(live, list(group)) for live, group in groupby(gpu, lambda e: e.category != "node")]
    at = [place for place, (live, _) in enumerate(runs) if not live][LAYER]
    with canvas(
        path, (6.9, 5.96),
        title=f"Recorded: the CPU needs {launch:.0f}\N{NO-BREAK SPACE}µs for a graph, then "
        f"{whole - launch:.0f}\N{NO-BREAK SPACE}µs until the next",
        caption="One layer of gpt-oss-20b in vLLM on an MI300X, 8,192 tokens, PyTorch's profiler, "
        "which slows the CPU.",
    ) as figure:  # fmt: skip
        above, below = figure.subplots(2, 1)
        for event in cpu:
            start = event.start_us - first.start_us
            if 0 <= start <= whole + launch:
                colour, words = OPS[event.name]
                above.barh(0, event.duration_us, left=start, color=colour, edgecolor=hue.PAPER)
                if event.duration_us > 0.3 * whole:
                    above.text(start + event.duration_us / 2, 0, words, ha="center", va="center")
                else:
                    aside = 1.5 * launch if words == "KV write" else 0.0  # or it runs into "graph"
                    above.text(start + aside, 0.45, words, size=14, va="bottom")
        _one_lane(above, "CPU", whole + 1.5 * launch)
        zero = runs[at][1][0].start_us
        for live, group in runs[at : at + 3]:
            start, end = group[0].start_us - zero, group[-1].end_us - zero
            below.barh(0, end - start, left=start, color=hue.KERNEL if live else hue.NODE)
            words = f"{len(group)} live" if live else f"{len(group)} kernels of a graph"
            if live:
                below.text(start, 0.45, words, size=14, va="bottom", ha="center")
            else:
                below.text((start + end) / 2, 0, words, ha="center", va="center", size=14)
        _one_lane(below, "GPU", group[-1].end_us - zero)
        below.set_xlabel("µs; each lane from its own beginning")


LAYER = 5  # any but the first, which warms up


def _one_lane(axes: Axes, name: str, end_us: float) -> None:
    axes.set_xlim(0, end_us)
    axes.set_ylim(-0.5, 0.9)
    axes.set_yticks([0], [name], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


FIGURES = {"09-pieces.svg": split_step, "09-recorded.svg": recorded_pieces}
