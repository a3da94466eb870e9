"""Figures of chapter 0: the machine, from one line of PyTorch down to the bytes.

`launch` follows that line from Python to the GPU; `card` is the floor plan of an H200; `kernels`
takes kernels of a decode step apart; `step` is that step with its shapes; `profile` shows where
the time of a recorded step went.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PREDICTED,
    SKY,
    VERMILION,
    canvas,
)
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import kernel_us

CONFIG = named_shape("qwen3-0.6b")
WAY_US = 4.5  # from a null launch to its start on an H200: TaxBreak, arXiv 2603.12465
# SGLang, Qwen3-0.6B, batch 1, an H100 under nsys, YiconRain/profiling@311296ef: what a run of 512
# tokens took more than one of none, a token. Times in ms.
RECORDED = {
    "eager": {"a kernel runs": 1.32, "idle in launch calls": 1.16, "idle otherwise": 6.17},
    "CUDA graph": {"a kernel runs": 1.32, "idle in launch calls": 0.08, "idle otherwise": 0.14},
}


def _box(
    axes: Axes, x: float, y: float, wide: float, tall: float, words: str, **about: object
) -> None:
    """A rectangle with words in its middle."""
    colour = about.pop("colour", PALE)
    ink = about.pop("ink", BLACK)
    size = about.pop("size", 15)
    axes.add_patch(Rectangle((x, y), wide, tall, facecolor=colour, edgecolor="white", lw=2))
    axes.text(x + wide / 2, y + tall / 2, words, ha="center", va="center", color=ink, size=size)


def _bare(axes: Axes, wide: float, tall: float) -> None:
    axes.set(xlim=(0, wide), ylim=(0, tall))
    axes.set_axis_off()


def launch(path: Path) -> None:
    """`y = x + x` twice, on the lanes of the CPU, of the way to the GPU, and of the GPU."""
    spec = load_spec("h200", engine="transformers")
    op, driver, run = spec.cpu_op_us, spec.cpu_launch_us, 2.0
    with canvas(
        path,
        (13, 5.6),
        title=f"A line of PyTorch takes the CPU {op:.1f} µs. What the GPU has to do takes 2",
        caption="y = x + x on 1 MB, two times, on a usual server with an H200. The CPU's share is "
        "derived from published steps of transformers, the way is TaxBreak's null launch on an "
        "H200, the kernel is predicted.",
    ) as figure:
        axes = figure.subplots()
        for n in range(2):
            zero = n * op
            ink = "white"
            stations = (
                (zero, op - driver, 2, "Python, dispatcher,\nchecks, memory for y", ORANGE, BLACK),
                (zero + op - driver, driver, 2, "driver", VERMILION, ink),
                (zero + op, WAY_US, 1, "on the way", GREY, ink),
                (zero + op + WAY_US, run, 0, "kernel", BLUE, ink),
            )
            for x, wide, lane, words, colour, colour_of_words in stations:
                _box(axes, x, lane + 0.1, wide, 0.8, words, colour=colour, ink=colour_of_words)
        axes.annotate(
            "y exists,\nits numbers do not", (op, 2.1), (op - 8.4, 1.2), size=15,
            arrowprops={"arrowstyle": "->"},
        )  # fmt: skip
        axes.set(xlim=(0, 2 * op + WAY_US + run + 0.5), ylim=(0, 3), xlabel="µs")
        axes.set_yticks([2.5, 1.5, 0.5], ["CPU", "queue", "GPU"])
        axes.grid(visible=False)


def card(path: Path) -> None:
    """132 SMs, the L2 and the memory; and the inside of one SM."""
    spec = load_spec("h200")
    with canvas(
        path,
        (13, 7.4),
        title=f"A GPU is {spec.sm_count} small machines around one large memory. A kernel of 8 "
        "blocks uses 8 of them",
        caption="H200. Sizes: NVIDIA's Hopper tuning guide and datasheet. Waiting times in clock "
        "cycles, rounded: https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/ (a cycle is about "
        "0.6 ns).",
    ) as figure:
        plan, inside = figure.subplots(1, 2, width_ratios=[1.15, 1])
        _bare(plan, 12, 12)
        for n in range(spec.sm_count):
            row, column = divmod(n, 12)
            busy = n < 8
            plan.add_patch(
                Rectangle(
                    (column + 0.1, 11 - row * 0.62), 0.8, 0.5, facecolor=BLUE if busy else PALE
                )
            )
        plan.text(6, 11.75, "SMs: eight have a block to run", ha="center", va="bottom", size=16)
        _box(plan, 0.1, 3.2, 11.8, 0.9, "L2 cache, 50 MB: about 200 cycles away", colour=SKY)
        for n in range(6):
            _box(plan, 0.1 + n * 1.98, 0.9, 1.8, 1.2, "HBM", colour=GREY, ink="white")
        plan.text(6, 0.35, "141 GB, some 400 cycles away", ha="center", va="center", size=16)
        plan.add_patch(
            FancyArrowPatch((6, 2.15), (6, 3.15), arrowstyle="<->", mutation_scale=22, lw=3)
        )
        speed = spec.copy_bandwidth_gb_s / 1e3
        plan.text(6.4, 2.65, f"{speed:.1f} TB/s: {speed:.1f} MB in a µs", va="center", size=16)
        _bare(inside, 10, 12)
        inside.text(5, 11.75, "Inside of one SM", ha="center", va="bottom", size=16)
        for n in range(4):
            x = 0.2 + n * 2.45
            _box(inside, x, 9.9, 2.25, 1.2, "scheduler", colour=ORANGE, size=14)
            _box(inside, x, 7.3, 2.25, 2.4, "16 warps\nof 32\nthreads", colour=PALE, size=14)
            _box(inside, x, 5.9, 2.25, 1.2, "tensor\ncore", colour=SKY, size=14)
        _box(
            inside,
            0.2,
            3.9,
            9.6,
            1.6,
            "registers: 256 KB, an addition takes 4 cycles",
            colour=BLUE,
            ink="white",
        )
        _box(
            inside, 0.2, 1.9, 9.6, 1.6, "shared memory: 228 KB, 20 cycles", colour=BLUE, ink="white"
        )
        inside.text(
            5, 1.1, "A warp that waits for memory costs nothing,\nas long as another can run",
            ha="center", va="center", size=15,
        )  # fmt: skip


def kernels(path: Path) -> None:
    """Bytes, and all else, of kernels of one decode step."""
    spec, shown = (
        load_spec("h200"),
        ("qkv_proj", "attention", "silu_mul", "gate_up_proj", "down_proj"),
    )
    ops = {op.name: op for op in step_ops(CONFIG, StepShape.decode(1, 512), "fused9")}
    with canvas(
        path,
        (13, 5.8),
        title="Bytes move during less than half of a small kernel's life. The rest is beginning "
        "and end",
        caption=f"{PREDICTED}: kernels of Qwen3-0.6B at batch 1, context 512, on the h200. What is "
        "not bytes is fitted to published steps (kernel_floor_us); the gap is Hazy Research's, of "
        "empty kernels in a stream.",
    ) as figure:
        axes = figure.subplots()
        for n, name in enumerate(shown):
            y, whole = len(shown) - 1 - n, kernel_us(ops[name], spec)
            moving = whole - spec.kernel_floor_us
            left = 0.0
            for wide, colour in (
                (spec.stream_gap_us, PALE),
                (spec.kernel_floor_us, ORANGE),
                (moving, BLUE),
            ):
                axes.barh(y, wide, left=left, color=colour, edgecolor="white")
                left += wide
            axes.text(left + 0.1, y, f"{ops[name].bytes / 1e6:.2f} MB", va="center", size=15)
        axes.set_yticks(range(len(shown)), shown[::-1])
        axes.set(xlabel="µs", xlim=(0, 12.5))
        named = (
            (PALE, "gap after the kernel before"),
            (ORANGE, "beginning and end"),
            (BLUE, "bytes on the move"),
        )
        handles = [Patch(color=colour, label=words) for colour, words in named]
        axes.legend(handles=handles, loc="upper right")


def step(path: Path) -> None:
    """One layer with its shapes, and the matrices as tall as their bytes."""
    c = CONFIG
    matrices = (  # how many numbers of a token go in, and come out
        ("q, k, v", c.hidden_size, c.q_size + 2 * c.kv_size),
        ("o", c.q_size, c.hidden_size),
        ("gate and up", c.hidden_size, 2 * c.intermediate_size),
        ("down", c.intermediate_size, c.hidden_size),
    )
    layer = sum(wide * long for _, wide, long in matrices) * c.dtype_bytes / 1e6
    head = c.vocab_size * c.hidden_size * c.dtype_bytes / 1e6
    between = (
        "attention over the\ncached keys and values",
        "add, norm",
        "SiLU, multiply",
        "add, norm",
    )
    with canvas(
        path,
        (13, 6.4),
        title=f"One token reads every weight once: {c.num_layers} times {layer:.0f} MB, and "
        f"{head:.0f} MB to choose the next one",
        caption="Qwen3-0.6B in bf16. In brackets: how many numbers of the one token go into a "
        "product and come out of it. Blue areas are in proportion to their bytes.",
    ) as figure:
        axes = figure.subplots()
        _bare(axes, 26.5, 10)
        x = 0.3
        axes.text(x, 8.9, f"a layer, {c.num_layers} times", size=17, weight="bold")
        for (name, goes_in, comes_out), after in zip(matrices, between, strict=True):
            mega = goes_in * comes_out * c.dtype_bytes / 1e6
            shape = f"[{goes_in:,} → {comes_out:,}]"
            tall = mega * 0.42
            axes.add_patch(Rectangle((x, 3), 2.0, tall, facecolor=BLUE))
            axes.text(x + 1, 3 + tall + 0.15, f"{mega:.1f} MB", ha="center", va="bottom", size=15)
            axes.text(x + 1, 2.8, f"{name}\n{shape}", ha="center", va="top", size=14)
            axes.text(x + 3.1, 4.4, "→", ha="center", size=24, color=GREY)
            axes.text(x + 3.1, 1.0, after, ha="center", va="center", size=13, color="#404040")
            x += 4.2
        axes.plot([17.2, 17.2], [0.5, 9.5], color=GREY, lw=1.5, ls="--")
        axes.text(18.2, 8.9, "once: the head", size=17, weight="bold")
        wide = 7.6
        axes.add_patch(Rectangle((18.2, 3), wide, 2.0 * 0.42 * head / wide / 6, facecolor=BLUE))
        axes.text(
            22,
            2.8,
            f"head [{c.hidden_size:,} → {c.vocab_size:,}]\n{head:.0f} MB, drawn at a sixth",
            ha="center",
            va="top",
            size=14,
        )
        axes.text(
            22,
            1.0,
            "the largest of them\nis the next token",
            ha="center",
            va="center",
            size=13,
            color="#404040",
        )


def profile(path: Path) -> None:
    """The recorded step: when a kernel ran, and when the GPU waited."""
    colours = dict(zip(RECORDED["eager"], (BLUE, VERMILION, ORANGE), strict=True))
    with canvas(
        path,
        (13, 4.8),
        title="Recorded: the GPU waits for Python more than for launches. A graph ends both",
        caption="SGLang, Qwen3-0.6B, one request, an H100 under nsys, which slows the CPU: "
        "https://github.com/YiconRain/profiling at 311296ef. Eager, 374 kernels in as many "
        "launches; with the graph 383 kernels in 17 launches.",
    ) as figure:
        axes = figure.subplots()
        for y, parts in enumerate(reversed(RECORDED.values())):
            left = 0.0
            for what, ms in parts.items():
                axes.barh(y, ms, left=left, color=colours[what], height=0.62)
                if ms > 0.5:
                    ink = BLACK if colours[what] == ORANGE else "white"
                    axes.text(left + ms / 2, y, f"{ms:.1f}", ha="center", va="center", color=ink)
                left += ms
            axes.text(left + 0.08, y, f"{left:.1f} ms", va="center", weight="bold")
        axes.set_yticks(range(len(RECORDED)), list(RECORDED)[::-1])
        axes.set(xlabel="ms from one token to the next", xlim=(0, 9.6))
        handles = [Patch(color=colour, label=f"{what}") for what, colour in colours.items()]
        axes.legend(handles=handles, loc="lower right")


FIGURES = {
    "00-launch.png": launch,
    "00-card.png": card,
    "00-kernels.png": kernels,
    "00-step.png": step,
    "00-profile.png": profile,
}
