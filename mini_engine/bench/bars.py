"""The aims of the CUDA wing on one H200, and what a benchmark's file says about each.

In:  a `Measurement` of kind "bench". Out: each bar with "reached", "missed", "partly measured" or
"not measured", and why; and the command that measures it, or what is missing of it. No torch.

    for result in judged(measurement):
        print(result.bar.says, result.status, result.why)

A bar is reached when the whole 95% interval is on its good side; an interval that lies across the
bar is a miss. Nothing is measured by the emulator, by another GPU, by a variant that failed the
gate (baselines included), or where the file lacks the point. A bar over several points is missed as
soon as one measured point misses, also one that it does not ask for, such as batch 16; reached once
all that it asks for is there; and partly measured until then.

Each bar's command takes one call of at most nine minutes on an H200 when it starts with an empty
file: no arm starts after seven and a half. `tests/bench/test_bar_points.py` adds it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_engine.bench.bar_judges import (
    NOT_MEASURED,
    REACHED,
    SHAPES,
    WITHIN_PERCENT,
    Judge,
    PredictedFor,
    fewer_bytes,
    itl,
    never_slower,
    prediction,
    times,
)
from mini_engine.bench.bar_points import QUANTS, BarPoints, Missing, bench_line, covering, told
from mini_engine.bench.evidence import Measurement
from mini_engine.records.rows import Row, six

PARTLY = "partly measured"
GPU = "H200"
BATCHES = (1, 8, 64, 256)
CALIBRATE = "python -m mini_engine calibrate -o out/h200.json"  # once, before any of them
BENCH = bench_line()  # all bars share one file, which --resume continues


@dataclass(frozen=True)
class Bar:
    """One aim."""

    name: str
    says: str
    source: str  # where the number comes from
    judge: Judge
    points: BarPoints  # what measures it
    every_point: bool = True  # takes them all to be reached; if not, the best arm decides

    @property
    def command(self) -> str:
        """The line that measures it."""
        return f"{BENCH} {self.points.options}"


@dataclass(frozen=True)
class Result:
    """What a file says about a bar."""

    bar: Bar
    status: str
    value: float | None  # in the unit of the bar; None if it was not measured
    why: str
    missing: tuple[Missing, ...] = ()  # what the file lacks
    bench: str = BENCH  # the beginning of the line that continues the file

    @property
    def command(self) -> str:
        """The line that measures what is missing; of the whole bar, where nothing is."""
        points = covering(self.missing, self.bar.points) if self.missing else self.bar.points
        return f"{self.bench} {points.options}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "bar": self.bar.name,
            "says": self.bar.says,
            "source": self.bar.source,
            "status": self.status,
            "value": None if self.value is None else six(self.value),
            "why": self.why,
            "missing": [one._asdict() for one in self.missing],
            "command": self.command,
        }


def judged(measurement: Measurement, bench: str = BENCH) -> list[Result]:
    """Every bar, in the order of BARS. `bench`: the `bench_line` that continues its file."""
    reason = None
    if measurement.emulated:
        reason = "the CPU emulator wrote this file"
    elif GPU not in measurement.gpu:
        reason = f"the bars are for an {GPU}, this is {measurement.gpu}"
    if reason:
        return [Result(bar, NOT_MEASURED, None, reason, bench=bench) for bar in BARS]
    rows = [Row.from_json(row) for row in measurement.figures["rows"]]
    on = measurement.figures["spec"], measurement.figures["host"]
    return [_result(bar, rows, on, bench) for bar in BARS]


def _result(bar: Bar, rows: Sequence[Row], on: PredictedFor, bench: str) -> Result:
    """The verdict over what is there, and what is missing."""
    status, value, why = bar.judge([row for row in rows if row.is_result], on)
    missing = tuple(bar.points.missing(rows))
    found = Result(bar, status, value, why, missing, bench)
    if not missing or status == NOT_MEASURED or (status == REACHED and not bar.every_point):
        return found
    if status == REACHED:
        found = replace(found, status=PARTLY, why=f"holds so far: {why}")
    return replace(found, why=f"{found.why}; missing: {told(missing)} (run: {found.command})")


# ---------------------------------------------------------------- the bars

_COPY = "the 4.3 TB/s assumed of an H200 (mini_engine/step/cards/h200.json)"
_MEGAKERNELS = "https://github.com/msaroufim/megakernels-vs-cuda-graphs"
_AIM = "an aim of this project"


def _itl_bar(shape: str, name: str, bar_ms: float, stretch_ms: float, source: str) -> Bar:
    return Bar(
        f"itl-{shape}",
        f"{name}: ITL of {bar_ms:.2f} ms or less, {stretch_ms:.2f} as a stretch",
        source,
        itl(shape, round(1e3 * bar_ms), round(1e3 * stretch_ms)),
        BarPoints((shape,), (1,), ("graph-5-pdl", "graph-5-pdl-k8", "graph-5", "graph-9"), 3),
        every_point=False,
    )


BARS: tuple[Bar, ...] = (
    _itl_bar(
        "qwen3-1.7b", "Qwen3-1.7B", 1.00, 0.89,
        f"3.44 GB at 80% of {_COPY} take 1.00 ms, at 90% 0.89 ms",
    ),
    _itl_bar(
        "qwen3-0.6b", "Qwen3-0.6B", 0.42, 0.36,
        f"1.19 GB at {_COPY} take 0.28 ms, and 143 kernels 1 µs each; 0.36 ms is 77% of a copy",
    ),
    _itl_bar(
        "llama-3.2-1b", "Llama-3.2-1B shape", 0.76, 0.68,
        f"0.760 ms is a published megakernel's step on an H200, {_MEGAKERNELS}; "
        "0.68 ms is 84% of a copy",
    ),
    *(
        Bar(
            f"fewer-bytes-{quant}",
            f"{quant} weights: half of the speed-up that their bytes allow, or more, at batch 1",
            f"{_AIM}, against bf16 in one run: what starts and gaps of kernels leave of it",
            fewer_bytes(quant, 0.5),
            BarPoints(("qwen3-1.7b", "qwen3-8b"), (1,), ("graph-5-pdl", f"graph-5-pdl-{quant}")),
        )
        for quant in QUANTS
    ),
    Bar(
        "times-transformers",
        "8 times as fast as transformers eager, or more, at batch 1",
        _AIM,
        times("hf-eager", 8.0),
        BarPoints(SHAPES[:3], (1,), ("graph-5-pdl", "hf-eager"), processes=2),
    ),
    Bar(
        "times-compile",
        "1.3 times as fast as torch.compile (reduce-overhead) of our plain model, at batch 1",
        _AIM,
        times("compile-reduce-overhead", 1.3),
        BarPoints(SHAPES[:3], (1,), ("graph-5-pdl", "compile-reduce-overhead")),
    ),
    Bar(
        "never-slower",
        "no slower than any measured baseline at any batch, at least 1, 8, 64 and 256",
        f"{_AIM}: where a library's product wins, ours is to use it. At least Qwen3-0.6B, against "
        "transformers eager and torch.compile (reduce-overhead)",
        never_slower,
        BarPoints(
            SHAPES[:1],
            BATCHES,
            ("graph-5-pdl", "ours-graph", "hf-eager", "compile-reduce-overhead"),
        ),
    ),
    Bar(
        "prediction",
        f"the simulator's ITL within {WITHIN_PERCENT:.0f}% of every measured one, PDL included",
        _AIM,
        prediction,
        BarPoints(
            SHAPES[:1],
            BATCHES,
            ("graph-5-pdl", "graph-5", "ours-graph", "ours-piecewise", "ours-eager", "hf-eager"),
        ),
    ),
)  # fmt: skip
