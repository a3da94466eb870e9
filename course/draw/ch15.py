"""The figures of chapter 15: a published ladder of fusions, and one layer of the step, three ways.

In:  the ladder as its author wrote it down; op lists, and an H200 with this engine. Out: two SVGs.
     The drawing of early starts says that it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.draw.ch11 import CONFIG, DECODE, OURS
from course.draw.ledger import COLOURS as PART_COLOURS
from course.draw.ledger import TOLD, bars, floor_us
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import step_parts
from mini_engine.step.run import kernel_us, with_pdl

# https://github.com/pegainfer-project/kern/pull/1: what was fused, ms a token before and after
LADDER = (
    ("gate and up, SiLU", 11.478, 11.013),
    ("down, residual, norm", 11.031, 10.937),
    ("O, residual, norm", 10.960, 10.829),
    ("two input products", 10.749, 10.624),
    ("attention's gate, O", 10.561, 10.366),
    ("q/k norm, rotation, KV write", 10.495, 10.409),
    ("a linear-attention chain", 10.322, 10.152),
)


def ladder(path: Path) -> None:
    """Seven fusions, one commit each: an arrow from before to after."""
    first, last = LADDER[0][1], LADDER[-1][2]
    title = (
        f"Seven fusions inside one graph: {first:.1f} to {last:.1f} ms a token, "
        "while the CPU still launches once"
    )
    caption = (
        "Recorded by others: Qwen3.8-27B as one CUDA graph (pegainfer-project/kern, pull request "
        "1). Each commit was timed anew, before and after. The axis does not begin at zero."
    )
    with canvas(path, (6.9, 6.36), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for row, (_, before, after) in enumerate(LADDER):
            axes.annotate(
                "", (after, row), (before, row),
                arrowprops={"arrowstyle": "-|>", "color": hue.INK, "lw": 4, "mutation_scale": 22},
            )  # fmt: skip
            axes.text(before + 0.04, row, f"−{before - after:.2f}", va="center", weight="bold")
        axes.set_yticks(range(len(LADDER)), [what for what, _, _ in LADDER])
        axes.set(
            xlim=(10, 11.8),
            ylim=(len(LADDER) - 0.4, -0.6),
            xlabel="ms a token",
            xticks=(10, 10.5, 11, 11.5),
        )
        axes.grid(visible=False, axis="y")


# ---------------------------------------------------------------- one layer

SHORT = {
    "qkv_proj": "QKV",
    "qk_norm_rope_kv_write": "rotate",
    "attention": "att.",
    "o_proj": "O",
    "add_rms_norm": "norm",
    "gate_up_proj": "gate, up",
    "silu_mul": "SiLU",
    "down_proj": "down",
    "norm_qkv_proj": "QKV",
    "rope_kv_write_attention": "att.",
    "o_proj_add": "O",
    "norm_gate_up_silu_mul": "gate, up",
    "down_proj_add": "down",
}


def layer_in_a_graph(path: Path) -> None:
    """Nine kernels, five kernels, and the five with early starts, on one axis."""
    title = "One layer: nine kernels, five, and five that come in early"
    caption = (
        "The upper three predicted. The lowest is a drawing of how early starts save time, not to "
        "scale."
    )
    early = with_pdl(OURS)
    ways = (("nine", "fused9", OURS), ("five", "fused5", OURS), ("five, early", "fused5", early))
    with canvas(path, (6.9, 10.36), title=title, caption=caption) as figure:
        rows = figure.subplots(4, 1, height_ratios=[1, 1, 1, 2.2])
        right_us = 0.0
        for axes, (words, style, spec) in zip(rows, ways, strict=False):
            end_us = _in_a_row(axes, style, spec)
            axes.set_title(f"{words}: {end_us:.0f} µs", pad=4)
            right_us = max(right_us, end_us)
        _early(rows[3])
        rows[3].set_title("five that load before they wait (an idea, on no scale)", pad=9)
        for axes in rows[:3]:
            axes.set_xlim(0, right_us)
        for axes in rows[:2]:
            axes.tick_params(axis="x", labelbottom=False)
        rows[2].set_xlabel("µs since the layer began")
        rows[3].set_xlim(0, 22)
        rows[3].set_xticks([])
        rows[0].legend(
            handles=[
                Patch(color=hue.BYTES, label="moving bytes"),
                Patch(color=hue.STARTS, label="starting kernels"),
                Patch(color=hue.IDLE, label="gap or wait"),
            ],
            loc="lower left", bbox_to_anchor=(-0.16, 1.3), ncols=3, borderaxespad=0.2,
            columnspacing=0.8, handlelength=0.9, handletextpad=0.3,
        )  # fmt: skip


def _in_a_row(axes: Axes, style: str, spec: DeviceSpec) -> float:
    """A layer, each kernel after the one before has ended. Returns its length."""
    at = 0.0
    for place, op in enumerate(step_parts(CONFIG, DECODE, style).layer):
        us = kernel_us(op, spec) - spec.kernel_floor_us
        _box(axes, at, spec.kernel_floor_us, 0, hue.STARTS)
        _box(axes, at + spec.kernel_floor_us, us, 0, hue.BYTES)
        _box(axes, at + spec.kernel_floor_us + us, spec.graph_gap_us, 0, hue.IDLE)
        axes.text(at, -0.12 - 0.42 * (place % 2), SHORT[op.name], va="top", size=14)
        at += spec.kernel_floor_us + us + spec.graph_gap_us
    _dress(axes, ["GPU"])
    axes.set_ylim(-1.1, 1)
    return at


def _early(axes: Axes) -> None:
    layer = step_parts(CONFIG, DECODE, "fused5").layer
    loaded = ended = 0.0
    for place, op in enumerate(layer):
        lane, began = len(layer) - 1 - place, loaded
        loaded = began + kernel_us(op, OURS) - OURS.kernel_floor_us
        goes_on = max(loaded, ended)  # the wait is for the end of the kernel before
        _box(axes, began, loaded - began, lane, hue.BYTES)
        _box(axes, loaded, goes_on - loaded, lane, hue.IDLE)
        _box(axes, goes_on, OURS.kernel_floor_us, lane, hue.STARTS)
        axes.plot([goes_on, goes_on], [lane, lane + 1], color=hue.INK, linewidth=3)
        ended = goes_on + OURS.kernel_floor_us
    axes.text(
        ended + 0.5, len(layer) / 2,
        "Black: the wait, for the end\nof the kernel before. What\ndepends on it comes after.",
        va="center", size=14, linespacing=1.5,
    )  # fmt: skip
    _dress(axes, [SHORT[op.name] for op in reversed(layer)])


def _box(axes: Axes, at: float, wide: float, lane: int, colour: str) -> None:
    axes.add_patch(
        Rectangle(
            (at, lane + 0.05), wide, 0.9, facecolor=colour, edgecolor=hue.PAPER, linewidth=0.6
        )
    )


def _dress(axes: Axes, lanes: Sequence[str]) -> None:
    axes.set_ylim(0, len(lanes))
    axes.set_yticks([lane + 0.5 for lane in range(len(lanes))], lanes, weight="bold", size=14)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


# ---------------------------------------------------------------- the last bars of the ledger


def last_four(path: Path) -> None:
    """The ledger from one graph on, enlarged."""
    last = bars()[-4:]
    title = f"From {last[0].ms:.1f} to {last[-1].ms:.2g} ms: mostly fewer and earlier starts"
    caption = (
        "Predicted, as in the ledger: the same bars on a longer scale. Line: the floor. Hatched: "
        "an upper limit, the most that early starts were seen to save."
    )
    with canvas(path, (6.9, 6.1), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for row, bar in enumerate(last):
            left = 0.0
            for part in ("bytes", "starts", "launches", "engine"):
                axes.barh(row, bar.parts_us[part] / 1e3, left=left, color=PART_COLOURS[part])
                left += bar.parts_us[part] / 1e3
            axes.text(left, row, f" {bar.told}", va="center", weight="bold")
        five, early = (bar.parts_us for bar in last[1:3])
        saved_us = five["starts"] - early["starts"]
        ends_us = five["bytes"] + five["starts"]
        axes.barh(
            1, saved_us / 1e3, left=(ends_us - saved_us) / 1e3, color=PART_COLOURS["starts"],
            hatch="//", edgecolor=hue.PAPER,
        )  # fmt: skip
        axes.axvline(floor_us() / 1e3, color=hue.INK, linewidth=1.5)
        names = ["vLLM, in one graph", *(bar.label for bar in last[1:])]
        axes.set_yticks(range(len(last)), names)
        axes.set(xlim=(0, 1.95), ylim=(len(last) + 0.9, -0.5), xlabel="time of one token (ms)")
        axes.grid(visible=False, axis="y")
        axes.legend(
            handles=[
                Patch(color=PART_COLOURS[part], label=TOLD[part])
                for part in ("bytes", "starts", "engine")
            ],
            loc="lower right",
        )


FIGURES = {
    "15-ladder.svg": ladder,
    "15-layer-in-a-graph.svg": layer_in_a_graph,
    "15-last-four.svg": last_four,
}
