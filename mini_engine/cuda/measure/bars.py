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
file: no arm starts after seven and a half. `tests/cuda/measure/test_bar_points.py` adds it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_engine.cuda.measure.bar_points import (
    BASELINES,
    CONTEXT,
    BarPoints,
    Missing,
    bench_line,
    covering,
    told,
)
from mini_engine.cuda.measure.evidence import CALIBRATED, Measurement
from mini_engine.records.rows import Row, six

REACHED, MISSED, PARTLY, NOT_MEASURED = "reached", "missed", "partly measured", "not measured"
GPU, MAX_CONTEXT = "H200", CONTEXT
SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b", "qwen2.5-1.5b")
BATCHES = (1, 8, 64, 256)
WITHIN_PERCENT = 10.0
CALIBRATE = "python -m mini_engine calibrate -o out/h200.json"  # once, before any of them
BENCH = bench_line()  # all bars share one file, which --resume continues


Judged = tuple[str, float | None, str]  # status, value, why
PredictedFor = tuple[str, str]  # the names of card and host


@dataclass(frozen=True)
class Bar:
    """One aim."""

    name: str
    says: str
    source: str  # where the number comes from
    judge: Callable[[Sequence[Row], PredictedFor], Judged]
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


# ---------------------------------------------------------------- how a bar is judged


def _itl(shape: str, bar_us: float, stretch_us: float) -> Callable[..., Judged]:
    def judge(steps: Sequence[Row], _on: PredictedFor) -> Judged:
        best = _best_at(steps, shape)
        if best is None:
            return NOT_MEASURED, None, f"no variant of ours at batch 1 and context <= {MAX_CONTEXT}"
        at = f"{best.variant} at context {best.context}: {_told(best)}"
        if best.itl.high <= stretch_us:
            return REACHED, best.itl_us, f"{at}; so is the stretch of {stretch_us:,.0f} µs"
        return (REACHED if best.itl.high <= bar_us else MISSED), best.itl_us, at

    return judge


def _times(baseline: str, bar: float) -> Callable[..., Judged]:
    def judge(steps: Sequence[Row], _on: PredictedFor) -> Judged:
        """By the shape with the smallest factor, at the worse ends of both intervals."""
        factors, used = [], []
        for shape in SHAPES:
            ours = _best_at(steps, shape)
            theirs = [s for s in steps if ours and s.variant == baseline and s.point == ours.point]
            if ours and theirs:
                least = theirs[0].itl.low / ours.itl.high
                factors.append((least, theirs[0].itl_us / ours.itl_us, shape, ours.variant))
                used += [theirs[0], ours]
        if not factors:
            return NOT_MEASURED, None, f"no shape with {baseline} and a variant of ours at batch 1"
        least, value, shape, variant = min(factors)
        of = f"{shape}, {variant}: {value:.2f}× (at least {least:.2f}×), "
        of += f"the least of {len(factors)} shapes{_without_graphs(used)}"
        return (REACHED if least >= bar else MISSED), value, of

    return judge


def _never_slower(steps: Sequence[Row], _on: PredictedFor) -> Judged:
    """Every shape and batch, at the largest context up to MAX_CONTEXT. A miss is one point where
    even our best is slower than a baseline, beyond both intervals."""
    held: list[str] = []
    used: list[Row] = []
    worst = 0.0, ""
    for shape, batch in sorted({(s.shape, s.batch) for s in steps if s.shape in SHAPES}):
        ours = _best_at(steps, shape, batch)
        theirs = [s for s in steps if ours and s.variant in BASELINES and s.point == ours.point]
        if ours is None or not theirs:
            continue
        used += [ours, *theirs]
        fastest = min(theirs, key=lambda s: s.itl_us)
        at = f"{shape}, batch {batch}: {ours.variant} {_told(ours)}, "
        at += f"{fastest.variant} {_told(fastest)}"
        worst = max(worst, (ours.itl_us / fastest.itl_us, at))
        if ours.itl.low > fastest.itl.high:
            return MISSED, ours.itl_us / fastest.itl_us, at
        held.append(f"{shape} {batch}")
    if not held:
        return NOT_MEASURED, None, "no point with a baseline and a variant of ours"
    why = f"at {', '.join(held)}; closest: {worst[1]}{_without_graphs(used)}"
    return REACHED, worst[0], why


def _prediction(steps: Sequence[Row], on: PredictedFor) -> Judged:
    """By card, host and each arm's engine, PDL included. A calibration fits launches, gaps and
    bandwidth but no ITL, so every ITL is held out. Left out: null, which is the anchor again, and
    the trials of a kernel's alternative, of which the simulator knows nothing."""
    guessed = [name for name in on if not name.endswith(CALIBRATED)]
    if guessed:
        why = f"predicted with {' and '.join(guessed)}, not measured on this machine: calibrate, "
        return NOT_MEASURED, None, why + "then --spec and --host"
    off = [
        (abs(100 * (s.predicted_us / s.itl_us - 1)), s)
        for s in steps
        if s.variant != "null" and ":" not in s.variant
    ]
    if not off:
        return NOT_MEASURED, None, "no arm has a result"
    worst, step = max(off, key=lambda pair: pair[0])
    inside = sum(percent <= WITHIN_PERCENT for percent, _ in off)
    at = (
        f"{inside} of {len(off)} points within {WITHIN_PERCENT:.0f}%; worst {step.variant}, "
        f"{step.shape}, batch {step.batch}, context {step.context:,}: {worst:.1f}% off"
    )
    return (REACHED if worst <= WITHIN_PERCENT else MISSED), worst, at


def _best_at(steps: Sequence[Row], shape: str, batch: int = 1) -> Row | None:
    """The fastest variant of ours at the largest context up to MAX_CONTEXT."""
    ours = [
        s for s in steps
        if (s.shape, s.batch) == (shape, batch)
        and s.context <= MAX_CONTEXT and s.variant not in (*BASELINES, "null")
    ]  # fmt: skip
    if not ours:
        return None
    context = max(s.context for s in ours)
    return min((s for s in ours if s.context == context), key=lambda s: s.itl_us)


def _told(step: Row) -> str:
    return f"{step.itl_us:,.1f} µs ({step.itl.low:,.1f} to {step.itl.high:,.1f})"


def _without_graphs(used: Sequence[Row]) -> str:
    """What makes a comparison worth less: variants that claim a graph and ran without one."""
    counts: dict[str, list[int]] = {}
    for step in used:
        if step.no_graph:
            counts.setdefault(step.variant, []).append(step.launches_a_call or 0)
    told = ""
    for variant, n in counts.items():
        launches = f"{min(n)} to {max(n)}" if min(n) < max(n) else f"{n[0]}"
        told += f"; {variant} ran without a graph: {launches} launches"
    return told


# ---------------------------------------------------------------- the bars

_COPY = "the 4.3 TB/s that a copy reaches on an H200 (mini_engine/specs/h200.json)"
_MEGAKERNELS = "https://github.com/msaroufim/megakernels-vs-cuda-graphs"
_AIM = "an aim of this project"


def _itl_bar(shape: str, name: str, bar_ms: float, stretch_ms: float, source: str) -> Bar:
    return Bar(
        f"itl-{shape}",
        f"{name}: ITL of {bar_ms:.2f} ms or less, {stretch_ms:.2f} as a stretch",
        source,
        _itl(shape, round(1e3 * bar_ms), round(1e3 * stretch_ms)),
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
    Bar(
        "times-transformers",
        "8 times as fast as transformers eager, or more, at batch 1",
        _AIM,
        _times("hf-eager", 8.0),
        BarPoints(SHAPES[:3], (1,), ("graph-5-pdl", "hf-eager"), processes=2),
    ),
    Bar(
        "times-compile",
        "1.3 times as fast as torch.compile (reduce-overhead) of our plain model, at batch 1",
        _AIM,
        _times("compile-reduce-overhead", 1.3),
        BarPoints(SHAPES[:3], (1,), ("graph-5-pdl", "compile-reduce-overhead")),
    ),
    Bar(
        "never-slower",
        "no slower than any measured baseline at any batch, at least 1, 8, 64 and 256",
        f"{_AIM}: where a library's product wins, ours is to use it. At least Qwen3-0.6B, against "
        "transformers eager and torch.compile (reduce-overhead)",
        _never_slower,
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
        _prediction,
        BarPoints(
            SHAPES[:1],
            BATCHES,
            ("graph-5-pdl", "graph-5", "ours-graph", "ours-piecewise", "ours-eager", "hf-eager"),
        ),
    ),
)  # fmt: skip
