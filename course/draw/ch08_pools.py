"""Third figure of chapter 8: where graphs of a ladder stand in memory, and what they add up to.

Above: the bytes of the pool that the nodes of each graph name, for two orders of capture. Below:
how the pool grows along vLLM's default ladder, for three ways of capturing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.sim.device import Device
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import load_spec

MIB = 2**20
SMALL = (64, 128, 256, 512)
COLOURS = dict(zip(SMALL, (*hue.SERIES[2:4], *hue.SERIES[:2]), strict=True))


def captured(
    sizes: Sequence[int], order: Sequence[int], *, share: bool = True
) -> tuple[SimRunner, list[float]]:
    """Qwen3-0.6B on a device that only counts costs, its ladder captured as full graphs.

    With it, by how many MiB each capture made the pool grow.
    """
    top = max(sizes)
    limits = SchedulerLimits(
        max_num_seqs=top, max_num_batched_tokens=top, num_blocks=2, block_size=16, max_model_len=16
    )
    device = Device(load_spec("h200"), compute=False)
    dispatcher = GraphDispatcher("FULL", sizes, top)
    config = named_shape("qwen3-0.6b")
    runner = SimRunner(device, config, None, limits, dispatcher, share_pool=share)
    return runner, [rung.pool_growth_bytes / MIB for rung in runner.capture(order).rungs]


def pools(path: Path) -> None:
    """Both halves of the figure."""
    ladder = default_capture_sizes(256, 8192)
    first = sum(captured(SMALL, SMALL[::-1])[1])
    title = (
        f"Largest first, the small graphs live in the large one's {first:.0f} MiB; "
        "smallest first, each takes new memory"
    )
    caption = (
        "Addresses and bytes of the simulated allocator for qwen3-0.6b as full graphs, outputs and "
        "intermediate results; what the driver keeps for the nodes is left out. Above: rungs 64 "
        "to 512. "
        f"Below: vLLM 0.33's default {len(ladder)} rungs. Not measured on a GPU."
    )
    with canvas(path, (6.9, 11), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, height_ratios=[1.1, 1])
        _map(above)
        _growth(below, ladder)


def _map(axes: Axes) -> None:
    """One row a graph, in order of capture: which bytes of the pool it names."""
    rows, y = [], 0
    for name, order in (("largest first", SMALL[::-1]), ("smallest first", SMALL)):
        runner, _ = captured(SMALL, order)
        places = _offsets(runner)
        for rung in order:
            spans = {
                (places[b.address] / MIB, (places[b.address] + b.nbytes) / MIB)
                for node in runner.graphs[CUDAGraphMode.FULL].graphs[rung].nodes
                for b in node.buffers
                if b.block.pool == runner.pool
            }
            boxes = [[(a, y - 0.4), (b, y - 0.4), (b, y + 0.4), (a, y + 0.4)] for a, b in spans]
            axes.add_collection(PolyCollection(boxes, facecolors=COLOURS[rung], linewidths=0))
            begin, end = max(spans, key=lambda span: span[1] - span[0])
            if rung >= 128:
                axes.text(
                    (begin + end) / 2, y, "logits", color=hue.PAPER, ha="center", va="center",
                    weight="bold", size=14,
                )  # fmt: skip
            rows.append((y, f"graph of {rung}"))
            y -= 1
        axes.text(0, y + len(order) + 0.52, name, weight="bold", va="bottom", size=14)
        y -= 1
    axes.set(xlim=(0, 300), ylim=(y + 1.3, 1.3))
    axes.set_yticks([at for at, _ in rows], [text for _, text in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("place in the shared pool (MiB)")


def _offsets(runner: SimRunner) -> dict[int, int]:
    """Address -> place in the pool, its segments laid end to end."""
    offsets: dict[int, int] = {}
    before = 0
    buffers = [
        b
        for g in runner.graphs[CUDAGraphMode.FULL].graphs.values()
        for n in g.nodes
        for b in n.buffers
    ]
    mine = [b for b in buffers if b.block.pool == runner.pool]
    segments = {b.block.segment.address: b.block.segment for b in mine}
    for _, segment in sorted(segments.items()):
        for b in mine:
            if segment.address <= b.address < segment.address + segment.nbytes:
                offsets[b.address] = before + b.address - segment.address
        before += segment.nbytes
    return offsets


def _growth(axes: Axes, ladder: Sequence[int]) -> None:
    """Pool bytes after each captured rung."""
    ways = (
        ("a pool for\neach graph", ladder[::-1], False, hue.OTHER, "--", (21, 1900)),
        ("one pool,\nsmallest first", ladder, True, hue.OTHER, "-", (38.5, 850)),
        ("one pool,\nlargest first", ladder[::-1], True, hue.MARK, "-", (31, 260)),
    )
    for name, order, share, colour, style, at in ways:
        line = np.cumsum(captured(ladder, order, share=share)[1])
        axes.plot(range(1, len(line) + 1), line, style, color=colour)
        axes.text(*at, name, color=colour, weight="bold")
        axes.annotate(
            f"{line[-1]:,.0f}", (len(line), line[-1]), xytext=(5, 0), textcoords="offset points",
            va="center", color=colour, weight="bold",
        )  # fmt: skip
    axes.set(xlim=(0, len(ladder) * 1.18), ylim=(0, None))
    axes.set_xlabel("graphs captured")
    axes.set_ylabel("pool (MiB)")


FIGURES = {"08-pools.svg": pools}
