"""Figures of chapter 4: who waits for whom, on a CPU lane and a GPU lane.

`examples` is the smallest worked example of the chapter; `steps` is its decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from PIL import Image

from mini_engine import plots
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLUE, ORANGE, PALE, PREDICTED, canvas
from mini_engine.sim.device import Device
from mini_engine.sim.launch import kernel
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.cards import load_spec

LAUNCHES = 4
COLOURS = {"launch": ORANGE, "wait": PALE, "kernel": BLUE}
LABELS = {"launch": "CPU issues a launch", "kernel": "GPU runs a kernel", "wait": "CPU waits"}


@kernel()
def double(out: np.ndarray, x: np.ndarray) -> None:
    """out = 2 x."""
    np.multiply(x, 2, out=out)


def four_launches(floats: int) -> list[TraceEvent]:
    """The chapter's example: four launches of plain PyTorch over arrays of so many floats."""
    device = Device(load_spec("h200", engine="transformers"), record=True)
    x, out = device.empty(floats), device.empty(floats)
    for _ in range(LAUNCHES):
        device.launch(double, out, x)
    device.read(out)
    return device.timeline


def two_clocks(path: Path) -> None:
    """The same four launches of a short kernel and of a long one."""
    small, large = four_launches(2**20), four_launches(2**24)
    with canvas(
        path,
        (13, 6.2),
        title="Short kernels: the GPU waits for every launch. Long ones: the CPU runs ahead and "
        "waits once, when it wants the result",
        caption=f"{PREDICTED}: {LAUNCHES} launches of plain PyTorch and a read-back on the "
        "simulated h200, on a usual server.",
    ) as figure:
        key, above, below = figure.subplots(3, 1, height_ratios=[0.35, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in COLOURS],
            loc="upper left", ncols=3, borderaxespad=0,
        )  # fmt: skip
        right_us = max(event.end_us for event in large) * 1.04
        _lanes(above, small, "4 MiB in, 4 MiB out", right_us)
        _lanes(below, large, "64 MiB in, 64 MiB out", right_us)
        above.tick_params(axis="x", labelbottom=False)
        below.set_xlabel("time (µs)")


def _lanes(axes: Axes, events: Sequence[TraceEvent], what: str, right_us: float) -> None:
    """CPU above, GPU below."""
    for event in events:
        low = 1.08 if event.lane == CPU else 0.08
        box = Rectangle((event.start_us, low), event.duration_us, 0.84)
        box.set(facecolor=COLOURS[event.category], edgecolor="white", linewidth=1)
        axes.add_patch(box)
    done_us = max(event.end_us for event in events if event.lane == GPU)
    known_us = max(event.end_us for event in events)
    busy_us = sum(event.duration_us for event in events if event.lane == GPU)
    axes.set_title(
        f"{what}: the GPU works {busy_us:.0f} of {done_us:.0f} µs, the CPU knows at "
        f"{known_us:.0f} µs"
    )
    axes.set(xlim=(0, right_us), ylim=(0, 2))
    axes.set_yticks([0.5, 1.5], [GPU, CPU], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def two_lanes(path: Path) -> None:
    """One decode step: eager in transformers, eager in an engine, and as the engine's graph."""
    config = named_shape("qwen3-0.6b")
    ways = {
        "in transformers, 1,591 launches": ("transformers", HF_EAGER),
        "in vLLM, 373 launches": ("vllm", "NONE"),
        "in vLLM, all but 7 of the same kernels in one graph": ("vllm", "FULL"),
    }
    steps = {
        name: predict(config, load_spec("h200", engine=engine), mode, batch=1, context=512).timeline
        for name, (engine, mode) in ways.items()
    }
    plots.timeline(
        steps,
        path,
        title="Launched from Python, the GPU is idle nearly all of the step: it waits for "
        "launches. In one graph the CPU waits for the GPU",
        caption=f"{PREDICTED}: one decode step of {config.name} on h200 and a usual server, "
        "batch 1, 512 tokens of context.",
        zoom_us=130,
    )
    Image.open(path).convert("RGB").quantize(96).save(path, optimize=True)  # half the bytes


FIGURES = {"04-two-clocks.png": two_clocks, "04-two-lanes.png": two_lanes}
