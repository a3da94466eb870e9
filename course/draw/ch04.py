"""Figures of chapter 4: who waits for whom, on a CPU lane and a GPU lane.

`two_clocks` is the chapter's own loop; `sizes` and `lanes` are recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.plots.figures import LAUNCHES as IN_LAUNCHES
from mini_engine.plots.figures import OTHER_WORK, RUNS, step_bars
from mini_engine.sim.recorded import anatomy, load_recording
from mini_engine.sim.trace import CPU, GPU, TraceEvent

LAUNCHES, ORDER_US, GAP_US = 4, 12.0, 2.1  # of the chapter's program
KERNELS_US = (4.0, 40.0)
COLOURS = {"launch": hue.LAUNCH, "kernel": hue.KERNEL}
LABELS = {"launch": "CPU writes an order", "kernel": "GPU runs the kernel"}
MODELS = ("0.6b", "1.7b", "8b", "14b")
RECORDED = {  # a piece of 300 µs of each, from here on
    "vllm-moe-eager": ("vLLM, a prompt of 888 tokens: the CPU is late", 43_120.0),
    "transformers-qwen1.5-0.5b-eager": ("transformers, a long prompt: the GPU is late", 41_000.0),
}
PIECE_US = 300.0


def four_orders(kernel_us: float) -> list[TraceEvent]:
    """The chapter's own loop for four kernels of `kernel_us`, a box for each turn of a clock."""
    cpu = gpu = 0.0
    events = []
    for _ in range(LAUNCHES):
        events.append(TraceEvent(CPU, "order", cpu, ORDER_US, "launch"))
        cpu += ORDER_US
        begin = max(cpu, gpu + GAP_US)
        events.append(TraceEvent(GPU, "kernel", begin, kernel_us, "kernel"))
        gpu = begin + kernel_us
    return events


def two_clocks(path: Path) -> None:
    """The same four orders of a short kernel and of a long one."""
    with canvas(
        path,
        (6.9, 6.6),
        title="Short kernels wait for their orders, long ones for each other",
        caption=f"Computed by the loop of the chapter: orders of {ORDER_US:.0f} µs, and "
        f"{GAP_US:.1f} µs from one kernel to the next.",
    ) as figure:
        key, above, below = figure.subplots(3, 1, height_ratios=[0.3, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[Patch(color=COLOURS[kind], label=LABELS[kind]) for kind in LABELS],
            loc="upper left", ncols=3, borderaxespad=0, columnspacing=1, fontsize=14,
        )  # fmt: skip
        right_us = max(event.end_us for event in four_orders(max(KERNELS_US))) * 1.04
        for axes, kernel_us in zip((above, below), KERNELS_US, strict=True):
            events = four_orders(kernel_us)
            boxes(axes, events, COLOURS)
            work_us, done_us = LAUNCHES * kernel_us, events[-1].end_us
            lanes_of(
                axes,
                f"kernels of {kernel_us:.0f} µs: the GPU works {work_us:.0f} of {done_us:.0f} µs",
                right_us,
            )
        above.tick_params(axis="x", labelbottom=False)
        below.set_xlabel("time (µs)")


def boxes(axes: Axes, events: Sequence[TraceEvent], colours: dict[str, str]) -> None:
    """Each event on its lane, CPU above, in the colour of its category."""
    for event in events:
        low = 1.08 if event.lane == CPU else 0.08
        box = Rectangle((event.start_us, low), event.duration_us, 0.84)
        colour = hue.KERNEL if event.lane == GPU else colours[event.category]
        box.set(facecolor=colour, edgecolor=hue.PAPER, linewidth=0.7)
        axes.add_patch(box)


def lanes_of(axes: Axes, title: str, right_us: float, left_us: float = 0.0) -> None:
    axes.set_title(title, fontsize=15)
    axes.set(xlim=(left_us, right_us), ylim=(0, 2))
    axes.set_yticks([0.5, 1.5], [GPU, CPU], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def lanes(path: Path) -> None:
    """A piece of two recorded steps: in one the CPU is late, in the other the GPU."""
    colours = {"host": hue.LAUNCH, "launch": hue.CALL, "copy": hue.CALL, "kernel": hue.KERNEL}
    told = {"PyTorch decides": hue.LAUNCH, "launch call": hue.CALL, "kernel or copy": hue.KERNEL}
    with canvas(
        path,
        (6.9, 6.4),
        title="Two profiles: holes between kernels, and no holes",
        caption="Recorded by others (TraceLens), with PyTorch's profiler: 300 µs of each step.",
    ) as figure:
        key, *both = figure.subplots(3, 1, height_ratios=[0.45, 1, 1])
        key.set_axis_off()
        key.legend(
            handles=[
                *(Patch(color=colour, label=what) for what, colour in told.items()),
                Patch(facecolor=hue.PAPER, edgecolor=hue.OTHER, label="CPU: Python itself"),
            ],
            loc="upper left", ncols=2, borderaxespad=0, columnspacing=1, fontsize=14,
        )  # fmt: skip
        for axes, (name, (title, from_us)) in zip(both, RECORDED.items(), strict=True):
            events = [
                TraceEvent(e.lane, e.name, e.start_us - from_us, e.duration_us, e.category)
                for e in load_recording(name).events
                if from_us - 100 < e.start_us < from_us + PIECE_US and e.category in colours
            ]
            host_first = sorted(events, key=lambda e: e.category != "host")
            boxes(axes, host_first, colours)
            lanes_of(axes, title, PIECE_US)
        both[0].tick_params(axis="x", labelbottom=False)
        both[1].set_xlabel("µs")


def sizes(path: Path) -> None:
    """One token of four models on one server, launched one by one."""
    rows = {}
    for model in MODELS:
        step = anatomy(load_recording(f"sglang-qwen3-{model}-h100-eager"))
        parts = (step.busy_us, step.idle_in_launch_us or 0.0, step.idle_us or 0.0)
        names = (RUNS, IN_LAUNCHES, OTHER_WORK)
        rows[f"Qwen3-{model.upper()}"] = dict(zip(names, parts, strict=True))
    step_bars(
        rows,
        path,
        title="Three times the weights, and the same 8.7 ms",
        caption="Recorded by others (YiconRain): SGLang without graphs, one request, on an H100 "
        "under nsys, which slows the CPU.",
    )


FIGURES = {"04-two-clocks.svg": two_clocks, "04-sizes.svg": sizes, "04-lanes.svg": lanes}
