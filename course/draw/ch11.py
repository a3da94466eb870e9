"""The figures of chapter 11: fewer launches, fewer bytes. `lanes` serves chapters 11 and 15, too.

In:  op lists (`mini_engine.step.kernels`); for each, an engine on an H200 and a usual server.
Out: two PNGs, all of it predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLUE, GREEN, GREY, ORANGE, PALE, SKY, VERMILION, canvas
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost, StepShape, step_ops, step_parts
from mini_engine.step.run import Mode, around, input_copy, kernel_us, launched, step_time

CONFIG = named_shape("qwen3-0.6b")
# whose list of ops it is, on one card and one host: the engine decides what an op costs the CPU
TRANSFORMERS, VLLM, OURS = (
    load_spec("h200", engine=engine) for engine in ("transformers", "vllm", "launch-bound")
)
STYLED = {"hf56": TRANSFORMERS, "vllm": VLLM, "fused5": OURS}
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
    "host": GREY,
    "copy": PALE,
    "launch": ORANGE,
    "graph": VERMILION,
    "wait": PALE,
    "product": BLUE,
    "attention": GREEN,
    "other": SKY,
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
        axes.add_collection(
            PolyCollection(
                polygons, facecolors=colour, edgecolors="white", linewidths=edge, snap=False
            )
        )
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


# ---------------------------------------------------------------- one layer, three ways


def one_layer(path: Path) -> None:
    """The second layer of a step that is launched op by op, at 56, 13 and 5 ops a layer."""
    caption = (
        f"Predicted, not measured. {RUNNING}, a usual server. Each op is launched by "
        f"itself, and the GPU waits for it: {TRANSFORMERS.cpu_op_us:.1f} µs of CPU an op in "
        f"transformers, {VLLM.cpu_op_us:.0f} in vLLM, {OURS.cpu_op_us:.0f} in this engine. "
        "Bytes: what a layer moves."
    )
    title = "One layer: a sixth of the launches, but not of the CPU's time"
    with canvas(path, (13, 7.2), title=title, caption=caption) as figure:
        rows = figure.subplots(3, 1, sharex=True)
        for axes, (style, spec) in zip(rows, STYLED.items(), strict=True):
            parts = step_parts(CONFIG, DECODE, style)
            boxes = lanes(step_ops(CONFIG, DECODE, style), spec, "eager")
            cpu = [box for box in boxes if box.lane == "CPU"][2 + len(parts.head) :]
            gpu = [box for box in boxes if box.lane == "GPU"][1 + len(parts.head) :]
            count = len(parts.layer)
            window = [*cpu[count : 2 * count], *gpu[count : 2 * count]]
            began = cpu[count].start_us
            moved = [Box(b.lane, b.kind, b.start_us - began, b.end_us - began) for b in window]
            draw_lanes(axes, moved, edge=0.4)
            end_us = max(box.end_us for box in moved)
            megabytes = sum(op.bytes for op in parts.layer) / 1e6
            text = f"  {spec.engine}: {count} launches,\n  {end_us:.0f} µs, {megabytes:.1f} MB"
            if end_us > 500:
                axes.set_title(text.strip().replace("\n ", ""), pad=3)
            else:
                axes.text(end_us, 1.0, text, va="center", weight="bold", linespacing=1.4)
        rows[-1].set_xlim(0, 610)
        rows[-1].set_xlabel("time since the CPU began to launch the layer (µs)")
        kinds = {
            "launch": "CPU: launch of one op",
            "product": "GPU: matrix product",
            "attention": "attention and its cache",
            "other": "everything between",
        }
        legend(rows[0], kinds, 4, above=1.22)


# ---------------------------------------------------------------- add + RMSNorm, three ways


def norm_ways(shape: StepShape) -> dict[str, list[OpCost]]:
    """add + RMSNorm of one place as nine ops, as three passes, as one kernel."""
    eager = step_parts(CONFIG, shape, "hf56").layer
    names = ("attention_residual", "post_attention_norm")
    rows, width, e = shape.num_tokens, CONFIG.hidden_size, CONFIG.dtype_bytes
    row_bytes, weight = rows * width * e, width * e
    fused = next(op for op in step_parts(CONFIG, shape, "fused9").layer if "add_rms" in op.name)
    return {
        "nine PyTorch ops": [op for op in eager if op.name.startswith(names)],
        "three passes": [
            OpCost("add", 3 * row_bytes, 0),
            OpCost("mean_square", row_bytes + 4 * rows, 0),
            OpCost("scale", 2 * row_bytes + 4 * rows + weight, 0),
        ],
        "one kernel": [fused],
    }


def norm_in_time(path: Path) -> None:
    """What of the GPU's time is starting kernels, and what is bytes, for 1 and 2,048 tokens."""
    start_us = OURS.graph_gap_us + OURS.kernel_floor_us
    caption = (
        "Predicted, not measured: add + RMSNorm of 1,024 columns in bf16 as nodes of a graph on an "
        f"H200. A hand-written kernel costs {start_us:.1f} µs to start and its bytes at 4.3 TB/s. "
        f"Launched by themselves, the nine would cost the CPU {TRANSFORMERS.cpu_op_us:.1f} µs each."
    )
    title = "At one token fusion saves kernels; at 2,048 tokens it saves bytes as well"
    with canvas(path, (13, 5.4), title=title, caption=caption) as figure:
        both = figure.subplots(1, 2)
        for axes, shape, name in zip(
            both, (DECODE, PREFILL), ("decode: 1 token", "prefill: 2,048 tokens"), strict=True
        ):
            ways = norm_ways(shape)
            places = range(len(ways))
            starts = [start_us * len(ops) for ops in ways.values()]
            moved = [
                sum(op.bytes for op in ops) / OURS.copy_bandwidth_gb_s / 1e3
                for ops in ways.values()
            ]
            axes.barh(places, starts, color=ORANGE, label="to start kernels")
            axes.barh(places, moved, left=starts, color=BLUE, label="to move bytes")
            axes.set_yticks(places, list(ways) if axes is both[0] else [""] * len(ways))
            axes.invert_yaxis()
            top = max(a + b for a, b in zip(starts, moved, strict=True))
            for place, ops in enumerate(ways.values()):
                size = sum(op.bytes for op in ops)
                told = f"{size / 1e6:.1f} MB" if size > 1e5 else f"{size / 1e3:.0f} KB"
                axes.text(
                    starts[place] + moved[place] + 0.01 * top, place,
                    f"{starts[place] + moved[place]:.1f} µs, {told}", va="center",
                )  # fmt: skip
            axes.set_xlim(0, top * 1.42)
            axes.set_title(name)
            axes.set_xlabel("GPU time (µs)")
            axes.grid(visible=False, axis="y")
        both[1].legend(loc="lower right")


FIGURES = {"11-one-layer.png": one_layer, "11-norm-in-time.png": norm_in_time}
