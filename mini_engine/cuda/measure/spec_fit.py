"""From a calibration to a `DeviceSpec`: each figure of the simulator from one or two measured ones.

In:  the figures of a calibration, a base spec, the name of the evidence file.
Out: the JSON of a spec. A measured figure is of kind "measured" and names the file; one that was
     not measured, or came out at 0 or less, is the base's, with its own kind and source. No torch.

    floor + graph gap    the slope of a graph's time on the device against its nodes
    floor                how long a kernel that does nothing lasts, by the profiler's stamps
    stream gap           graph gap + how much longer the same kernel takes in a stream
    graph launch, node   base and slope of the CPU's time of one replay against nodes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_engine.predict.hardware import FIGURE_NAMES, DeviceSpec, spec_names

WHOLE = ("vram_bytes", "sm_count", "l2_bytes", "queue_depth", "graph_node_bytes", "reserved_bytes")

# figure of the spec -> figure of the calibration, how it was measured
MEDIANS = {
    "cpu_launch_us": (
        "cpu_launch_us",
        "one spin kernel of 0 cycles, launched from C++ without the dispatcher",
    ),
    "cpu_op_us": ("cpu_op_us", "an eager step of a small decoder, shared out among its ops"),
    "copy_bandwidth_gb_s": (
        "copy_bandwidth_gb_s",
        "a copy within the device's memory, read and written",
    ),
    "copy_us": ("copy_us", "one small copy from pinned memory, until the call returns"),
    "sync_us": ("sync_us", "reading one number of an idle device"),
    "peak_tflops": ("matmul_tflops", "a large square bf16 product, what is reached"),
}
VALUES = {
    "sm_count": "as the driver tells",
    "l2_bytes": "as the driver tells",
    "vram_bytes": "as the driver tells",
    "queue_depth": "launches behind a long kernel until one is made to wait",
    "graph_node_bytes": "device memory gone after capturing eight graphs, by node",
}


@dataclass(frozen=True)
class Fitted:
    """One figure of the spec, from measured ones."""

    value: float
    how: str


def spec_json(
    figures: Mapping[str, Any], base: DeviceSpec, name: str, evidence: str, *,
    own_base: bool, emulated: bool,
) -> dict[str, Any]:  # fmt: skip
    """What `hardware.load_spec` reads. `own_base`: the base is a spec of this very device; if not,
    its figures count as borrowed. Emulated figures are "derived", and no evidence."""
    fits = fitted(figures, base)
    spec: dict[str, Any] = {"name": name}
    for figure in FIGURE_NAMES:
        fit = fits.get(figure)
        if fit is not None and fit.value > 0:
            value = max(1, round(fit.value)) if figure in WHOLE else float(f"{fit.value:.5g}")
            kind = "derived" if emulated else "measured"
            source = f"{fit.how}; course/measurements/{evidence}"
            if emulated:
                source = f"CPU emulation, no evidence about any GPU: {source}"
        else:
            known = base.figures[figure]
            value, kind, source = known.value, known.kind, known.source
            if not own_base:
                kind, source = "borrowed", f"of {base.name} ({known.kind}): {known.source}"
            if fit is not None:
                source += f" (our measurement, {fit.value:.3g}, is not above 0: {fit.how})"
        spec[figure] = {"value": value, "kind": kind, "source": source}
    return spec


def kept_from_base(figures: Mapping[str, Any], base: DeviceSpec) -> list[str]:
    """Names of the figures that this calibration did not measure."""
    fits = fitted(figures, base)
    return [name for name in FIGURE_NAMES if name not in fits or fits[name].value <= 0]


def fitted(figures: Mapping[str, Any], base: DeviceSpec) -> dict[str, Fitted]:
    """Every figure of a spec that `figures` give. KeyError for a calibration without its lines."""
    fits = {
        name: Fitted(figures[source]["median"], f"{how}, {_interval(figures[source])}")
        for name, (source, how) in MEDIANS.items()
    }
    fits |= {
        name: Fitted(figures[name]["value"], how) for name, how in VALUES.items() if name in figures
    }
    return fits | _launch_fits(figures) | _gap_fits(figures, base)


def residuals(figures: Mapping[str, Any]) -> dict[str, float]:
    """The largest residual of each straight line, as a share of the time that it misses."""
    return {
        name: max(abs(r) / t for r, t in zip(fit["residuals_us"], fit["us"], strict=True))
        for name, fit in figures.items()
        if "residuals_us" in fit
    }


def held_out(figures: Mapping[str, Any]) -> dict[str, float]:
    """How far the worst point of each straight line is from the line through the others, as a share
    of its time. Lines of fewer than three points are left out."""
    return {
        name: max(abs(percent) for percent in fit["held_out_percent"]) / 100
        for name, fit in figures.items()
        if fit.get("held_out_percent")
    }


def base_name(gpu: str) -> str | None:
    """The shipped spec of a GPU by the driver's name for it: "NVIDIA H200" is h200.

    None when there is none, or for a variant that is another card (a laptop's, a "Super", a "Ti").
    """
    words = gpu.lower().replace("geforce ", "").replace("nvidia ", "").replace("rtx ", "rtx")
    parts = words.replace("-", " ").split()
    if {"laptop", "super", "ti", "d"} & set(parts):
        return None
    return next((part for part in parts if part in spec_names()), None)


# ---------------------------------------------------------------- parts


def _launch_fits(figures: Mapping[str, Any]) -> dict[str, Fitted]:
    launch, make, record = (figures[name] for name in ("graph_launch", "instantiate", "capture"))
    return {
        "graph_launch_us": Fitted(launch["base"], f"CPU time of a replay, {_line(launch)}"),
        "graph_node_ns": Fitted(launch["slope"] * 1e3, f"CPU time of a replay, {_line(launch)}"),
        "instantiate_node_us": Fitted(make["slope"], f"end of a capture, {_line(make)}"),
        "capture_node_us": Fitted(
            record["slope_over_a_launch"],
            f"recording a launch, over making one (cpu_launch_us), {_line(record)}",
        ),
    }


def _gap_fits(figures: Mapping[str, Any], base: DeviceSpec) -> dict[str, Fitted]:
    """The floor as the profiler sees it; the rest of a node's time is the gap."""
    device, more = figures["graph_device"], figures["gap_difference_us"]["median"]
    floor, floor_from = base.kernel_floor_us, "the base spec's floor"
    fits = {}
    if "null_kernel_us" in figures:
        null = figures["null_kernel_us"]
        floor, floor_from = null["median"], "the duration of a null kernel"
        fits["kernel_floor_us"] = Fitted(
            floor, f"a kernel that does nothing, the profiler's stamps, {_interval(null)}"
        )
    gap = device["slope"] - floor
    node = f"device time of a replay, {_line(device)}, less {floor_from} of {floor:.3g} µs"
    fits["graph_gap_us"] = Fitted(gap, node)
    fits["stream_gap_us"] = Fitted(
        gap + more, f"{node}; and {more:.3g} µs that the same kernel takes more in a stream"
    )
    return fits


def _interval(figure: Mapping[str, float]) -> str:
    return f"95% interval {figure['low']:.4g} to {figure['high']:.4g}"


def _line(fit: Mapping[str, Any]) -> str:
    worst = max(abs(residual) for residual in fit["residuals_us"])
    return f"line through {len(fit['nodes'])} sizes, largest residual {worst:.3g} µs"
