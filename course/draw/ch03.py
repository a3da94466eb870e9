"""Figures of chapter 3: the decode step with its shapes, one recorded layer, and the roofline."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter

from course.draw.ledger import bars
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.sim.recorded import kind_of, load_recording
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops

CONTEXT = 512
DECODES, PREFILLS = (1, 8, 64, 512), (128, 512, 2048)
RECORDING, LAYER = "sglang-qwen3-8b-graph", 10
# what the kernels of the recorded layer are for, in their order
TOLD = (
    "add, norm", "× q, k, v", "copy q", "norm of q", "copy k", "norm of k", "rotate q and k",
    "store k and v", "attention", "… its parts added", "× o", "add, norm", "× gate, up",
    "SiLU, ×", "× down",
)  # fmt: skip


def step(path: Path) -> None:
    """The way of one token through the model: after each operation, how long the vector is."""
    c = named_shape("qwen3-0.6b")
    h, q, kv, i = c.hidden_size, c.q_size, c.kv_size, c.intermediate_size
    cache = 2 * kv * CONTEXT
    rows = (  # what is done; how many numbers come out; how many are read for it; in a layer?
        ("look up the token", h, 0, False),
        ("norm", h, 0, True),
        ("× q, k, v", q + 2 * kv, h * (q + 2 * kv), True),
        ("norm, rotate q and k", q + kv, 0, True),
        (f"attention, {CONTEXT} tokens", q, cache, True),
        ("× o, add", h, q * h, True),
        ("norm", h, 0, True),
        ("× gate, up", 2 * i, h * 2 * i, True),
        ("SiLU(gate) × up", i, 0, True),
        ("× down, add", h, i * h, True),
        ("norm", h, 0, False),
        ("× head", c.vocab_size, c.vocab_size * h, False),
        ("take the best", 1, 0, False),
    )
    with canvas(
        path,
        (6.9, 8.4),
        title="One token is a short vector. What it is multiplied by is not",
        caption="Qwen3-0.6B, one token. Bars: numbers in the vector after each operation, to "
        "scale, but the head's is cut. Right: what the operation reads.",
    ) as figure:
        axes = figure.subplots()
        layers = [row for row, (*_, inside) in enumerate(rows) if inside]
        axes.add_patch(
            Rectangle((-1.6, layers[0] - 0.5), 14.2, len(layers), facecolor=hue.PANEL, zorder=0)
        )
        axes.text(12.3, layers[0] - 0.15, f"{c.num_layers} times", ha="right", va="center", size=14)
        for row, (what, numbers, read, _) in enumerate(rows):
            wide = min(numbers / 1536, 4.3)
            colour = hue.ATTENTION if what.startswith("att") else hue.PRODUCT if read else hue.SMALL
            axes.barh(row, max(wide, 0.05), left=3.6, height=0.6, color=colour)
            if numbers > 4.3 * 1536:  # far longer than there is room for: a break
                axes.text(3.6 + 0.7 * wide, row, "//", color=hue.PAPER, va="center", size=30)
            axes.text(3.4, row, what, ha="right", va="center", size=14)
            axes.text(3.6 + wide + 0.15, row, f"{numbers:,}", va="center", size=14)
            if read:
                mega = read * c.dtype_bytes / 1e6
                axes.text(
                    12.3, row, f"{mega:,.1f} MB", ha="right", va="center", weight="bold", size=14
                )
        axes.set(xlim=(-1.6, 12.6), ylim=(len(rows) - 0.4, -0.6))
        axes.set_axis_off()


def layer(path: Path) -> None:
    """The kernels of one recorded layer."""
    events = load_recording(RECORDING).events
    kernels = [event for event in events if event.category == "node"]
    stored = [n for n, event in enumerate(kernels) if kind_of(event.name) == "KV write"]
    first, last = (stored[n] - TOLD.index("store k and v") for n in (LAYER, LAYER + 1))
    took = [event.duration_us for event in kernels[first:last]]
    kinds = {"product": hue.PRODUCT, "attention": hue.ATTENTION}
    colours = [kinds.get(kind_of(event.name), hue.SMALL) for event in kernels[first:last]]
    small = sum(us for us, colour in zip(took, colours, strict=True) if colour == hue.SMALL)
    with canvas(
        path,
        (6.9, 7.6),
        title=f"Nine of the {len(took)} kernels of a layer read next to nothing, for "
        f"{small:.0f} µs",
        caption="Recorded by others (TraceLens): SGLang, Qwen3-8B, 32 requests, on an MI300X. The "
        f"kernels of layer {LAYER}, in order.",
    ) as figure:
        axes = figure.subplots()
        axes.barh(range(len(took)), took, color=colours, height=0.7)
        for row, us in enumerate(took):
            axes.text(us + 0.8, row, f"{us:.0f}", va="center", size=14)
        axes.set_yticks(range(len(took)), TOLD, size=14)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set(xlim=(0, 75), xlabel="µs")
        axes.grid(visible=False, axis="y")
        told = {"read a matrix": hue.PRODUCT, "attention": hue.ATTENTION, "read little": hue.SMALL}
        axes.legend(
            handles=[Patch(color=colour, label=what) for what, colour in told.items()],
            loc="upper right",
        )


# ---------------------------------------------------------------- the roofline


def point(spec: DeviceSpec, shape: StepShape) -> tuple[float, float]:
    """(FLOP per byte, TFLOP/s) of a step whose kernels take bytes and arithmetic, nothing else."""
    ops = step_ops(named_shape("qwen3-0.6b"), shape, "fused9")
    flops, moved = sum(op.flops for op in ops), sum(op.bytes for op in ops)
    seconds = sum(
        max(op.bytes / (spec.copy_bandwidth_gb_s * 1e9), op.flops / (spec.peak_tflops * 1e12))
        for op in ops
    )
    return flops / moved, flops / seconds / 1e12


def roofline(path: Path) -> None:
    """Decode and prefill steps of Qwen3-0.6B under the roof of an H200."""
    spec = load_spec("h200")
    ridge = spec.peak_tflops * 1e3 / spec.copy_bandwidth_gb_s
    with canvas(
        path,
        (6.9, 7.0),
        title="Writing for one request uses a half percent of the arithmetic. Reading prompts "
        "comes near the roof",
        caption="Computed: steps of Qwen3-0.6B on an H200, decode at "
        f"{CONTEXT} tokens of context each, prefill of one prompt. Hollow: the ledger's step.",
    ) as figure:
        axes = figure.subplots()
        xs = [0.5, ridge, 3000]
        roof = [min(spec.peak_tflops, x * spec.copy_bandwidth_gb_s / 1e3) for x in xs]
        axes.plot(xs, roof, color=hue.INK)
        axes.axvline(ridge, color=hue.OTHER, linewidth=1, linestyle=":")
        axes.text(ridge * 0.9, 1.3, f"balance: {ridge:.0f}", color=hue.SOFT, ha="right", size=14)
        axes.text(0.55, 12, "limit:\nmemory", color=hue.SOFT, size=14)
        axes.text(2900, 1180, "limit: arithmetic", color=hue.SOFT, ha="right", size=14)
        decodes = {f"{n} request{'s' * (n > 1)}": StepShape.decode(n, CONTEXT) for n in DECODES}
        prefills = {f"{n:,} tokens": StepShape.mixed([n], [n]) for n in PREFILLS}
        points(axes, spec, decodes, hue.DECODE, "decode")
        points(axes, spec, prefills, hue.PREFILL, "prefill")
        flops = sum(
            op.flops for op in step_ops(named_shape("qwen3-0.6b"), decodes["1 request"], "hf56")
        )
        ms = bars()[0].ms  # of the ledger
        spot = (point(spec, decodes["1 request"])[0], flops / ms / 1e9)
        axes.plot(*spot, "o", markersize=11, markerfacecolor=hue.PAPER, color=hue.DECODE)
        told = f"1 request, as {bars()[0].label} runs it: {bars()[0].told}"
        axes.text(spot[0] * 1.35, spot[1], told, va="center", size=14)
        axes.set(xscale="log", yscale="log", xlim=(0.5, 3000), ylim=(0.03, 2100))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axes.set_xlabel("operations for each byte moved")
        axes.set_ylabel("TFLOP/s, at best")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.1))


RIGHT = (10, -12, "left")
WHERE = {
    "64 requests": (-10, 6, "right"),
    "512 requests": (10, -14, "left"),
    "512 tokens": (-12, 2, "right"),
    "128 tokens": (10, -18, "left"),
    "2,048 tokens": (0, -22, "left"),
}


def points(
    axes: Axes, spec: DeviceSpec, shapes: dict[str, StepShape], colour: str, label: str
) -> None:
    """A dot for each step, named beside the roof and not on it."""
    spots = [point(spec, shape) for shape in shapes.values()]
    axes.plot(*zip(*spots, strict=True), "o", color=colour, markersize=10, label=label)
    for spot, name in zip(spots, shapes, strict=True):
        *offset, across = WHERE.get(name, RIGHT)
        axes.annotate(
            name, spot, xytext=offset, textcoords="offset points", ha=across, color=colour, size=14
        )


FIGURES = {"03-step.svg": step, "03-layer.svg": layer, "03-roofline.svg": roofline}
