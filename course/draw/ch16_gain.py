"""Figure of chapter 16: where the gain of a graph goes as a step gets more work.

Above, two eager steps of vLLM on two lanes: a token, and a long prompt. Below, the share of an
eager step that one full graph saves, by batch, by length of a prompt and by size of the model;
beside the predictions, what others have measured.
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
    BLACK,
    BLUE,
    GREEN,
    PREDICTED,
    VERMILION,
    canvas,
    doubling_ticks,
    percent_ticks,
)
from mini_engine.sim.predict import play
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.validate.points import SHIPPED_POINTS, Sheets, pairs, read_points, rows_of

CONTEXT, LONG_PROMPT = 512, 8192
SHORT_CONTEXT = 1200  # of measured pairs: beyond, attention has grown into another step
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")
ENGINES = {
    "transformers": (VERMILION, "transformers"),
    "vllm": (BLUE, "vLLM"),
    "launch-bound": (GREEN, "this engine"),
}
LABELS = {
    "launch": "CPU: a launch each",
    "host": "CPU: engine",
    "wait": "CPU: waits",
    "kernel": "GPU: kernel",
}
Shape = Callable[[int], StepShape]


def gain(path: Path) -> None:
    """Two eager steps on lanes, and what a graph saves of such steps."""
    shapes = decode(1), prompt(LONG_PROMPT)
    token, long = (_saved("vllm", "qwen3-0.6b", shape) for shape in shapes)
    title = (
        f"A graph saves {token:.0%} of a step that waits for launches, "
        f"{long:.0%} of one that does not"
    )
    caption = (
        f"{PREDICTED}: qwen3-0.6b on h200 and a usual server. Decode: {CONTEXT} tokens of context "
        "each. Prompts: one request. No padding. Black: measured by others, on other cards and "
        "hosts, contexts up to 1,152 tokens; left on qwen3-0.6b, right any batch."
    )
    with canvas(path, (13, 8.9), title=title, caption=caption) as figure:
        top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.35])
        key, above, below = top.subplots(3, 1, height_ratios=[0.32, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in LABELS],
            loc="upper left", ncols=4, borderaxespad=0,
        )  # fmt: skip
        _steps([above, below])
        by_batch, by_prompt, by_model = bottom.subplots(1, 3, sharey=True)
        _curve(by_batch, [1 << i for i in range(10)], decode, "decode: requests in the batch")
        _curve(by_prompt, [16 << i for i in range(10)], prompt, "prefill: tokens of the prompt")
        _models(by_model)
        _measured(by_batch, by_model)
        by_batch.set_ylabel("saved of the eager step")
        percent_ticks(by_batch)
        by_batch.set_ylim(-0.05, 1)
        for (_, (colour, label)), y in zip(ENGINES.items(), (0.22, 0.13, 0.04), strict=True):
            by_batch.text(0.9, y, label, color=colour, weight="bold", size=13)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # half the bytes


def decode(batch: int) -> StepShape:
    """One token for each request."""
    return StepShape.decode(batch, CONTEXT)


def prompt(tokens: int) -> StepShape:
    """One prompt in one step."""
    return StepShape.mixed([tokens], [tokens])


def _steps(panels: Sequence[Axes]) -> None:
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    shapes = {"a token": decode(1), f"a prompt of {LONG_PROMPT:,} tokens": prompt(LONG_PROMPT)}
    steps = {what: step_ops(config, shape, spec.ops) for what, shape in shapes.items()}
    times = {what: step_time(ops, spec, "eager") for what, ops in steps.items()}
    for axes, (what, ops) in zip(panels, steps.items(), strict=True):
        lanes(axes, play(ops, spec, "eager")[0])
        axes.set(xlim=(0, max(time.itl_us for time in times.values()) / 1e3), ylim=(0, 2))
        took = times[what]
        axes.set_title(
            f"eager, {what}: {took.itl_us / 1e3:.1f} ms, GPU busy {took.utilisation:.0%}"
        )
    panels[0].tick_params(axis="x", labelbottom=False)
    panels[1].set_xlabel("time (ms)")


def _curve(axes: Axes, sizes: Sequence[int], shape: Shape, what: str) -> None:
    for engine, (colour, _) in ENGINES.items():
        shares = [_saved(engine, "qwen3-0.6b", shape(size)) for size in sizes]
        axes.plot(sizes, shares, "o-", color=colour, markersize=5)
    axes.set_xscale("log", base=2)
    doubling_ticks(axes, sizes[0], sizes[-1])
    axes.tick_params(axis="x", labelsize=11, rotation=45)
    axes.set_xlabel(what, fontsize=14)


def _models(axes: Axes) -> None:
    for engine, (colour, _) in ENGINES.items():
        shares = [_saved(engine, model, decode(1)) for model in MODELS]
        axes.plot([_billions(model) for model in MODELS], shares, "o-", color=colour, markersize=5)
    axes.set_xscale("log", base=2)
    axes.set_xticks([_billions(model) for model in MODELS], [m.split("-")[1] for m in MODELS])
    axes.minorticks_off()
    axes.set_xlabel("model, batch 1 on h200", fontsize=14)


def _measured(by_batch: Axes, by_model: Axes) -> None:
    """Eager to full graph, by one maker on one host and card."""
    sheets = Sheets.shipped()
    points, _ = read_points(SHIPPED_POINTS, sheets)
    for pair in pairs(rows_of(points, sheets)):
        point = pair.slow.point
        if (pair.slow.launched, pair.fast.launched) != ("NONE", "FULL"):
            continue
        if point.context > SHORT_CONTEXT:
            continue
        saved = 1 - 1 / pair.measured
        by_model.plot(_billions(point.model), saved, "k+", markersize=9, markeredgewidth=2)
        if point.model == "qwen3-0.6b":
            by_batch.plot(point.batch, saved, "+", color=BLACK, markersize=9, markeredgewidth=2)


def _billions(model: str) -> float:
    return named_shape(model).num_parameters / 1e9


def _saved(engine: str, model: str, shape: StepShape) -> float:
    """The share of eager's time that one full graph saves."""
    spec = load_spec("h200", engine=engine)
    ops = step_ops(named_shape(model), shape, spec.ops)
    eager, full = (step_time(ops, spec, mode, shape.num_reqs).itl_us for mode in ("eager", "full"))
    return 1 - full / eager


FIGURES = {"16-where-the-gain-goes.png": gain}
