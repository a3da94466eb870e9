"""The figures of chapter 17: what guesses, a second card and experts do to the bar; the account.

In:  this engine on an H200; a handshake between two cards as SGLang's authors measured it; and the
     steps of two models that others recorded on an H100. Out: two SVGs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.draw import ledger
from course.draw.ch14 import with_intervals
from course.draw.ledger import COLOURS, TOLD, parts_us
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.sim.recorded import load_recording
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape

HANDSHAKE_US = 4  # an all-reduce of 4 KB: https://github.com/sgl-project/sglang/pull/2904
ALL = COLOURS | {"handshakes": hue.SERIES[2], "busy": hue.KERNEL}
NAMES = TOLD | {"handshakes": "handshakes"}
STRIPES = {
    "busy": {"hatch": "///", "edgecolor": hue.STARTS, "linewidth": 0}
}  # bytes and starts in one
ORDER = ("bytes", "starts", "busy", "handshakes", "launches", "engine")
Bar = tuple[str, dict[str, float]]  # its name, and its parts in µs of one token


def predicted() -> list[Bar]:
    """One token of this engine, alone, with guesses, and on two cards; nine kernels a layer, since
    its five know only steps with one token of each request."""
    spec = replace(load_spec("h200", engine="launch-bound"), ops="fused9")
    small, large = named_shape("qwen3-0.6b"), named_shape("qwen3-8b")
    checked = parts_us(spec, "full", shape=StepShape.mixed([4], [515]))
    alone = {config: parts_us(spec, "full", config=config) for config in (small, large)}

    def on_two_cards(config: ModelConfig) -> dict[str, float]:
        parts = alone[config]
        return parts | {
            "bytes": parts["bytes"] / 2,
            "handshakes": 2 * config.num_layers * HANDSHAKE_US,
        }

    return [
        ("0.6B, one token a step", alone[small]),
        ("… 3 free guesses, 2 hold", {part: us / 3 for part, us in checked.items()}),
        ("… two cards", on_two_cards(small)),
        ("8B, one card", alone[large]),
        ("… two cards", on_two_cards(large)),
    ]


def recorded() -> list[Bar]:
    """What the GPU did in a step that others recorded, and for how long it waited."""
    told = []
    for model, name in (("qwen3-8b", "8B, dense"), ("qwen3-30b-a3b", "30B of experts")):
        for way, row in (("eager", f"{name}, eager"), ("graph", "… in one graph")):
            step = load_recording(f"sglang-{model}-h100-{way}").table
            assert step is not None, "the study is kept as tables"
            waits_us = (step.idle_in_launch_us or 0.0) + (step.idle_us or 0.0)
            told.append((row, {"busy": step.busy_us, "launches": waits_us}))
    return told


def three_ideas(path: Path) -> None:
    """Guesses and a second card, predicted; experts, recorded."""
    title = "Each idea shortens one part of the bar,\nor divides it"
    caption = (
        "Above predicted: our engine in one graph, H200, one request; grey: around the step. Below "
        "recorded by others under nsys: SGLang, H100; stripes are all that the GPU does."
    )
    with canvas(path, (6.9, 8.36), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, height_ratios=[5, 4])
        _bars(above, predicted(), 6.0, 2)
        _bars(below, recorded(), 43.0, 1)
        below.set_xlabel("time of one token (ms)")
        shown = ("bytes", "starts", "handshakes", "launches")
        above.legend(
            handles=[Patch(color=ALL[part], label=NAMES[part]) for part in shown],
            loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0,
            handlelength=1.2, columnspacing=1,
        )  # fmt: skip


def _bars(axes: Axes, told: Sequence[Bar], right_ms: float, digits: int) -> None:
    for row, (_, parts) in enumerate(told):
        left = 0.0
        for part in ORDER:
            wide = parts.get(part, 0.0) / 1e3
            axes.barh(row, wide, left=left, facecolor=ALL[part], **STRIPES.get(part, {}))
            left += wide
        axes.text(left, row, f"  {left:.{digits}f} ms", va="center", weight="bold")
    axes.set_yticks(range(len(told)), [name for name, _ in told])
    axes.invert_yaxis()
    axes.set_xlim(0, right_ms)
    axes.grid(visible=False, axis="y")


def account(path: Path) -> None:
    """Every bar of the ledger, with its interval."""
    rows = ledger.rows_of(17)
    title = f"From {rows[0].told} to {rows[-1].told}, and how surely"
    caption = (
        "Predicted: the ledger. Line: where four of five measured steps of one request lie around "
        "what a fit that had not seen them predicts. None of them is a step of our own engine."
    )
    with_intervals(path, rows, 8.1, title, caption)


FIGURES = {"17-three-ideas.svg": three_ideas, "17-account.svg": account}
