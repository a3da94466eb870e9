"""From a calibration to a card and a host: each figure from one or two measured ones.

In:  the figures of a calibration, a base card and a base host, the name of the evidence file.
Out: the JSON of a card and of a host. A measured figure is of kind "measured" and names the file;
     one that was not measured, or came out at 0 or less, is the base's, with its own kind and
     source. No torch.

The floor of a kernel belongs to an engine, whose kernels it is of: `kernel_floor_us` stands in the
measurement file alone. What an engine does on this machine beyond its ops is not measured here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_engine.step.cards import FIGURES, Sheet, names

ON_CPU_TENSORS = (
    "eager ops of this engine's plain decoder on CPU tensors, one thread: arithmetic on a few "
    "hundred floats is in it, what a launch on a GPU adds is not"
)
OF_THE_CARD = {  # figures that are taken as the calibration has them
    "sm_count": "as the driver tells",
    "vram_bytes": "as the driver tells",
    "graph_node_bytes": "device memory gone after capturing eight graphs, by node",
}
OF_THE_HOST = {
    "op_us": "an eager step of a small decoder, shared out among its ops",
    "launch_us": "one spin kernel of 0 cycles, launched from C++ without the dispatcher",
    "copy_us": "one small copy from pinned memory, until the call returns",
    "sync_us": "reading one number of an idle device",
}
# Cards that are known only by how the driver's name begins, in small letters and without makers.
NAMED = {
    "a100 .*40gb": "a100-40",
    "h100 pcie": "h100-pcie",
    "h100 nvl": "h100-nvl",
    "rtx a6000": "a6000",
    "rtx 6000 ada": "rtx6000-ada",
    "rtx pro 6000 blackwell": "rtxpro6000",
    "v100 sxm2 32gb": "v100",
}


@dataclass(frozen=True)
class Fitted:
    """One figure of a card or host, from measured ones."""

    value: float
    how: str


Fits = dict[str, Fitted]


def card_fits(figures: Mapping[str, Any], base: Sheet) -> Fits:
    """Every figure of a card that `figures` give. KeyError for a calibration without its lines."""
    device, more = figures["graph_device"], figures["gap_difference_us"]["median"]
    node = f"device time of a replay of empty kernels, {_line(device)}"
    slower = f"{node}; and {more:.3g} µs that the same kernel takes more in a stream"
    copy, product, matmul = (
        figures[name] for name in ("copy_bandwidth_gb_s", "product_gb_s", "matmul_tflops")
    )
    saved = figures.get("pdl_saves_us", {"median": None})
    fits = {
        name: Fitted(figures[name]["value"], how)
        for name, how in OF_THE_CARD.items()
        if name in figures
    } | {
        # from start to start of nodes that do nothing: what they cost is the gap
        "graph_gap_us": Fitted(device["slope"], node),
        "stream_gap_us": Fitted(device["slope"] + more, slower),
        "copy_bandwidth_gb_s": Fitted(copy["median"], f"a copy on the device, {_interval(copy)}"),
        "product_share": _share(product, base["bandwidth_gb_s"], "GB/s by a product of one row"),
        "peak_share": _share(matmul, base["peak_tflops"], "TFLOP/s by a large square product"),
    }
    if saved["median"] is not None:  # 0 where the chain was no faster with it
        how = f"a node of a chain of norms, without PDL and with it in turns, {_interval(saved)}"
        fits["pdl_saves_us"] = Fitted(max(0.0, saved["median"]), how)
    return fits


def host_fits(figures: Mapping[str, Any]) -> Fits:
    """Every figure of a host that `figures` give."""
    launch, make, record = (figures[name] for name in ("graph_launch", "instantiate", "capture"))
    replay = f"CPU time of a replay, {_line(launch)}"
    over = f"recording a launch, over making one (launch_us), {_line(record)}"
    return {
        name: Fitted(figures[name]["median"], f"{how}, {_interval(figures[name])}")
        for name, how in OF_THE_HOST.items()
    } | {
        "graph_launch_us": Fitted(launch["base"], replay),
        "graph_node_ns": Fitted(launch["slope"] * 1e3, replay),
        "instantiate_node_us": Fitted(make["slope"], f"end of a capture, {_line(make)}"),
        "capture_node_us": Fitted(record["slope_over_a_launch"], over),
    }


def host_on_cpu_fits(op_us: Mapping[str, Any], on: str) -> Fits:
    """From `calibrate.op_on_cpu_us` alone. `on`: processor, versions, date."""
    return {"op_us": Fitted(op_us["median"], f"{ON_CPU_TENSORS}; {_interval(op_us)}, {on}")}


def sheet_json(
    kind: str, fits: Fits, base: Sheet, name: str, *,
    evidence: str = "", own_base: bool = False, emulated: bool = False, says: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The file of a card or a host: every figure as it was measured, or the base's. `own_base`: the
    base is this very card; if not, its figures count as borrowed. Emulated figures are "derived",
    and no evidence."""
    found: dict[str, Any] = {word: said for word, said in base.words.items() if said}
    found |= {"name": name, **({"says": says, "sources": []} if says else {})}
    before = "CPU emulation, no evidence about any GPU: " if emulated else ""
    behind = f"; course/measurements/{evidence}" if evidence else ""
    for figure, rule in FIGURES[kind].items():
        fit, known = fits.get(figure), base.figures[figure]
        if fit is not None and _usable(fit.value, rule):
            whole = rule.endswith(("bytes", "count"))
            value = max(1, round(fit.value)) if whole else float(f"{fit.value:.5g}")
            word, source = "derived" if emulated else "measured", f"{before}{fit.how}{behind}"
        else:
            value, word, source = known.value, known.kind, known.source
            if not own_base:
                word, source = "borrowed", f"of {base.name} ({word}): {source}"
            if fit is not None:
                wrong = "not above 0" if fit.value <= 0 else "more than 1"
                source += f" (our measurement, {fit.value:.3g}, is {wrong}: {fit.how})"
        found[figure] = {"value": value, "kind": word, "source": source}
    return found


def base_name(gpu: str) -> str | None:
    """The shipped card of a GPU by the driver's name for it: "NVIDIA H200" is h200, "NVIDIA
    A100-SXM4-40GB" is a100-40. None when there is none, or for a variant that is another card."""
    words = re.sub(r"\b(nvidia|geforce|tesla|amd|instinct)\b|-", " ", gpu.lower()).split()
    name = " ".join(words)
    if not name or {"laptop", "super", "d", "mobile", "q", "3e", "hbm3e"} & set(words):
        return None
    for start, card in NAMED.items():
        if re.match(rf"{start}\b", name):
            return card
    found = re.match(r"rtx \d+( ti)?\b|\w+", name)  # "rtx 5070 ti" is another than rtx5070
    card = found[0].replace(" ", "") if found else ""
    return card if card in set(names("card")) - set(NAMED.values()) else None


def _usable(value: float, rule: str) -> bool:
    """Whether a measured value can stand in a file."""
    above = value >= 0 and not (value == 0 and rule.startswith("+"))
    return above and (value <= 1 or not rule.endswith("share"))


def _share(figure: Mapping[str, float], most: float, of: str) -> Fitted:
    """A figure as a share of what the datasheet has."""
    how = f"{figure['median']:,.4g} {of}, {_interval(figure)}, of {most:,g}"
    return Fitted(figure["median"] / most, how)


def _interval(figure: Mapping[str, float]) -> str:
    return f"95% interval {figure['low']:.4g} to {figure['high']:.4g}"


def _line(fit: Mapping[str, Any]) -> str:
    worst = max(abs(residual) for residual in fit["residuals_us"])
    return f"line through {len(fit['nodes'])} sizes, largest residual {worst:.3g} µs"
