"""The figures of chapter 11: who takes which numbers, and what one kernel saves. `lanes` serves 15.

In:  op lists (`mini_engine.step.kernels`); for each, an engine on an H200 and a usual server.
Out: two pictures, all of it predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, draw_boxes
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_parts
from mini_engine.step.run import Mode, around, input_copy, kernel_us, launched, step_time

CONFIG = named_shape("qwen3-0.6b")
OURS = load_spec("h200", engine="launch-bound")
DECODE = StepShape.decode(1, 512)
PREFILL = StepShape.mixed([2048], [2048])
RUNNING = "Qwen3-0.6B on an H200, one decode step, batch 1, 512 tokens of context"


@dataclass(frozen=True)
class Box:
    """One thing on a lane. `kind`: host, copy, launch, graph, wait; product, attention, other."""

    lane: str  # "CPU" or "GPU"
    kind: str
    start_us: float
    end_us: float


COLOURS = {
    "host": hue.ENGINE,
    "copy": hue.IDLE,
    "launch": hue.LAUNCH,
    "graph": hue.CALL,
    "wait": hue.IDLE,
    "product": hue.PRODUCT,
    "attention": hue.ATTENTION,
    "other": hue.SMALL,
}


def kind_of(op: OpCost) -> str:
    """A matrix product, attention and its cache, or one of the many small ones."""
    if "attention" in op.name and "residual" not in op.name and "norm." not in op.name:
        return "attention"
    if op.name.endswith((".linear", "_proj", "_proj_add", "lm_head")) or "gate_up_silu" in op.name:
        return "product"
    return "attention" if "cache" in op.name else "other"


def lanes(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> list[Box]:
    """Both lanes of one step, as `run` counts them; checked against `step_time`."""
    before_us, beside_us = around(spec, 1)
    boxes = [Box("CPU", "host", 0.0, before_us)]
    cpu, end, rest = before_us, -math.inf, list(ops)
    for place, work in enumerate([input_copy(spec), *launched(ops, spec, mode)]):
        issued = cpu + work.cpu_us
        kind = "copy" if place == 0 else "launch" if work.kernels == 1 else "graph"
        boxes.append(Box("CPU", kind, cpu, issued))
        cpu, at = issued, max(issued, end + spec.stream_gap_us)
        end = at + work.gpu_us
        if place == 0:
            boxes.append(Box("GPU", "copy", at, end))
        for op in rest[: work.kernels]:
            boxes.append(Box("GPU", kind_of(op), at, at + kernel_us(op, spec)))
            at = boxes[-1].end_us + spec.graph_gap_us
        rest = rest[work.kernels :]
    boxes.append(Box("CPU", "host", cpu, cpu + beside_us))  # an engine that schedules ahead
    cpu += beside_us
    boxes.append(Box("CPU", "wait", cpu, max(cpu, end) + spec.sync_us))
    if not math.isclose(boxes[-1].end_us, step_time(ops, spec, mode).itl_us):
        raise ValueError("the drawn step is not as long as step_time says: mend `lanes`")
    return boxes


def draw_lanes(axes: Axes, boxes: Sequence[Box], *, scale: float = 1.0, edge: float = 0.0) -> None:
    """CPU above, GPU below; one collection a colour."""
    heights = {"GPU": (0.06, 0.94), "CPU": (1.06, 1.94)}
    for kind, colour in COLOURS.items():
        polygons = []
        for box in boxes:
            if box.kind == kind:
                (low, high), left, right = heights[box.lane], box.start_us, box.end_us
                corners = ((left, low), (left, high), (right, high), (right, low))
                polygons.append([(x * scale, y) for x, y in corners])
        draw_boxes(axes, polygons, colour, edge)
    axes.set_ylim(0, 2)
    axes.set_yticks([0.5, 1.5], ["GPU", "CPU"], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def legend(axes: Axes, kinds: dict[str, str], columns: int, above: float = 1.0) -> None:
    """What the colours mean, over the axes."""
    axes.legend(
        handles=[Patch(color=COLOURS[kind], label=label) for kind, label in kinds.items()],
        loc="lower left", bbox_to_anchor=(0, above), ncols=columns, columnspacing=1.3,
        handlelength=1.1, borderaxespad=0.2,
    )  # fmt: skip


# ---------------------------------------------------------------- a program, a tile, a thread


def tiles(path: Path) -> None:
    """Rows and the programs that take them; a row and its threads; a thread and its load."""
    width, tile, threads = 896, 1024, 128
    with canvas(
        path, (6.9, 6.76),
        title="A program takes a row, a thread eight numbers",
        caption=f"x has rows of {width} numbers. A tile is a power of two, {tile:,}; the mask "
        "keeps the grey end from being read or written.",
    ) as figure:  # fmt: skip
        axes = figure.subplots()
        for row in range(3):
            one = row == 2
            axes.barh(
                6.2 - 0.55 * row, width, height=0.42, color=hue.KERNEL if one else hue.NODE, left=0
            )
            words = f"row {row}: program {row}"
            axes.text(
                width / 2, 6.2 - 0.55 * row, words, ha="center", va="center",
                color=hue.PAPER if one else hue.INK,
            )  # fmt: skip
        for left, right in ((0, 0), (width, tile)):
            axes.plot([left, right], [4.85, 4.1], "--", color=hue.ENGINE, linewidth=1)
        each = tile // threads
        for first in range(0, tile, 32 * each):  # a warp
            axes.barh(
                3.7, 32 * each, left=first, height=0.7, color=hue.SERIES[0], edgecolor=hue.PAPER
            )
            words = f"warp {first // (32 * each)}"
            axes.text(first + 16 * each, 3.7, words, ha="center", va="center")
        axes.barh(3.7, tile - width, left=width, height=0.7, color=hue.IDLE, alpha=0.8)
        axes.text(
            0,
            4.15,
            f"its tile: {tile:,} numbers, {threads} threads in 4 warps",
            va="bottom",
            backgroundcolor=hue.PAPER,
        )
        for left, right in ((0, 0), (32 * each, tile)):
            axes.plot([left, right], [3.3, 2.6], "--", color=hue.ENGINE, linewidth=1)
        for thread in range(32):
            wide = tile / 32
            axes.barh(
                2.2, wide, left=thread * wide, height=0.7, color=hue.SERIES[0], edgecolor=hue.PAPER
            )
        axes.text(0, 2.65, "warp 0: 32 threads", va="bottom", backgroundcolor=hue.PAPER)
        for left, right in ((0, 0), (tile / 32, tile)):
            axes.plot([left, right], [1.8, 1.1], "--", color=hue.ENGINE, linewidth=1)
        for number in range(each):
            wide = tile / each
            axes.barh(
                0.7, wide, left=number * wide, height=0.7, color=hue.SERIES[1], edgecolor=hue.PAPER
            )
            axes.text((number + 0.5) * wide, 0.7, f"x[{number}]", ha="center", va="center")
        axes.text(0, 0.25, "thread 0: 8 numbers of 2 bytes, one load of 16 bytes", va="top")
        axes.set_xlim(0, tile)
        axes.set_ylim(-0.2, 6.5)
        axes.set_axis_off()


# ---------------------------------------------------------------- RMSNorm, three ways


def norm_ways(shape: StepShape) -> dict[str, list[OpCost]]:
    """The RMSNorm of one place as eight ops, as a mean and a scaling, as one kernel."""
    eager = step_parts(CONFIG, shape, "hf56").layer
    rows, width, e = shape.num_tokens, CONFIG.hidden_size, CONFIG.dtype_bytes
    row_bytes, weight = rows * width * e, width * e
    return {
        "eight kernels": [op for op in eager if op.name.startswith("post_attention_norm")],
        "two kernels": [
            OpCost("mean_square", row_bytes + 4 * rows, 0),
            OpCost("scale", 2 * row_bytes + 4 * rows + weight, 0),
        ],
        "one kernel": [OpCost("rms_norm", 2 * row_bytes + weight, 0)],
    }


def norm_in_time(path: Path) -> None:
    """What of the GPU's time is starting kernels, and what is bytes, for 1 and 2,048 tokens."""
    start_us = OURS.graph_gap_us + OURS.kernel_floor_us
    caption = (
        "Predicted: RMSNorm of 1,024 columns in bf16 in a graph on an H200. A kernel "
        f"of our engine takes {start_us:.1f} µs to start. Two kernels: the mean, then the scaling."
    )
    title = "At one token fusion saves kernels; at 2,048 tokens it saves bytes as well"
    with canvas(path, (6.9, 6.56), title=title, caption=caption) as figure:
        both = figure.subplots(2, 1, sharex=True)
        for axes, shape, name in zip(
            both, (DECODE, PREFILL), ("decode: 1 token", "a prompt of 2,048 tokens"), strict=True
        ):
            ways = norm_ways(shape)
            places = range(len(ways))
            starts = [start_us * len(ops) for ops in ways.values()]
            moved = [
                sum(op.bytes for op in ops) / OURS.copy_bandwidth_gb_s / 1e3
                for ops in ways.values()
            ]
            axes.barh(places, starts, color=hue.STARTS, label="starting kernels")
            axes.barh(places, moved, left=starts, color=hue.BYTES, label="moving bytes")
            axes.set_yticks(places, list(ways))
            axes.invert_yaxis()
            for place, ops in enumerate(ways.values()):
                size = sum(op.bytes for op in ops)
                told = f"{size / 1e6:.1f} MB" if size > 1e5 else f"{size / 1e3:.0f} KB"
                axes.text(
                    starts[place] + moved[place] + 0.5, place,
                    f"{starts[place] + moved[place]:.1f} µs, {told}", va="center",
                )  # fmt: skip
            axes.set_title(name)
            axes.grid(visible=False, axis="y")
        both[1].set_xlim(0, 66)
        both[1].set_xlabel("GPU time (µs)")
        both[0].legend(loc="lower right")


FIGURES = {"11-tiles.svg": tiles, "11-norm-in-time.svg": norm_in_time}
