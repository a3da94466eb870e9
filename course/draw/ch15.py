"""The figures of chapter 15: what a step is made of, rung by rung, one layer in a graph, and what
weights in few bits leave of a step.

In:  op lists, and an H200 with the engine of each rung. Out: three PNGs, predicted; the drawing of
dependent launch says that it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.draw.ch11 import CONFIG, DECODE, OURS, RUNNING
from course.draw.ledger import COLOURS, PARTS, TOLD, parts_us
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, BLUE, PALE, VERMILION, canvas
from mini_engine.step.kernels import step_parts
from mini_engine.step.run import kernel_us, with_pdl

SHOWN_MS = 2.15


def _stack(
    axes: Axes, row: int, parts_us: dict[str, float], told: str, shown_ms: float = SHOWN_MS
) -> None:
    """One bar; what is beyond the axis is cut, and its length said."""
    left = 0.0
    for part in PARTS:
        width = parts_us.get(part, 0.0) / 1e3
        if left < shown_ms:
            axes.barh(row, min(width, shown_ms - left), left=left, color=COLOURS[part])
        left += width
    if left > shown_ms:
        axes.text(
            shown_ms - 0.02, row, f"{told} →", ha="right", va="center", weight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 3},
        )  # fmt: skip
    else:
        axes.text(left, row, f"  {told}", va="center", weight="bold")


# ---------------------------------------------------------------- few bits

FEW_BITS = ("qwen3-1.7b", "qwen3-8b"), ("bf16", "int8", "int4")


def few_bits(path: Path) -> None:
    """The same step with weights in 16, 8 and 4 bits: the blue shrinks, and nothing else does."""
    shapes, quants = FEW_BITS
    rows = [(named_shape(name), quant) for name in shapes for quant in quants]
    caption = (
        "Predicted, not measured, and with widening taken for free. One decode step on an H200, "
        "batch 1, 512 tokens of context, this engine's five kernels a layer on a usual server. "
        "int8 and int4 are of the layers' matrices only. Eager: the same step launched from Python."
        f" PDL: taken to save {OURS.pdl_saves_us} µs at each boundary, the most that is published."
    )
    title = "Fewer bits shorten the bytes and nothing else: at int4, 1.7B waits for starts again"
    with canvas(path, (13, 6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for row, (config, quant) in enumerate(rows):
            graph = parts_us(OURS, "full", config=config, quant=quant)
            pdl = sum(parts_us(with_pdl(OURS), "full", config=config, quant=quant).values())
            eager = sum(parts_us(OURS, "eager", config=config, quant=quant).values())
            told = f"{sum(graph.values()) / 1e3:.2f} ms, with PDL {pdl / 1e3:.2f}, eager "
            parts = {part: graph[part] for part in ("bytes", "starts", "engine")}
            _stack(axes, row, parts, f"{told}{eager / 1e3:.1f}", shown_ms=7.2)
        names = [f"{config.name.removeprefix('qwen3-').upper()}, {quant}" for config, quant in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 7.2)
        axes.set_xlabel("time of one token, the step in one graph (ms)")
        axes.grid(visible=False, axis="y")
        axes.legend(
            handles=[Patch(color=COLOURS[p], label=TOLD[p]) for p in ("bytes", "starts", "engine")],
            loc="upper right",
        )


# ---------------------------------------------------------------- one layer


def layer_in_a_graph(path: Path) -> None:
    """Above, the five kernels of a layer as the model has them. Below, what PDL moves."""
    layer = step_parts(CONFIG, DECODE, "fused5").layer
    bytes_us = [kernel_us(op, OURS) - OURS.kernel_floor_us for op in layer]
    share = sum(bytes_us) / (
        sum(bytes_us) + len(layer) * (OURS.kernel_floor_us + OURS.graph_gap_us)
    )
    caption = (
        f"Above: predicted, not measured. {RUNNING}; the graph's one launch lies before the first "
        "layer. Below: a drawing of the idea, not a prediction. What it gains is not yet measured."
    )
    title = f"In a graph, a layer of five kernels moves bytes for {share:.0%} of its time"
    with canvas(path, (13, 7.6), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.4])
        at = 0.0
        for op, us in zip(layer, bytes_us, strict=True):
            _box(above, at, OURS.kernel_floor_us, 0, VERMILION)
            _box(above, at + OURS.kernel_floor_us, us, 0, BLUE)
            _box(above, at + OURS.kernel_floor_us + us, OURS.graph_gap_us, 0, PALE)
            name = op.name.replace("norm_gate_up_silu_mul", "norm_gate_up\n_silu_mul")
            name = name.replace("rope_kv_write_attention", "rope_kv_write\n_attention")
            middle = at + (OURS.kernel_floor_us + us) / 2
            above.text(middle, -0.08, name, ha="center", va="top", size=12)
            at += OURS.kernel_floor_us + us + OURS.graph_gap_us
        _dress(above, at, ["GPU", "CPU"], "graph: a kernel starts when the one before has ended")
        above.set_ylim(-0.75, 2)
        above.text(0.1, 1.5, "nothing to do: one launch for all kernels", va="center", size=13)
        loaded = ended = 0.0
        rows = len(layer)
        for place, us in enumerate(bytes_us):
            lane, began = rows - 1 - place, loaded
            loaded = began + us
            goes_on = max(loaded, ended)  # the wait is for the end of the kernel before
            _box(below, began, us, lane, BLUE)
            _box(below, loaded, goes_on - loaded, lane, PALE)
            _box(below, goes_on, OURS.kernel_floor_us, lane, VERMILION)
            below.plot([goes_on, goes_on], [lane, lane + 1], color=BLACK, linewidth=3)
            ended = goes_on + OURS.kernel_floor_us
        below.text(
            ended + 0.9, rows / 2,
            "A kernel loads its weights while the one before\n"
            "still computes. Black: its wait for that one's end.\n"
            "Only what depends on it comes after the wait.",
            va="center", size=14, linespacing=1.5,
        )  # fmt: skip
        names = [op.name.split("_silu")[0].split("_write")[0] for op in reversed(layer)]
        _dress(below, at, names, "with PDL and weights above the wait: a drawing of the idea")
        below.tick_params(axis="x", labelbottom=True)
        below.set_xlabel("time since the layer began (µs); below, only the blue is to scale")
        above.legend(
            handles=[
                Patch(color=BLUE, label="moving bytes"),
                Patch(color=VERMILION, label="starting, reducing, ending"),
                Patch(color=PALE, label="nothing: boundary, wait"),
            ],
            loc="lower left", bbox_to_anchor=(0, 1.16), ncols=3, borderaxespad=0.2,
        )  # fmt: skip


def _box(axes: Axes, at: float, wide: float, lane: int, colour: str) -> None:
    axes.add_patch(
        Rectangle((at, lane + 0.05), wide, 0.9, facecolor=colour, edgecolor="white", linewidth=0.6)
    )


def _dress(axes: Axes, end: float, lanes: Sequence[str], title: str) -> None:
    axes.set_xlim(0, end)
    axes.set_ylim(0, len(lanes))
    axes.set_yticks([lane + 0.5 for lane in range(len(lanes))], lanes, weight="bold", size=13)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_title(title, pad=4)


FIGURES = {"15-layer-in-a-graph.png": layer_in_a_graph, "15-few-bits.png": few_bits}
