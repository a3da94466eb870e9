"""Figures of chapter 1: one addition on its way from Python to the GPU, and the orders that wait.

Both are drawn from one recording: a pass of Qwen1.5-0.5B over a long prompt on an H100.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.patches import Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.sim.recorded import load_recording
from mini_engine.sim.trace import CPU, GPU, TraceEvent

RECORDING = "transformers-qwen1.5-0.5b-eager"
SOURCE = "Recorded by others (TraceLens): transformers, Qwen1.5-0.5B on an H100"


def launched() -> list[tuple[TraceEvent, TraceEvent]]:
    """Each call that starts work on the GPU, in order, with the work that it started."""
    events = load_recording(RECORDING).events
    calls = [e for e in events if e.lane == CPU and e.category in ("launch", "copy")]
    return list(zip(calls, (e for e in events if e.lane == GPU), strict=True))


def addition() -> tuple[TraceEvent, TraceEvent, TraceEvent, float]:
    """The first addition: the op, its launch, its kernel, and when the next op began."""
    events = load_recording(RECORDING).events
    ops = [e for e in events if e.lane == CPU and e.name.startswith("aten::")]
    op = next(e for e in ops if e.name == "aten::add")
    call, kernel = next(pair for pair in launched() if pair[0].start_us > op.start_us)
    return op, call, kernel, next(e.start_us for e in ops if e.start_us > op.end_us)


def stations(path: Path) -> None:
    """What the CPU and the GPU did for one addition."""
    op, call, kernel, following = addition()
    zero = op.start_us
    with canvas(
        path,
        (6.9, 5.4),
        title=f"The addition takes {kernel.duration_us:.1f} µs. Asking for it takes "
        f"{following - zero:.0f}",
        caption=f"{SOURCE}, with PyTorch's profiler, which slows the CPU down.",
    ) as figure:
        axes = figure.subplots()
        boxes = (
            (op.start_us, call.start_us, 1, "2, 3: PyTorch\nprepares", hue.LAUNCH, hue.INK),
            (call.start_us, call.end_us, 1, "4: launch", hue.CALL, hue.PAPER),
            (call.end_us, following, 1, "back to Python;\n1: the next line", hue.LAUNCH, hue.INK),
            (kernel.start_us, kernel.end_us, 0, "", hue.KERNEL, hue.PAPER),
        )
        for start, end, lane, words, colour, ink in boxes:
            at = (start - zero, lane + 0.12)
            axes.add_patch(Rectangle(at, end - start, 0.76, facecolor=colour, edgecolor=hue.PAPER))
            middle = (start + end) / 2 - zero
            words += f"\n{end - start:.1f} µs" if lane else ""
            axes.text(middle, lane + 0.5, words, ha="center", va="center", color=ink, size=14)
        travels = (call.start_us - zero, kernel.start_us - zero)
        axes.annotate(
            "", (travels[1], 0.3), (travels[0], 0.3),
            arrowprops={"arrowstyle": "<->", "color": hue.ENGINE, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        axes.plot([travels[0]] * 2, [0.15, 1.12], color=hue.ENGINE, linewidth=1, linestyle=":")
        axes.text(
            sum(travels) / 2, 0.36, f"5: the order travels\n{travels[1] - travels[0]:.1f} µs",
            ha="center", va="bottom", size=14, color=hue.ENGINE,
        )  # fmt: skip
        axes.text(kernel.end_us - zero + 0.3, 0.5, "6: the\naddition", va="center", size=14)
        axes.set(xlim=(0, following - zero), ylim=(0, 2), xlabel="µs since Python called PyTorch")
        axes.set_yticks([0.5, 1.5], [GPU, CPU], weight="bold")
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")


def queue(path: Path) -> None:
    """How long the orders of the step waited between their launch and their start."""
    pairs = launched()
    first = pairs[0][0].start_us
    issued = [(call.end_us - first) / 1e3 for call, _ in pairs]
    waited = [max(0.0, work.start_us - call.end_us) / 1e3 for call, work in pairs]
    with canvas(
        path,
        (6.9, 4.9),
        title=f"The CPU runs ahead: in the end an order waits {max(waited):.0f} ms for its turn",
        caption=f"{SOURCE}. One step, {len(pairs):,} orders, copies included; a tooth is a layer.",
    ) as figure:
        axes = figure.subplots()
        axes.plot(issued, waited, color=hue.CALL)
        axes.set(
            xlabel="when the CPU gave the order (ms)",
            ylabel="how long it waited (ms)",
            xlim=(0, max(issued)),
            ylim=(0, None),
        )


FIGURES = {"01-stations.svg": stations, "01-queue.svg": queue}
