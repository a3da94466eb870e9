"""The figure of chapter 13: fused or not, in a graph or not. Two lanes each, predicted."""

from __future__ import annotations

from pathlib import Path

from course.draw.ch11 import CONFIG, DECODE, RUNNING, draw_lanes, lanes, legend
from mini_engine.plots.canvas import canvas
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import step_ops
from mini_engine.step.run import Mode

WAYS: tuple[tuple[str, str, Mode], ...] = (  # how it is called, whose ops and costs, how launched
    ("neither: transformers, eager", "transformers", "eager"),
    ("graph only: a plain PyTorch loop", "pytorch-loop", "full"),
    ("fused only: mode “default”", "torch-compile", "eager"),
    ("both: mode “reduce-overhead”", "torch-compile", "full"),
)


def fuse_or_replay(path: Path) -> None:
    """The whole step, four ways, on one time axis."""
    caption = (
        f"Predicted, not measured. {RUNNING}, a usual server. Fused: 9 kernels a layer, the best "
        "that fusing between matrix products can do. That a compiled kernel costs the CPU as much "
        "as a kernel of other Python engines is assumed, not fitted; see the text."
    )
    title = "A graph takes the launches from Python; fusing alone leaves them there"
    with canvas(path, (13, 8.2), title=title, caption=caption) as figure:
        rows = figure.subplots(len(WAYS), 1, sharex=True)
        for axes, (name, engine, mode) in zip(rows, WAYS, strict=True):
            spec = load_spec("h200", engine=engine)
            ops = step_ops(CONFIG, DECODE, spec.ops)
            boxes = lanes(ops, spec, mode)
            draw_lanes(axes, boxes, scale=1e-3)
            end_ms = boxes[-1].end_us / 1e3
            axes.axvline(end_ms, color="black", linewidth=1.5)
            axes.text(end_ms + 0.12, 1.0, f"{end_ms:.1f} ms", va="center", weight="bold")
            axes.set_title(f"{name} ({len(ops):,} kernels)", pad=3)
        rows[-1].set_xlim(0, 19)
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


FIGURES = {"13-fuse-or-replay.png": fuse_or_replay}
