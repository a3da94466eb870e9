"""Figure of chapter 14: where the gain of a graph goes as a step gets more work.

Above, an eager decode step of a small and of a large batch on two lanes. Below, the share of an
eager step that one graph saves, for decode batches and for prompts, with three op lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from PIL import Image

from course.draw.ch05 import COLOURS, lanes
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import (
    BLUE,
    GREEN,
    PREDICTED,
    VERMILION,
    canvas,
    doubling_ticks,
    percent_ticks,
)
from mini_engine.predict.hardware import load_spec
from mini_engine.predict.oplists import StepShape, step_ops
from mini_engine.predict.step_cost import step_time
from mini_engine.sim.predict import Service, predict

CONTEXT = 512
SMALL, LARGE = 1, 256
STYLES = {
    "hf56": (VERMILION, "56 ops a layer (transformers)"),
    "fused9": (BLUE, "9 kernels a layer"),
    "fused5": (GREEN, "5 kernels a layer"),
}
LABELS = {
    "launch": "CPU: a launch each",
    "host": "CPU: engine",
    "wait": "CPU: waits",
    "kernel": "GPU: kernel",
}
Shape = Callable[[int], StepShape]


def gain(path: Path) -> None:
    """Two eager steps on lanes, and what a graph would save of such steps."""
    saved = {n: _saved([n], decode, "fused9")[0] for n in (SMALL, LARGE)}
    title = (
        f"A graph saves {saved[SMALL]:.0%} of a step that waits for launches, "
        f"{saved[LARGE]:.0%} of one that does not"
    )
    caption = (
        f"{PREDICTED}: qwen3-0.6b on h200. Decode: {CONTEXT} tokens of context each, above with 9 "
        "kernels a layer. Prompts: one request, nothing in its cache yet. No padding."
    )
    with canvas(path, (13, 8.6), title=title, caption=caption) as figure:
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.25])
        key, above, below = top.subplots(3, 1, height_ratios=[0.32, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in LABELS],
            loc="upper left", ncols=4, borderaxespad=0,
        )  # fmt: skip
        _steps([above, below])
        left, right = bottom.subplots(1, 2, sharey=True)
        _curve(left, [1 << i for i in range(10)], decode, "decode: requests in the batch")
        _curve(right, [16 << i for i in range(10)], prompt, "prefill: tokens of the prompt")
        left.set_ylabel("saved of the eager step")
        percent_ticks(left)
        left.set_ylim(0, 0.56)
        for style, (colour, label) in STYLES.items():
            at = _saved([1], decode, style)[0] + 0.015
            left.text(0.9, at, label, color=colour, weight="bold", size=13)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # half the bytes


def decode(batch: int) -> StepShape:
    """One token for each request."""
    return StepShape.decode(batch, CONTEXT)


def prompt(tokens: int) -> StepShape:
    """One prompt in one step."""
    return StepShape.mixed([tokens], [tokens])


def _steps(panels: Sequence[Axes]) -> None:
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    quick = Service(requests=1, new_tokens=2)
    steps = {
        n: predict(config, spec, "NONE", batch=n, context=CONTEXT, service=quick)
        for n in (SMALL, LARGE)
    }
    for axes, (batch, step) in zip(panels, steps.items(), strict=True):
        lanes(axes, step.timeline)
        axes.set(xlim=(0, steps[LARGE].itl_us / 1e3), ylim=(0, 2))
        axes.set_title(
            f"eager, batch {batch}: {step.itl_us / 1e3:.2f} ms, GPU busy {step.utilisation:.0%}"
        )
    panels[0].tick_params(axis="x", labelbottom=False)
    panels[1].set_xlabel("time (ms)")


def _curve(axes: Axes, sizes: Sequence[int], shape: Shape, what: str) -> None:
    for style, (colour, _) in STYLES.items():
        axes.plot(sizes, _saved(sizes, shape, style), "o-", color=colour, markersize=5)
    axes.set_xscale("log", base=2)
    doubling_ticks(axes, sizes[0], sizes[-1])
    axes.tick_params(axis="x", labelsize=12)
    axes.set_xlabel(what)


def _saved(sizes: Sequence[int], shape: Shape, style: str) -> list[float]:
    """The share of eager's time that one full graph saves."""
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    shares = []
    for size in sizes:
        ops = step_ops(config, shape(size), style)
        eager, full = (step_time(ops, spec, mode).itl_us for mode in ("eager", "full"))
        shares.append(1 - full / eager)
    return shares


FIGURES = {"14-where-the-gain-goes.png": gain}
