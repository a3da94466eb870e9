"""The aims of the CUDA wing on one H200, in one table, and what a benchmark's rows say of each:
"reached", "missed" or "not measured". No torch.

A bar is reached when the whole 95% interval is on its good side. The emulator, another GPU and a
variant that failed the gate (baselines included) measure nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_engine.bench.evidence import Measurement
from mini_engine.bench.rows import Point, Row, measured_steps

REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"
GPU, CONTEXT = "H200", 512
OURS = ("graph-5-pdl", "graph-5-pdl-k8", "graph-5", "graph-9", "ours-graph")


class Bar(NamedTuple):
    """One aim. Compared is the ITL of our fastest variant, in ms: with `limit` where there is no
    baseline, else how many times as long the `baseline` takes."""

    name: str
    shape: str
    limit: float
    stretch: float | None = None
    baseline: str = ""
    batch: int = 1


BARS = (
    Bar("itl-0.6b", "qwen3-0.6b", 0.42, 0.39),
    Bar("itl-1.7b", "qwen3-1.7b", 1.00, 0.95),
    Bar("itl-llama", "llama-3.2-1b", 0.76, 0.70),
    Bar("times-transformers", "qwen3-0.6b", 8.0, baseline="hf-eager"),
    Bar("times-compile", "qwen3-0.6b", 1.3, baseline="compile-reduce-overhead"),
    *(Bar(f"never-slower-{batch}", "qwen3-0.6b", 1.0, None, "compile-reduce-overhead", batch)
      for batch in (8, 64, 256)),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    name: str
    status: str
    value: float | None  # ms, or times; None where it was not measured
    why: str

    def __str__(self) -> str:
        return f"{self.status:>15}: {self.name} ({self.why})"


def judged(measurement: Measurement) -> list[Result]:
    """Every bar, in the order of BARS."""
    if measurement.emulated or GPU not in measurement.gpu:
        why = f"the bars are for one {GPU}, this is {measurement.gpu}"
        return [Result(bar.name, NOT_MEASURED, None, why) for bar in BARS]
    steps = measured_steps(measurement.figures["rows"])
    here = {bar: Point(bar.shape, bar.batch, CONTEXT) for bar in BARS}
    return [_judged(bar, [s for s in steps if s.point == here[bar]]) for bar in BARS]


def _judged(bar: Bar, steps: Sequence[Row]) -> Result:
    ours = min((s for s in steps if s.variant in OURS), key=lambda s: s.itl_us, default=None)
    theirs = next((s for s in steps if s.variant == bar.baseline), None)
    if ours is None or (bar.baseline and theirs is None):
        return Result(bar.name, NOT_MEASURED, None, "measure it: python -m mini_engine bench")
    why = f"{ours.variant} {ours.itl_us:,.1f} µs ({ours.itl.low:,.1f} to {ours.itl.high:,.1f})"
    if theirs is None:
        worst, value = ours.itl.high / 1e3, ours.itl_us / 1e3
        reached, why = worst <= bar.limit, f"{why}, the bar is {bar.limit:.2f} ms"
        if bar.stretch is not None and worst <= bar.stretch:
            why += ", and the stretch is reached"
    else:
        reached = theirs.itl.low / ours.itl.high >= bar.limit
        value = theirs.itl_us / ours.itl_us
        without = f", {theirs.no_graph}" if theirs.no_graph else ""
        why += f", {bar.baseline} {theirs.itl_us:,.1f} µs{without}, the bar is × {bar.limit:g}"
    return Result(bar.name, REACHED if reached else MISSED, value, why)
