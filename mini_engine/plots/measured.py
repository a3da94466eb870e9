"""What a benchmark measured: ITL against batch.

Every variant has a marker of its own, so that the figure can be read without colours. What the
emulator wrote is drawn too, under a watermark: it shows what the figure will look like."""

from collections.abc import Sequence
from pathlib import Path

from mini_engine.bench.evidence import Measurement
from mini_engine.bench.rows import Row, curve, of_one_place
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, doubling_ticks, log_ticks

STYLES = {
    "hf-eager": (hue.SERIES[3], "-", "o"), "ours-eager": (hue.SERIES[0], "-", "^"),
    "ours-graph": (hue.SERIES[0], "-.", "D"), "ours-graph-k8": (hue.SERIES[0], ":", "d"),
    "compile-default": (hue.SERIES[1], "-", "<"),
    "compile-reduce-overhead": (hue.SERIES[1], "--", ">"), "graph-9": (hue.SERIES[2], "-", "P"),
    "graph-5": (hue.SERIES[4], "-", "X"), "graph-5-pdl": (hue.SERIES[4], "--", "*"),
    "graph-5-pdl-k8": (hue.SERIES[4], ":", "h"),
}  # fmt: skip
PLAIN = (hue.INK, "-", "+")  # of any other variant


def itl_against_batch(steps: Sequence[Row], path: Path | str, origin: Measurement) -> None:
    """A line for each variant, and the floor. `steps`: rows whose time is a result
    (`bench.rows.measured_steps`); drawn are those of the shape and context with the most batches.
    Raises ValueError for too few points."""
    steps = [step for step in of_one_place(steps) if step.variant != "null"]  # which is noise
    there = {step.variant for step in steps}
    variants = [v for v in [*STYLES, *sorted(there - set(STYLES))] if len(curve(steps, v)) > 1]
    if not variants:
        raise ValueError("it takes a variant with results at two batches or more")
    row, how = steps[0], origin.figures
    copy_gb_s, by_batch = how["copy_bandwidth_gb_s"]["median"], sorted(steps, key=lambda s: s.batch)
    floor_ms = {step.batch: step.bytes_to_move / copy_gb_s / 1e6 for step in by_batch}
    who = "Emulated on a CPU: no evidence about any GPU"
    who = who if origin.emulated else f"Measured on {origin.gpu}"
    caption = (
        f"{row.shape}, {row.context:,} tokens of context. {who}, {origin.date[:10]}, commit "
        f"{origin.commit}; medians of {how['rounds']} laps of {how['steps']} dependent steps. "
        "Floor: weights and KV, read once as fast as a copy."
    )
    least, most = min(floor_ms), max(floor_ms)
    first = sorted((s for s in steps if s.batch == least), key=lambda s: s.itl_us)
    best, slowest = first[0], first[-1]
    times = f", {slowest.itl_us / best.itl_us:.1f}× as fast as {slowest.variant}"
    finding = (
        f"Batch {least}: {best.variant} takes {best.itl_us / 1e3:.3g} ms a token"
        f"{times if slowest is not best else ''}; the floor is {floor_ms[least]:.3g} ms"
    )
    title = f"Emulated, no evidence: {finding}" if origin.emulated else finding
    with canvas(path, (14, 8), title=title, caption=caption) as figure:
        axes, beside = figure.subplots(1, 2, width_ratios=[2.9, 1])
        for variant in variants:
            points, (colour, line, marker) = curve(steps, variant), STYLES.get(variant, PLAIN)
            ends = [[max(0.0, s.itl_us - s.itl.low) / 1e3 for s in points],
                    [max(0.0, s.itl.high - s.itl_us) / 1e3 for s in points]]  # fmt: skip
            axes.errorbar(
                [s.batch for s in points], [s.itl_us / 1e3 for s in points], yerr=ends,
                label=variant, capsize=3, elinewidth=1, color=colour, linestyle=line,
                marker=marker, markersize=9, linewidth=1.8,
            )  # fmt: skip
        axes.plot(
            [*floor_ms], [*floor_ms.values()], label="physical floor", color=hue.INK,
            linewidth=3, linestyle=(0, (1, 1)),
        )  # fmt: skip
        doubling_ticks(axes, least, most, "batch (requests that decode together)")
        axes.set_xlim(least * 0.9, most * 1.12)
        log_ticks(axes, "ITL (ms)")
        beside.set_axis_off()
        beside.legend(*axes.get_legend_handles_labels(), loc="upper left", handlelength=2.6)
        if origin.emulated:  # the data stay readable through it
            figure.text(
                0.5, 0.5, "emulated: no evidence", size=64, rotation=30, ha="center", va="center",
                color=hue.OTHER, alpha=0.35, zorder=10,
            )  # fmt: skip
