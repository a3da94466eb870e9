"""Figures of chapter 2: the floor plan of a GPU, one SM from inside, how short a kernel can be.

`shortest` is drawn from a recording: a pass of Qwen1.5-0.5B over a long prompt on an H100.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.sim.recorded import anatomy, load_recording
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops

RECORDING = "transformers-qwen1.5-0.5b-eager"
STEP = load_recording("sglang-qwen3-0.6b-h100-eager")  # of which there is only a table
PLAYED = anatomy(load_recording("sglang-qwen3-0.6b-h100-graph"))  # no kernel waits for an order
PAUSE_US = (PLAYED.gpu_us - PLAYED.busy_us) / (PLAYED.kernels or 1)
BUSY_US, KERNELS = anatomy(STEP).busy_us, round(anatomy(STEP).kernels or 0)
CONTEXT = (STEP.like or {})["context"]
SIZES = "Sizes: NVIDIA's Hopper tuning guide"


def box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], words: str, colour: str
) -> None:
    """A rectangle with words in its middle."""
    (x, y), (wide, tall) = corner, size
    axes.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, edgecolor=hue.PAPER, lw=2))
    ink = hue.ink_on(colour)
    axes.text(x + wide / 2, y + tall / 2, words, ha="center", va="center", color=ink, size=14)


def card(path: Path) -> None:
    """132 SMs, the L2 and the memory. Eight SMs have a block to run."""
    spec = load_spec("h100")
    with canvas(
        path,
        (6.9, 6.4),
        title=f"An H100 is {spec.sm_count} small machines around one memory",
        caption=f"{SIZES}; the speed is what a copy reaches. Blue: a kernel of 8 blocks.",
    ) as figure:
        axes = figure.subplots()
        for n in range(spec.sm_count):
            row, column = divmod(n, 12)
            colour = hue.KERNEL if n < 8 else hue.PANEL
            axes.add_patch(Rectangle((column + 0.1, 11.1 - row * 0.6), 0.8, 0.5, facecolor=colour))
        axes.text(6, 11.9, "SMs, each with arithmetic and memory of its own", ha="center", size=14)
        box(axes, (0.1, 3.7), (11.8, 0.9), "L2, a cache of 50 MB for all of them", hue.PANEL)
        box(axes, (0.1, 1.3), (11.8, 1.2), "HBM: 80 GB, where the weights are", hue.OTHER)
        arrow = FancyArrowPatch((4, 2.55), (4, 3.65), arrowstyle="<->", mutation_scale=20, lw=3)
        axes.add_patch(arrow)
        speed = spec.copy_bandwidth_gb_s / 1e3
        axes.text(4.5, 3.1, f"{speed:.0f} TB/s: {speed:.0f} MB in a µs", va="center", size=14)
        axes.set(xlim=(0, 12), ylim=(1, 12.4))
        axes.set_axis_off()


def one_sm(path: Path) -> None:
    """Four quarters, and what they share."""
    with canvas(
        path,
        (6.9, 5.4),
        title="Inside one SM: four quarters, 64 warps, and two small memories",
        caption=f"{SIZES}. Each quarter picks, in every cycle, a warp that can go on.",
    ) as figure:
        axes = figure.subplots()
        for n in range(4):
            x = 0.1 + n * 2.47
            box(axes, (x, 6.2), (2.37, 1.7), "16 warps of\n32 threads", hue.PANEL)
            box(axes, (x, 4.9), (2.37, 1.2), "tensor core", hue.SERIES[0])
        box(
            axes,
            (0.1, 3.4),
            (9.78, 1.3),
            "registers, 256 KB: what threads hold in their hands",
            hue.PANEL,
        )
        box(
            axes,
            (0.1, 1.9),
            (9.78, 1.3),
            "shared memory, up to 228 KB: the bench of a block",
            hue.PANEL,
        )
        axes.set(xlim=(0, 10), ylim=(1.7, 8.1))
        axes.set_axis_off()


def warps(path: Path) -> None:
    """One warp alone on a quarter of an SM, and eight that take turns. Minutes of slow motion."""
    compute, fetch, shown = 1, 7, 20
    with canvas(
        path,
        (6.9, 6.2),
        title="While one warp waits for its numbers, another computes",
        caption="Blue: it computes. Grey: it waits for memory. Drawn for warps that compute for a "
        "minute between two walks of seven minutes to HBM.",
    ) as figure:
        panels = figure.subplots(2, 1, height_ratios=[2, 9], sharex=True)
        for axes, count in zip(panels, (1, compute + fetch), strict=True):
            for warp in range(count):
                axes.broken_barh([(0, shown)], (count - warp - 0.9, 0.8), facecolor=hue.PANEL)
                turns = range(warp * compute, shown, compute + fetch)
                boxes = [(begin, min(compute, shown - begin)) for begin in turns]
                axes.broken_barh(boxes, (count - warp - 0.9, 0.8), facecolor=hue.KERNEL)
            share = count * compute / (compute + fetch)
            told = "1 warp" if count == 1 else f"{count} warps"
            axes.set_title(f"{told}: arithmetic is busy for {share:.0%} of the time", fontsize=15)
            axes.set(xlim=(0, shown), ylim=(0, count))
            axes.set_yticks([])
            axes.grid(visible=False)
        panels[1].set_xlabel("minutes of slow motion")
        panels[1].set_xticks(range(0, shown + 1, 5))


def shortest(path: Path) -> None:
    """All kernels of a recorded step, the shortest first."""
    events = load_recording(RECORDING).events
    took = sorted(event.duration_us for event in events if event.category == "kernel")
    with canvas(
        path,
        (6.9, 4.8),
        title=f"A hundred kernels do next to nothing, and none of them in less than {took[0]} µs",
        caption="Recorded by others (TraceLens): the kernels of one step of transformers, "
        "Qwen1.5-0.5B on an H100, the shortest first.",
    ) as figure:
        axes = figure.subplots()
        axes.plot(range(1, len(took) + 1), took, color=hue.KERNEL)
        axes.axhline(took[50], color=hue.OTHER, linewidth=1, linestyle=":")
        axes.text(len(took), took[50] * 1.12, f"{took[50]} µs", ha="right", color=hue.SOFT)
        axes.set(yscale="log", xlim=(0, len(took)), ylim=(1, 200), ylabel="took (µs)")
        axes.set_yticks([1, 10, 100], ["1", "10", "100"])
        axes.set_xlabel("kernels, the shortest first")


def bytes_us() -> float:
    """What the bytes of SGLang's recorded step need at the speed of a copy."""
    moved = sum(
        op.bytes
        for op in step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, CONTEXT), "fused9")
    )
    return moved / load_spec("h100").copy_bandwidth_gb_s / 1e3


def kernel(path: Path) -> None:
    """The life of an average kernel of SGLang's recorded step, to scale."""
    whole, streams = BUSY_US / KERNELS, bytes_us() / KERNELS
    edge = (whole - streams) / 2
    with canvas(
        path,
        (6.9, 4.4),
        title=f"A kernel of {whole:.1f} µs moves bytes for {streams:.1f} of them",
        caption=f"Recorded by others: {BUSY_US / 1e3:.1f} ms for {KERNELS} kernels. The share of "
        "the bytes is computed; how the rest divides is not known: hatched, and halved here. The "
        "pause is that of the same server's step as one recording.",
    ) as figure:
        axes = figure.subplots()
        words = (
            "blocks are\nplaced, first\nbytes called",
            "bytes\narrive",
            "the last block\nfinishes",
        )
        for x, wide, told, colour in (
            (0, edge, words[0], hue.STARTS),
            (edge, streams, words[1], hue.BYTES),
            (edge + streams, edge, words[2], hue.STARTS),
        ):
            box(axes, (x, 0), (wide, 1), told, colour)
            if colour == hue.STARTS:  # its width is not known
                axes.patches[-1].set(hatch="/", edgecolor=hue.PANEL)
        box(axes, (whole, 0), (PAUSE_US, 1), "pause", hue.PAPER)
        axes.patches[-1].set(edgecolor=hue.OTHER, lw=1)
        axes.set(xlim=(0, whole + PAUSE_US), ylim=(0, 1), xlabel="µs since the kernel began")
        axes.set_yticks([])
        axes.grid(visible=False)


FIGURES = {
    "02-card.svg": card,
    "02-sm.svg": one_sm,
    "02-warps.svg": warps,
    "02-shortest.svg": shortest,
    "02-kernel.svg": kernel,
}
