"""The figure of chapter 11: fused or not, in a graph or not. Two lanes each, predicted."""

from __future__ import annotations

from pathlib import Path

from course.draw.ch10 import CONFIG, DECODE, H200, RUNNING, draw_lanes, lanes, legend
from mini_engine.plots.canvas import canvas
from mini_engine.predict.oplists import step_ops
from mini_engine.predict.step_cost import Mode

WAYS: tuple[tuple[str, str, Mode], ...] = (
    ("neither: eager", "hf56", "eager"),
    ("graph only", "hf56", "full"),
    ("fused only: what mode “default” aims at", "fused9", "eager"),
    ("both: what “reduce-overhead” aims at", "fused9", "full"),
)


def fuse_or_replay(path: Path) -> None:
    """The whole step, four ways, on one time axis."""
    caption = (
        f"Predicted, not measured. {RUNNING}. Fused: 9 kernels a layer, the best that fusing "
        "between matrix products can do; unfused: the 56 ops of transformers, as if a graph could "
        "hold them. How near a compiler comes to that, only a GPU can tell."
    )
    title = "Fusing makes kernels fewer, a graph makes launches cheap"
    with canvas(path, (13, 8.2), title=title, caption=caption) as figure:
        rows = figure.subplots(len(WAYS), 1, sharex=True)
        for axes, (name, style, mode) in zip(rows, WAYS, strict=True):
            ops = step_ops(CONFIG, DECODE, style)
            boxes = lanes(ops, H200, mode)
            draw_lanes(axes, boxes, scale=1e-3)
            end_ms = boxes[-1].end_us / 1e3
            axes.axvline(end_ms, color="black", linewidth=1.5)
            axes.text(end_ms + 0.06, 1.0, f"{end_ms:.2f} ms", va="center", weight="bold")
            axes.set_title(f"{name} ({len(ops):,} kernels)", pad=3)
        rows[-1].set_xlim(0, 9.9)
        rows[-1].set_xlabel("time since the step began (ms)")
        kinds = {
            "host": "CPU: engine",
            "launch": "CPU: launch of a kernel",
            "graph": "CPU: launch of a graph",
            "wait": "CPU: waits",
            "product": "GPU: matrix product",
            "attention": "GPU: attention",
            "other": "GPU: the rest",
        }
        legend(rows[0], kinds, 4, above=1.25)


FIGURES = {"11-fuse-or-replay.png": fuse_or_replay}
