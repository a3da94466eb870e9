"""Figures of chapter 9: one layer on two lanes in each mode, and which graph runs which batch.

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

from labs.lab09_cudagraph_mode.resolve import AttentionCGSupport, resolve_mode
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PREDICTED,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
)
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import Mode, Work, around, input_copy, kernel_us, launched, step_time

COLOURS = {
    "engine": (GREY, "CPU: engine"),
    "copy": (PURPLE, "copy of inputs"),
    "launch": (ORANGE, "CPU: launch of one kernel"),
    "graph": (VERMILION, "CPU: launch of a graph"),
    "wait": (PALE, "CPU: waits for the GPU"),
    "kernel": (BLUE, "GPU: kernel launched alone"),
    "node": (SKY, "GPU: kernels in a graph"),
}
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
    boxes = [Box(CPU_LOW, "engine", "engine", 0.0, cpu_us)]
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
    boxes.append(Box(CPU_LOW, "engine", "engine", cpu_us, cpu_us + beside_us))  # the next step's
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
    if mode == "full":
        groups = [("graph", list(ops))]
    else:
        for splitting, group in groupby(ops, key=lambda op: op.splitting):
            inside = list(group)
            if mode == "eager" or splitting:
                groups += [("launch", [op]) for op in inside]
            else:
                groups.append(("graph", inside))
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
                    edgecolor="white", linewidth=edge,
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
    axes.legend(
        handles=[Patch(color=COLOURS[kind][0], label=COLOURS[kind][1]) for kind in kinds],
        loc="center left", ncols=columns, columnspacing=1.4, handlelength=1.2, borderaxespad=0,
    )  # fmt: skip


# ---------------------------------------------------------------- one step, three modes


def split_step(path: Path) -> None:
    """The beginning of a decode step: eager, in pieces, as one graph."""
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    ops = step_ops(config, StepShape.decode(1, 512), "fused9")
    ways: tuple[tuple[str, Mode], ...] = (
        ("NONE", "eager"), ("PIECEWISE", "piecewise"), ("FULL", "full"),
    )  # fmt: skip
    begin_us = spec.host_step_us
    end_us = begin_us + WINDOW_US
    none, pieces, full = (_layers_reached(laid_out(ops, spec, m)[0], end_us) for _, m in ways)
    with canvas(
        path, (13, 8.4),
        title=f"{WINDOW_US:g} µs reach layer {none} eagerly, layer {pieces} in pieces, layer "
        f"{full} in one graph",
        caption=f"{PREDICTED}: the first {WINDOW_US:g} µs of one decode step of Qwen3-0.6B on an "
        "H200, vLLM, batch 1, 512 tokens of context. 1, 2 …: attention of that layer.",
    ) as figure:  # fmt: skip
        rows = figure.subplots(4, 1, height_ratios=[0.55, 1, 1, 1])
        lane_legend(rows[0], ("copy", "launch", "graph", "engine", "kernel", "node"), 3)
        for axes, (name, mode) in zip(rows[1:], ways, strict=True):
            boxes, itl_us = laid_out(ops, spec, mode)
            issued = [b for b in boxes if b.low == CPU_LOW and b.kind not in ("engine", "wait")]
            draw_lanes(axes, boxes, begin_us, end_us, edge=0.6)
            _point_at_attention(axes, boxes, begin_us, end_us)
            axes.set_title(f"{name}: {len(issued)} launches, ITL {itl_us:,.0f} µs", pad=4)
        for axes in rows[1:-1]:
            axes.tick_params(axis="x", labelbottom=False)
        rows[-1].set_xlabel("µs since the step began")


WINDOW_US = 420.0


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
                textcoords="offset points", ha="center", size=13, weight="bold",
            )  # fmt: skip


# ---------------------------------------------------------------- modes, backends, batches

FACES = {"NONE": VERMILION, "PIECEWISE": GREEN, "FULL": BLUE}
BATCHES = (  # what the columns are called, num_reqs, num_tokens, uniform_token_count
    ("33 decodes", 33, 33, 1),
    ("32 decodes,\na prompt of 100", 33, 132, None),
    ("a prompt\nof 600", 1, 600, None),
)


def modes(path: Path) -> None:
    """What a mode becomes on a backend, and what then runs each kind of batch."""
    asked = list(CUDAGraphMode)
    with canvas(
        path, (13, 6.6),
        title="A mode is asked for, the attention backend has a veto, the batch decides",
        caption="Rules of vLLM 0.33 as mini_engine/dispatch has them: model split "
        "at attention, compiled with VLLM_COMPILE, no speculation; max_num_seqs 256.",
    ) as figure:  # fmt: skip
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        for row, mode in enumerate(asked):
            for column, support in enumerate(AttentionCGSupport):
                _cell(left, row, column, *_resolved(mode, support))
        supports = ["NEVER", "single\ndecode", "uniform\nbatch", "ALWAYS"]
        _grid(left, "what a backend makes of it", [mode.name for mode in asked], supports)
        for row, mode in enumerate(asked):
            sizes = default_capture_sizes(256, 8192, mode=mode)
            dispatcher = GraphDispatcher(mode, sizes, 256)
            for column, (_, reqs, tokens, uniform) in enumerate(BATCHES):
                ran = dispatcher.dispatch(reqs, tokens, uniform)
                _cell(right, row, column, f"{ran.mode.name}\n{ran.num_tokens} rows", ran.mode.name)
        _grid(right, "what then runs a batch", [""] * len(asked), [name for name, *_ in BATCHES])


def _resolved(mode: CUDAGraphMode, support: AttentionCGSupport) -> tuple[str, str]:
    """What the mode becomes, in short, and the run-time mode that its colour stands for."""
    try:
        became = resolve_mode(
            mode, support, attention_in_splitting_ops=True, compilation_mode="VLLM_COMPILE"
        )
    except ValueError:
        return "refused", ""
    words = {"FULL_AND_PIECEWISE": "FULL_AND_\nPIECEWISE", "FULL_DECODE_ONLY": "FULL_DECODE\n_ONLY"}
    face = became.name if became.name in FACES else became.decode_mode().name
    return words.get(became.name, became.name), face


def _cell(axes: Axes, row: int, column: int, words: str, face: str) -> None:
    colour = FACES.get(face, PALE)
    axes.add_patch(
        Rectangle((column, row), 1, 1, facecolor=colour, alpha=0.3, edgecolor="white", linewidth=3)
    )
    axes.text(column + 0.5, row + 0.5, words, ha="center", va="center", size=12, linespacing=1.1)


def _grid(axes: Axes, title: str, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([at + 0.5 for at in range(len(columns))], columns, size=13)
    axes.set_yticks([at + 0.5 for at in range(len(rows))], rows, size=13)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_title(title)
    for side in axes.spines.values():
        side.set_visible(False)


FIGURES = {"09-pieces.png": split_step, "09-modes.png": modes}
