"""Figures of chapter 2: the machine, from one line of PyTorch down to the bytes.

`launch` follows that line from Python to the GPU; `card` is the floor plan of an H100; `kernel` is
the life of an average kernel; `step` is a decode step with its bytes; `profile` shows where the
time of a recorded step went.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, BLUE, GREY, ORANGE, PALE, SKY, VERMILION, canvas
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops

CONFIG = named_shape("qwen3-0.6b")
WAY_US = 4.5  # from a null launch to its start on an H200: TaxBreak, arXiv 2603.12465
# SGLang, Qwen3-0.6B, batch 1, an H100 under nsys, YiconRain/profiling@311296ef: what a run of 512
# tokens took more than one of none, a token. Times in ms.
KERNELS, CONTEXT = 374, 272  # of the eager step; tokens, in the mean
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
    spec = load_spec("h100", engine="transformers")
    op, driver, run = spec.cpu_op_us, spec.cpu_launch_us, 2.7
    with canvas(
        path,
        (13, 5.6),
        title=f"A line of PyTorch takes the CPU {op:.1f} µs. What the GPU has to do takes 3 µs",
        caption="y = x + x on 1 MB, then z = y + y, on a usual server. The CPU's share is derived "
        "from published steps of transformers, the way is that of an empty kernel on an H200 "
        "(TaxBreak); the kernel is predicted.",
    ) as figure:
        axes = figure.subplots()
        for n in range(2):
            zero = n * op
            ink = "white"
            stations = (
                (
                    zero,
                    op - driver,
                    2,
                    f"Python, dispatcher,\nchecks, memory for {'yz'[n]}",
                    ORANGE,
                    BLACK,
                ),
                (zero + op - driver, driver, 2, "launch", VERMILION, ink),
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
    spec = load_spec("h100")
    with canvas(
        path,
        (13, 7.4),
        title=f"A GPU is {spec.sm_count} small machines around one large memory. A kernel of "
        "8 blocks uses 8 of them",
        caption="H100. Sizes: NVIDIA's Hopper tuning guide; bandwidth: what a copy reaches. "
        "Cycles, of about 0.6 ns, are rounded: https://pmc.ncbi.nlm.nih.gov/articles/PMC10448217/.",
    ) as figure:
        plan, inside = figure.subplots(1, 2, width_ratios=[1.15, 1])
        _bare(plan, 12, 12)
        for n in range(spec.sm_count):
            row, column = divmod(n, 12)
            colour = BLUE if n < 8 else PALE
            plan.add_patch(Rectangle((column + 0.1, 11 - row * 0.62), 0.8, 0.5, facecolor=colour))
        plan.text(6, 11.75, "SMs: the blue ones have a block to run", ha="center", size=16)
        _box(plan, 0.1, 3.2, 11.8, 0.9, "L2 cache, 50 MB: about 200 cycles away", colour=PALE)
        _box(
            plan, 0.1, 0.9, 11.8, 1.2, "HBM, 80 GB: some 400 cycles away", colour=GREY, ink="white"
        )
        plan.add_patch(
            FancyArrowPatch((4, 2.15), (4, 3.15), arrowstyle="<->", mutation_scale=22, lw=3)
        )
        speed = spec.copy_bandwidth_gb_s / 1e3
        plan.text(4.5, 2.65, f"{speed:.0f} TB/s, or {speed:.0f} MB in a µs", va="center", size=16)
        _bare(inside, 10, 12)
        inside.text(5, 11.75, "Inside of one SM", ha="center", size=16)
        for n in range(4):
            x = 0.2 + n * 2.45
            _box(inside, x, 9.7, 2.25, 1.4, "chooses\na warp", colour=PALE, size=14)
            _box(inside, x, 7.0, 2.25, 2.4, "16 warps\nof 32\nthreads", colour=PALE, size=14)
            _box(inside, x, 5.4, 2.25, 1.3, "tensor\ncore", colour=PALE, size=14)
        _box(inside, 0.2, 3.6, 9.6, 1.4, "registers, 256 KB: at hand", colour=PALE)
        words = "shared memory, 228 KB: 20 cycles away"
        _box(inside, 0.2, 1.8, 9.6, 1.4, words, colour=PALE)
        inside.text(
            5, 0.9, "While one warp waits for memory,\nanother one runs",
            ha="center", va="center", size=15,
        )  # fmt: skip


def kernel(path: Path) -> None:
    """The life of an average kernel of the recorded step, to scale."""
    whole = RECORDED["eager"]["a kernel runs"] * 1e3 / KERNELS
    bytes_us = _bytes_ms() * 1e3 / KERNELS
    edge = (whole - bytes_us) / 2
    with canvas(
        path,
        (13, 3.9),
        title=f"Of the {whole:.1f} µs of an average kernel, bytes need {bytes_us:.1f}. The rest is "
        "beginning and end",
        caption=f"The recorded step: 1.32 ms for {KERNELS} kernels, of which the bytes take "
        f"{_bytes_ms():.2f} at the speed of a copy (computed). How the rest divides into beginning "
        "and end is not known; here it is halved.",
    ) as figure:
        axes = figure.subplots()
        for x, wide, words, colour, ink in (
            (0, edge, "blocks are placed,\nthe first bytes\nare on their way", SKY, BLACK),
            (edge, bytes_us, "bytes stream", BLUE, "white"),
            (edge + bytes_us, edge, "the last blocks\nfinish, all other\nSMs are idle", SKY, BLACK),
        ):
            _box(axes, x, 0, wide, 1, words, colour=colour, ink=ink)
        axes.set(xlim=(0, whole), ylim=(0, 1), xlabel="µs since the kernel began")
        axes.set_yticks([])
        axes.grid(visible=False)


def step(path: Path) -> None:
    """All weights of a token as one bar, and one of its layers taken apart."""
    c = CONFIG
    matrices = {  # numbers of each
        "q, k, v": c.hidden_size * (c.q_size + 2 * c.kv_size),
        "o": c.q_size * c.hidden_size,
        "gate and up": c.hidden_size * 2 * c.intermediate_size,
        "down": c.intermediate_size * c.hidden_size,
    }
    layer = sum(matrices.values()) * c.dtype_bytes / 1e6
    head = c.vocab_size * c.hidden_size * c.dtype_bytes / 1e6
    total = c.num_layers * layer + head
    scale = 25.6 / total  # the length of a MB, above
    zoom = 16.0 / layer  # and below
    before = {"q, k, v": "norm", "o": "attention", "gate and up": "add,\nnorm", "down": "SiLU,\n×"}
    with canvas(
        path,
        (13, 5.0),
        title=f"One token reads {total / 1e3:.2f} GB of weights: {c.num_layers} layers of "
        f"{layer:.0f} MB, and a head of {head:.0f} MB",
        caption="Qwen3-0.6B in bf16. Both bars are to scale, the lower "
        f"{zoom / scale:.0f} times as large. Between the matrices stand small steps, which read "
        "next to nothing; attention also reads 2 MB of cached keys and values, at 512 tokens.",
    ) as figure:
        axes = figure.subplots()
        _bare(axes, 26, 10)
        for n in range(c.num_layers):
            colour = BLUE if n == 0 else SKY
            axes.add_patch(
                Rectangle((0.2 + n * layer * scale, 7), layer * scale - 0.08, 1.6, facecolor=colour)
            )
        _box(
            axes,
            0.2 + c.num_layers * layer * scale,
            7,
            head * scale,
            1.6,
            "head",
            colour=GREY,
            ink="white",
        )
        axes.text(0.2, 8.9, f"{c.num_layers} layers", size=16)
        axes.text(26 - head * scale, 8.9, "chooses the next token", size=16)
        x = 0.2
        first, left = 0.2 + layer * scale - 0.08, x
        for name, numbers in matrices.items():
            mega = numbers * c.dtype_bytes / 1e6
            axes.text(x + 1.0, 4.2, before[name], ha="center", va="center", size=14)
            x += 2.0
            _box(
                axes,
                x,
                3.2,
                mega * zoom,
                2.0,
                f"{name}\n{mega:.1f} MB",
                colour=BLUE,
                ink="white",
                size=14,
            )
            x += mega * zoom
        axes.text(x + 0.3, 4.2, "add", va="center", size=14)
        for top, bottom in ((0.2, left), (first, x)):
            axes.plot([top, bottom], [6.9, 5.35], color=GREY, lw=1.2, ls="--")


def _bytes_ms() -> float:
    """What the bytes of the recorded step need at the speed of a copy: weights, keys and values."""
    shape = StepShape.decode(1, CONTEXT)
    moved = sum(op.bytes for op in step_ops(CONFIG, shape, "fused9"))
    return moved / load_spec("h100").copy_bandwidth_gb_s / 1e6


def profile(path: Path) -> None:
    """The recorded step: when a kernel ran, and when the GPU waited."""
    bytes_ms = _bytes_ms()
    colours = {
        "bytes": BLUE,
        "beginnings and ends of kernels": SKY,
        "the GPU waits for a launch call": VERMILION,
        "it waits for Python and PyTorch to decide": ORANGE,
    }
    with canvas(
        path,
        (13, 5.4),
        title="Recorded: the GPU waits for decisions more than for launches. A graph ends nearly "
        "all of it",
        caption="SGLang, Qwen3-0.6B, one request, an H100 under nsys, which slows the CPU: "
        "https://github.com/YiconRain/profiling at 311296ef. Eager, 374 kernels in as many "
        "launches; with the graph 383 kernels in 17. The share of bytes is computed.",
    ) as figure:
        axes = figure.subplots()
        for y, (runs, launching, otherwise) in enumerate(
            tuple(parts.values()) for parts in reversed(RECORDED.values())
        ):
            left = 0.0
            widths = (bytes_ms, runs - bytes_ms, launching, otherwise)
            for colour, ms in zip(colours.values(), widths, strict=True):
                axes.barh(y, ms, left=left, color=colour, height=0.6)
                if ms > 0.3:
                    ink = BLACK if colour in (ORANGE, SKY) else "white"
                    axes.text(left + ms / 2, y, f"{ms:.1f}", ha="center", va="center", color=ink)
                left += ms
            axes.text(left + 0.08, y, f"{left:.1f} ms", va="center", weight="bold")
        axes.set_yticks(range(len(RECORDED)), list(RECORDED)[::-1])
        axes.set(xlabel="ms from one token to the next", xlim=(0, 9.6), ylim=(-0.75, 1.4))
        handles = [Patch(color=colour, label=what) for what, colour in colours.items()]
        axes.legend(handles=handles, loc="lower right")


FIGURES = {
    "02-launch.png": launch,
    "02-card.png": card,
    "02-kernel.png": kernel,
    "02-step.png": step,
    "02-profile.png": profile,
}
