"""The figure of chapter 16: one decode step as different tools would issue it, on two lanes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from course.draw.ch09 import draw_lanes, laid_out, lane_legend
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, PREDICTED, canvas
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import Mode


def tools(path: Path) -> None:
    """From op by op in Python to a graph of fused kernels."""
    config = named_shape("qwen3-0.6b")
    hf, vllm, ours = (load_spec("h200", engine=e) for e in ("transformers", "vllm", "launch-bound"))
    cpp_us = vllm.cpu_launch_us
    from_cpp = replace(vllm, cpu_op_us=cpp_us, torch_op_us=cpp_us)
    ways: tuple[tuple[str, str, Mode, DeviceSpec], ...] = (
        ("transformers, op by op", "hf56", "eager", hf),
        ("vLLM: 13 kernels a layer, each from Python", "vllm", "eager", vllm),
        ("the same kernels, each from C++", "vllm", "eager", from_cpp),
        ("the same kernels, one graph", "vllm", "full", vllm),
        ("this engine: five kernels a layer, one graph", "fused5", "full", ours),
    )
    steps = [
        (words, *laid_out(step_ops(config, StepShape.decode(1, 512), style), spec, mode))
        for words, style, mode, spec in ways
    ]
    end_us = max(itl_us for _, _, itl_us in steps) * 1.12
    with canvas(
        path, (12.6, 9.6),
        title=f"One token, five ways to issue it: from {steps[0][2]:,.0f} to "
        f"{steps[-1][2]:,.0f} µs",
        caption=f"{PREDICTED}: a decode step of Qwen3-0.6B on an H200 and a usual server, batch 1, "
        f"512 tokens of context. From Python a kernel takes {vllm.cpu_op_us:.0f} µs of CPU in vLLM,"
        f" an op {hf.cpu_op_us:g} in transformers; from C++ a launch {vllm.cpu_launch_us}.",
    ) as figure:  # fmt: skip
        rows = figure.subplots(len(steps) + 1, 1, height_ratios=[0.5, *[1] * len(steps)])
        lane_legend(rows[0], ("engine", "launch", "graph", "wait", "kernel", "node"), 3)
        for axes, (words, boxes, itl_us) in zip(rows[1:], steps, strict=True):
            draw_lanes(axes, boxes, 0, end_us)
            axes.axvline(itl_us, color=BLACK, linewidth=1.5)
            axes.text(itl_us, 1.1, f" {itl_us:,.0f} µs", weight="bold", va="center")
            axes.set_title(words, pad=3)
        for axes in rows[1:-1]:
            axes.tick_params(axis="x", labelbottom=False)
        rows[-1].set_xlabel("µs since the step began")


FIGURES = {"16-tools.png": tools}
