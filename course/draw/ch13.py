"""The figure of chapter 13: fused or not, in a graph or not. Two lanes each, predicted."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from course.draw.ch11 import CONFIG, DECODE, Box, draw_lanes, lanes, legend
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import step_ops
from mini_engine.step.run import Mode, step_time

WAYS: tuple[tuple[str, str, Mode], ...] = (  # how it is called, whose ops and costs, how launched
    ("neither", "transformers", "eager"),
    ("a graph only", "pytorch-loop", "full"),
    ("fused only", "torch-compile", "eager"),
    ("both", "torch-compile", "full"),
)
# µs of the CPU: https://github.com/meta-pytorch/tritonbench/pull/1017, and a plain operation
CALL_US, FUSED_US, PLAIN_US = 37, 7, 10.6
CALLS, OR_CALLS = 29, (1, 116)  # of compiled code in a step: cut at attention; whole, each stretch
SHOWN = {  # the kinds of `lanes`, fewer
    "graph": "launch", "copy": "wait", "host": "launch", "product": "other", "attention": "other"
}  # fmt: skip


def costs(engine: str, calls: int = CALLS) -> DeviceSpec:
    """An engine on the H200; compiled kernels start at vLLM's price, and what Python spends on
    `calls` calls is shared out among all kernels, as the chapter says."""
    spec = load_spec("h200", engine=engine)
    if engine != "torch-compile":
        return spec
    kinds = [op.kind for op in step_ops(CONFIG, DECODE, spec.ops)]
    cpu_us = calls * CALL_US + sum(FUSED_US if kind == "other" else PLAIN_US for kind in kinds)
    start_us = load_spec("h200", engine="vllm").kernel_floor_us
    return replace(spec, cpu_op_us=cpu_us / len(kinds), kernel_floor_us=start_us)


def joined(boxes: list[Box]) -> list[Box]:
    """The CPU's boxes of one kind in a row as one, lest thin ones look pale."""
    rows = [box for box in boxes if box.lane == "GPU"]
    for _, run in groupby((b for b in boxes if b.lane == "CPU"), key=lambda box: box.kind):
        of = list(run)
        rows.append(replace(of[0], end_us=of[-1].end_us))
    return rows


def fuse_or_replay(path: Path) -> None:
    """The whole step, four ways, on one time axis."""
    caption = (
        "Predicted: the step of the ledger, fused to nine kernels a layer. Fused only: Python "
        f"calls compiled code {CALLS} times; marks: its end with one call and with {OR_CALLS[-1]}. "
        "The one recording of both that we know has 3.1 ms, on an H100."
    )
    title = "A graph takes every order from Python;\nfusing leaves it one of six"
    with canvas(path, (6.9, 7.96), title=title, caption=caption) as figure:
        rows = figure.subplots(len(WAYS), 1, sharex=True)
        for axes, (name, engine, mode) in zip(rows, WAYS, strict=True):
            spec = costs(engine)
            ops = step_ops(CONFIG, DECODE, spec.ops)
            boxes = [
                replace(box, kind=SHOWN.get(box.kind, box.kind)) for box in lanes(ops, spec, mode)
            ]
            draw_lanes(axes, joined(boxes), scale=1e-3)
            end_ms = boxes[-1].end_us / 1e3
            axes.axvline(end_ms, color=hue.INK, linewidth=1.5)
            level = 0.5 if name == "fused only" else 1.0  # below the mark that lies behind the end
            axes.text(end_ms + 0.2, level, f"{end_ms:.2g} ms", va="center", weight="bold")
            axes.set_title(f"{name}: {len(ops):,} kernels", pad=3)
            for calls in OR_CALLS if name == "fused only" else ():
                ms = step_time(ops, costs(engine, calls), mode).itl_us / 1e3
                axes.plot([ms, ms], [1.06, 1.94], color=hue.INK, linewidth=1.5)
                side = 0.15 if calls > CALLS else -0.15
                axes.text(ms + side, 1.5, f"{calls} call{'s' * (calls > 1)}", va="center",
                          ha="left" if calls > CALLS else "right")  # fmt: skip
        rows[-1].set_xlim(0, 20.5)
        rows[-1].set_xlabel("time since the step began (ms)")
        kinds = {"launch": "CPU: orders", "wait": "CPU: waits", "other": "GPU: a kernel"}
        legend(rows[0], kinds, 3, above=1.3)


FIGURES = {"13-fuse-or-replay.svg": fuse_or_replay}
