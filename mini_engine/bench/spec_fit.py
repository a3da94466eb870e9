"""From a calibration to the JSON of a card and a host: each figure from one or two measured ones.

A figure that was not measured, or came out at 0 or less, is the base's, with its own kind and
source. No torch. The floor of a kernel belongs to an engine: it stands in the measurement alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mini_engine.bench.evidence import Measurement, new_measurement
from mini_engine.step.cards import FIGURES, Sheet, load_sheet, names

# A figure of a card or a host: the measured one, which number of it, times what, and how.
OF_THE_CARD = {
    "sm_count": ("sm_count", "value", 1, "as the driver tells"),
    "vram_bytes": ("vram_bytes", "value", 1, "as the driver tells"),
    "graph_node_bytes": ("graph_node_bytes", "value", 1,
                         "device memory gone after capturing eight graphs, by node"),
    "copy_bandwidth_gb_s": ("copy_bandwidth_gb_s", "median", 1, "a copy on the device"),
    # from start to start of nodes that do nothing: what they cost is the gap
    "graph_gap_us": ("graph_device", "slope", 1, "device time of a replay of empty kernels"),
}  # fmt: skip
OF_THE_HOST = {
    "op_us": ("op_us", "median", 1, "an eager step of a small decoder, shared out among its ops"),
    "launch_us": ("launch_us", "median", 1,
                  "one spin kernel of 0 cycles, launched from C++ without the dispatcher"),
    "copy_us": ("copy_us", "median", 1,
                "one small copy from pinned memory, until the call returns"),
    "sync_us": ("sync_us", "median", 1, "reading one number of an idle device"),
    "graph_launch_us": ("graph_launch", "base", 1, "CPU time of a replay"),
    "graph_node_ns": ("graph_launch", "slope", 1e3, "CPU time of a replay"),
    "instantiate_node_us": ("instantiate", "slope", 1, "end of a capture"),
    "capture_node_us": ("capture", "slope_over_a_launch", 1,
                        "recording a launch, over making one (launch_us)"),
}  # fmt: skip


class Fitted(NamedTuple):
    value: float
    how: str


Fits = dict[str, Fitted]  # the figures of a card or a host, by name


def card_fits(figures: Mapping[str, Any], base: Sheet) -> Fits:
    fits, more = _fits(OF_THE_CARD, figures), figures["gap_difference_us"]["median"]
    gap = fits["graph_gap_us"]
    slower = f"{gap.how}; and {more:.3g} µs that the same kernel takes more in a stream"
    fits["stream_gap_us"] = Fitted(gap.value + more, slower)
    for share, measured, datasheet, of in (
        ("product_share", "product_gb_s", "bandwidth_gb_s", "GB/s by a product of one row"),
        ("peak_share", "matmul_tflops", "peak_tflops", "TFLOP/s by a large square product"),
    ):
        found, most = figures[measured], base[datasheet]
        how = f"{found['median']:,.4g} {of}, {_doubt(found)}, of {most:,g}"
        fits[share] = Fitted(found["median"] / most, how)
    saved = figures.get("pdl_saves_us", {"median": None})
    if saved["median"] is not None:  # 0 where the chain was no faster with it
        how = f"a node of a chain of norms, without PDL and with it in turns, {_doubt(saved)}"
        fits["pdl_saves_us"] = Fitted(max(0.0, saved["median"]), how)
    return fits


def host_fits(figures: Mapping[str, Any]) -> Fits:
    return _fits(OF_THE_HOST, figures)


def host_on_cpu_fits(op_us: Mapping[str, Any], on: str) -> Fits:
    """From `calibrate.op_on_cpu_us` alone. `on`: processor, versions, date."""
    how = "eager ops of our plain decoder on CPU tensors, one thread, without a launch"
    return {"op_us": Fitted(op_us["median"], f"{how}; {_doubt(op_us)}, {on}")}


def _fits(table: Mapping[str, tuple[str, str, float, str]], figures: Mapping[str, Any]) -> Fits:
    return {
        name: Fitted(figures[measured][which] * times, f"{how}, {_doubt(figures[measured])}")
        for name, (measured, which, times, how) in table.items()
        if measured in figures
    }


def _doubt(figure: Mapping[str, Any]) -> str:
    """How sure a measured figure is."""
    if "residuals_us" in figure:
        worst = max(map(abs, figure["residuals_us"]))
        return f"line through {len(figure['nodes'])} sizes, largest residual {worst:.3g} µs"
    known = "low" in figure
    return f"95% interval {figure['low']:.4g} to {figure['high']:.4g}" if known else "one reading"


def sheet_json(
    kind: str, fits: Fits, base: Sheet, name: str, *,
    evidence: str = "", own_base: bool = False, emulated: bool = False, says: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The file of a card or a host: every figure as it was measured, or the base's. `own_base`: the
    base is this very card; if not, its figures count as borrowed. Emulated figures are no evidence.
    """
    found: dict[str, Any] = {word: said for word, said in base.words.items() if said}
    found |= {"name": name} | ({"says": says, "sources": []} if says else {})
    before = "CPU emulation, no evidence about any GPU: " if emulated else ""
    behind = f"; course/measurements/{evidence}" if evidence else ""
    for figure, rule in FIGURES[kind].items():
        fit, known = fits.get(figure), base.figures[figure]
        too_much = rule.endswith("share") and fit is not None and fit.value > 1
        if fit and (fit.value > 0 or not rule.startswith("+")) and not too_much:
            whole = rule.endswith(("bytes", "count"))
            value = max(1, round(fit.value)) if whole else float(f"{fit.value:.5g}")
            word, source = "derived" if emulated else "measured", f"{before}{fit.how}{behind}"
        else:
            value, word, source = known.value, known.kind, known.source
            if not own_base:
                word, source = "borrowed", f"of {base.name} ({word}): {source}"
            if fit is not None:
                wrong = "more than 1" if too_much else "not above 0"
                source += f" (our measurement, {fit.value:.3g}, is {wrong}: {fit.how})"
        found[figure] = {"value": value, "kind": word, "source": source}
    return found


def base_name(gpu: str) -> str | None:
    """The shipped card of a GPU by the driver's name: "NVIDIA A100-SXM4-40GB" is a100-40. None when
    there is none, or for a variant that is another card."""
    words = re.sub(r"\b(nvidia|geforce|tesla|amd|instinct)\b|-", " ", gpu.lower()).split()
    name = " ".join(words)
    if not name or {"laptop", "super", "d", "mobile", "q", "3e", "hbm3e"} & set(words):
        return None
    begins = {card: load_sheet("card", card).words["gpu"] for card in names("card")}
    found = re.match(r"rtx \d+( ti)?\b|\w+", name)  # "rtx 5070 ti" is another than rtx5070
    plain = found[0].replace(" ", "") if found else ""
    named = (card for card, start in begins.items() if start and re.match(rf"{start}\b", name))
    return next(named, plain if begins.get(plain) == "" else None)


def begun(kind: str, device: str, typed: Sequence[str]) -> tuple[Measurement, str | None, Path]:
    """A measurement without figures; the shipped card of this GPU, if any; where the measurement is
    written by default: what is no evidence stays out of the course."""
    again = shlex.join(["python", "-m", "mini_engine", *typed])
    measurement = new_measurement(kind, device, again, {})
    if measurement.emulated:
        return measurement, "laptop-cpu", Path("out") / f"{kind}-emulated.json"
    card = base_name(measurement.gpu)
    return measurement, card, Path("course/measurements") / f"{kind}-{card or 'gpu'}.json"
