"""The figure of chapter 13: fused or not, in a graph or not, as it was measured on two machines."""

from __future__ import annotations

from pathlib import Path

from matplotlib.patches import Patch

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

# ms a token of Qwen3-0.6B, unfused and fused. One by one: `profile_step`, with one request, in
# https://github.com/nadzinski/cantoLLM/tree/main/bench/history, 2026-08-08T222750; with sixteen, in
# https://github.com/nadzinski/cantoLLM/blob/main/h100-results.md. In a graph: the median between
# tokens of its server, one request with 8,200 tokens of context, as in
# mini_engine/validate/published/decode_points.json.
MEASURED = {
    "desktop, RTX 5090": {"eager": (8.93, 3.76), "full": (4.2395, 2.2527)},
    "server, H100": {"eager": (37.2, 17.3), "full": (6.1877, 3.0694)},
}
WAYS = {"eager": "one by one", "full": "in a graph"}


def fuse_or_replay(path: Path) -> None:
    """Four bars for each machine, on one axis."""
    caption = (
        "Measured by others: one token of Qwen3-0.6B in cantoLLM, a small engine in plain PyTorch. "
        "One by one: 2,112 launches unfused, 752 fused (counted on the desktop)."
    )
    title = "On a server the graph is worth more,\nand both together help most"
    with canvas(path, (6.9, 5.6), title=title, caption=caption) as figure:
        panels = figure.subplots(len(MEASURED), 1, sharex=True)
        for axes, (machine, took) in zip(panels, MEASURED.items(), strict=True):
            rows = [
                (fused, mode, took[mode][fused == "fused"])
                for mode in WAYS
                for fused in ("unfused", "fused")
            ]
            for y, (_, mode, ms) in enumerate(rows):
                axes.barh(y, ms, height=0.7, color=hue.MODE_COLOURS[mode])
                axes.text(ms + 0.4, y, f"{ms:.1f} ms", va="center", weight="bold")
            axes.set_yticks(range(len(rows)), [f"{row[0]}  {i}" for i, row in enumerate(rows, 1)])
            axes.set(title=machine, ylim=(len(rows) - 0.5, -0.5), xlim=(0, 48))
        panels[-1].set_xlabel("time of one token (ms)")
        handles = [Patch(color=hue.MODE_COLOURS[mode], label=way) for mode, way in WAYS.items()]
        panels[0].legend(handles=handles, loc="lower right")


FIGURES = {"13-fuse-or-replay.svg": fuse_or_replay}
