"""Figures of chapter 3: the roofline with the steps of one model on it, and what fits on 12 GB."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, BLUE, GREY, ORANGE, VERMILION, canvas
from mini_engine.step.capacity import GIB, CapacityReport, capacity
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops

CONTEXT = 512
DECODES, PREFILLS = (1, 8, 64, 512), (32, 128, 512, 2048)


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
        (13, 7.2),
        title=f"A decode step does one operation for each byte; the balance is at {ridge:.0f}",
        caption="Computed from op lists and spec: steps of qwen3-0.6b (bf16), decode at "
        f"{CONTEXT} tokens of context each, prefill of one prompt. Roof: arithmetic by the "
        "datasheet, bandwidth that a copy reaches. Launches, gaps and floors are left out.",
    ) as figure:
        axes = figure.subplots()
        xs = [0.5, ridge, 900]
        roof = [min(spec.peak_tflops, x * spec.copy_bandwidth_gb_s / 1e3) for x in xs]
        axes.plot(xs, roof, color=BLACK)
        axes.axvline(ridge, color=GREY, linewidth=1, linestyle=":")
        axes.text(ridge * 1.05, 1.4, f"balance:\n{ridge:.0f} FLOP a byte", color="#505050")
        axes.text(0.62, 9.5, "bound by memory:\n4,300 GB/s", color="#505050")
        axes.text(280, 1130, f"bound by arithmetic: {spec.peak_tflops:,.0f} TFLOP/s",
                  color="#505050", ha="center")  # fmt: skip
        decodes = {f"batch {n}": StepShape.decode(n, CONTEXT) for n in DECODES}
        prefills = {f"{n:,} tokens": StepShape.mixed([n], [n]) for n in PREFILLS}
        _points(axes, spec, decodes, VERMILION, "decode, each at 512 tokens of context")
        _points(axes, spec, prefills, BLUE, "prefill of one prompt")
        axes.set(xscale="log", yscale="log", xlim=(0.5, 900), ylim=(1, 1900))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _position: f"{value:g}"))
        axes.set_xlabel("arithmetic intensity (FLOP for each byte moved)")
        axes.set_ylabel("at best (TFLOP/s)")
        axes.legend(loc="lower right", bbox_to_anchor=(0.82, 0.02))


LEFT, RIGHT = (-12, 4, "right"), (12, -12, "left")
WHERE = {
    "batch 64": LEFT,
    "batch 512": (6, -34, "left"),
    "512 tokens": (10, -26, "left"),
    "2,048 tokens": (12, -4, "left"),
}


def _points(
    axes: Axes, spec: DeviceSpec, shapes: dict[str, StepShape], colour: str, label: str
) -> None:
    """A dot for each step, named beside the roof and not on it."""
    spots = [point(spec, shape) for shape in shapes.values()]
    axes.plot(*zip(*spots, strict=True), "o", color=colour, markersize=11, label=label)
    for spot, name in zip(spots, shapes, strict=True):
        *offset, across = WHERE.get(name, RIGHT)
        axes.annotate(
            name, spot, xytext=offset, textcoords="offset points", ha=across, color=colour
        )


# ---------------------------------------------------------------- what fits

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")
STORED = ("bf16", "fp8", "int4")
KEPT = 10_000  # tokens of context


def twelve_gb(path: Path) -> None:
    """Memory of a 12 GB card, model by model, and the floor of a step."""
    card = load_spec("rtx4070")
    sizes = [size for size in default_capture_sizes(256, 8192) if size <= 256]
    rows = [
        (f"{model.removeprefix('qwen3-')}, {quant}",
         capacity(named_shape(model), card, context=KEPT, quant=quant, capture_sizes=sizes))
        for model in MODELS for quant in STORED
    ]  # fmt: skip
    with canvas(
        path,
        (13, 8),
        title="12 GB hold Qwen3-8B and 10,000 tokens of context once the matrices are stored in "
        "8 bits. Fewer bytes are also a shorter step",
        caption="Computed, not measured: Qwen3 on an RTX 4070, one request; fp8 and int4 are of "
        "the layers' matrices only. To the right: the least time of one decode step, all bytes "
        f"read once at {card.bandwidth_gb_s:,.0f} GB/s (datasheet).",
    ) as figure:
        axes = figure.subplots()
        parts = (
            ("CUDA, graphs, activations", GREY, _around),
            ("weights", BLUE, lambda report: report.weight_bytes),
            (f"KV cache of {KEPT:,} tokens", ORANGE, lambda report: report.kv_bytes),
        )
        names, reports = [name for name, _ in rows], [report for _, report in rows]
        left = [0.0] * len(rows)
        for label, colour, of in parts:
            widths = [of(report) / GIB for report in reports]
            axes.barh(names, widths, left=left, color=colour, label=label, height=0.72)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for y, (end, report) in enumerate(zip(left, reports, strict=True)):
            told = f"{report.floor_ms:.1f} ms" if report.fits else "does not fit"
            axes.text(
                end + 0.12, y, told, va="center", color=BLACK if report.fits else VERMILION,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )  # fmt: skip
        axes.axvline(card.vram_bytes / GIB, color=BLACK, linewidth=1.5, zorder=1.5)
        axes.invert_yaxis()
        axes.set(xlim=(0, 20.5), xlabel="GiB (the line: all the card has)")
        axes.grid(visible=False, axis="y")
        axes.legend(loc="upper right")


def _around(report: CapacityReport) -> int:
    """What is neither weights nor cache."""
    extra = report.graph_pool_bytes + report.graph_node_bytes
    return report.reserved_bytes + report.activation_bytes + extra


FIGURES = {"03-roofline.png": roofline, "03-twelve-gb.png": twelve_gb}
