"""The figure of chapter 15: one decode step as different tools would issue it, on two lanes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from course.draw.ch08 import draw_lanes, laid_out, lane_legend
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, PREDICTED, canvas
from mini_engine.predict.hardware import DeviceSpec, load_spec
from mini_engine.predict.oplists import StepShape, step_ops
from mini_engine.predict.step_cost import Mode


def tools(path: Path) -> None:
    """From op by op in Python to a graph of fused kernels."""
    config, h200 = named_shape("qwen3-0.6b"), load_spec("h200")
    from_cpp = replace(h200, cpu_op_us=h200.cpu_launch_us)
    ways: tuple[tuple[str, str, Mode, DeviceSpec], ...] = (
        ("transformers, op by op", "hf56", "eager", h200),
        ("nine kernels a layer, each from PyTorch", "fused9", "eager", h200),
        ("the same kernels, each from C++", "fused9", "eager", from_cpp),
        ("the same kernels, one graph", "fused9", "full", h200),
        ("five kernels a layer, one graph", "fused5", "full", h200),
    )
    steps = [
        (words, *laid_out(step_ops(config, StepShape.decode(1, 512), style), spec, mode))
        for words, style, mode, spec in ways
    ]
    longest_us = max(itl_us for _, _, itl_us in steps[1:])
    end_us = longest_us * 1.14
    with canvas(
        path, (12.6, 9.6),
        title=f"One token, five ways to issue it: from {steps[0][2]:,.0f} to "
        f"{steps[-1][2]:,.0f} µs",
        caption=f"{PREDICTED}: a decode step of Qwen3-0.6B on an H200, batch 1, 512 tokens of "
        f"context; {h200.cpu_op_us} µs to issue an op from PyTorch, {h200.cpu_launch_us} from C++, "
        f"{h200.host_step_us:g} µs of engine in every step. The first row goes on beyond the edge.",
    ) as figure:  # fmt: skip
        rows = figure.subplots(len(steps) + 1, 1, height_ratios=[0.5, *[1] * len(steps)])
        lane_legend(rows[0], ("engine", "launch", "graph", "wait", "kernel", "node"), 3)
        for axes, (words, boxes, itl_us) in zip(rows[1:], steps, strict=True):
            draw_lanes(axes, boxes, 0, end_us)
            if itl_us < end_us:
                axes.axvline(itl_us, color=BLACK, linewidth=1.5)
                axes.text(itl_us, 1.1, f" {itl_us:,.0f} µs", weight="bold", va="center")
                axes.set_title(words, pad=3)
            else:
                axes.set_title(f"{words}: {itl_us:,.0f} µs, beyond the edge", pad=3)
        for axes in rows[1:-1]:
            axes.tick_params(axis="x", labelbottom=False)
        rows[-1].set_xlabel("µs since the step began")


FIGURES = {"15-tools.png": tools}
