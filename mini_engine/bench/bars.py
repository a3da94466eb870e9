"""The aims of the CUDA wing on one H200, in one table, and what a benchmark's rows say of each:
"reached", "missed" or "not measured". No torch.

A bar is reached when the whole 95% interval is on its good side. The emulator, another GPU and a
variant that failed the gate (baselines included) measure nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mini_engine.bench.evidence import Measurement
from mini_engine.bench.rows import Row, measured_steps

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


class Result(NamedTuple):
    name: str
    status: str
    why: str

    def __str__(self) -> str:
        return f"{self.status:>15}: {self.name} ({self.why})"


def judged(measurement: Measurement) -> list[Result]:
    if measurement.emulated or GPU not in measurement.gpu:
        why = f"the bars are for one {GPU}, this is {measurement.gpu}"
        return [Result(bar.name, NOT_MEASURED, why) for bar in BARS]
    steps = [s for s in measured_steps(measurement.figures["rows"]) if s.context == CONTEXT]
    return [_judged(bar, [s for s in steps if s.point[:2] == (bar.shape, bar.batch)])
            for bar in BARS]  # fmt: skip


def _judged(bar: Bar, steps: Sequence[Row]) -> Result:
    ours = min((s for s in steps if s.variant in OURS), key=lambda s: s.itl_us, default=None)
    theirs = next((s for s in steps if s.variant == bar.baseline), None)
    if ours is None or (bar.baseline and theirs is None):
        return Result(bar.name, NOT_MEASURED, "measure it: python -m mini_engine bench")
    why = f"{ours.variant} {ours.itl_us:,.1f} µs ({ours.itl.low:,.1f} to {ours.itl.high:,.1f})"
    if theirs is None:
        worst_ms, why = ours.itl.high / 1e3, f"{why}, the bar is {bar.limit:.2f} ms"
        reached = worst_ms <= bar.limit
        why += ", and the stretch is reached" if worst_ms <= (bar.stretch or 0) else ""
    else:
        reached = theirs.itl.low / ours.itl.high >= bar.limit
        without = f", {theirs.no_graph}" if theirs.no_graph else ""
        why += f", {bar.baseline} {theirs.itl_us:,.1f} µs{without}, the bar is × {bar.limit:g}"
    return Result(bar.name, REACHED if reached else MISSED, why)
