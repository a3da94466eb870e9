"""The aims of the CUDA wing on one H200, and what a benchmark's file says about each.

In:  a `Measurement` of kind "bench". Out: each bar with "reached", "missed" or "not measured", and
why. No torch.

    for result in judged(measurement):
        print(result.bar.says, result.status, result.why)

A bar is reached when the whole 95% interval is on its good side; an interval that lies across the
bar is a miss. Nothing is measured by the emulator, by another GPU, by a variant that failed the
gate (baselines included), or where the file lacks the point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mini_engine.cuda.measure.evidence import CALIBRATED, Measurement
from mini_engine.records.measured import measured_steps
from mini_engine.records.rows import Row, six

REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"
GPU, MAX_CONTEXT = "H200", 512
SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen2.5-1.5b", "llama-3.2-1b")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASELINES = ("hf-eager", "hf-compile", "compile-default", "compile-reduce-overhead",
             "compile-max-autotune")  # fmt: skip
PREDICTED_VARIANTS = ("hf-eager", "ours-eager", "ours-piecewise", "ours-graph", "ours-graph-k8",
                  "graph-9", "graph-5")  # fmt: skip
WITHIN_PERCENT = 10.0
CALIBRATE = "python -m mini_engine calibrate -o out/h200.json"  # once, before any of them
BENCH = (
    "python -m mini_engine bench --resume --spec out/h200.json --host out/h200-host.json "
    "-o course/measurements/bars-h200.json"
)


Judged = tuple[str, float | None, str]  # status, value, why
PredictedFor = tuple[str, str]  # the names of card and host


@dataclass(frozen=True)
class Bar:
    """One aim."""

    name: str
    says: str
    source: str  # where the number comes from
    judge: Callable[[Sequence[Row], PredictedFor], Judged]
    points: str  # what measures it: options to put behind BENCH

    @property
    def command(self) -> str:
        """The line that measures it. All bars share one file, which --resume continues."""
        return f"{BENCH} {self.points}".rstrip()


@dataclass(frozen=True)
class Result:
    """What a file says about a bar."""

    bar: Bar
    status: str
    value: float | None  # in the unit of the bar; None if it was not measured
    why: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "bar": self.bar.name,
            "says": self.bar.says,
            "source": self.bar.source,
            "status": self.status,
            "value": None if self.value is None else six(self.value),
            "why": self.why,
            "command": self.bar.command,
        }


def judged(measurement: Measurement) -> list[Result]:
    """Every bar, in the order of BARS."""
    reason = None
    if measurement.emulated:
        reason = "the CPU emulator wrote this file"
    elif GPU not in measurement.gpu:
        reason = f"the bars are for an {GPU}, this is {measurement.gpu}"
    steps = measured_steps(measurement.figures["rows"])
    on = measurement.figures["spec"], measurement.figures["host"]
    found = []
    for bar in BARS:
        status, value, why = (NOT_MEASURED, None, reason) if reason else bar.judge(steps, on)
        found.append(Result(bar, status, value, why))
    return found


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
        of = f"{shape}, {variant}: {value:.2f}× (at least {least:.2f}×)"
        if len(factors) < len(SHAPES):
            of += f"; {len(factors)} of {len(SHAPES)} shapes measured"
        of += _without_graphs(used)
        return (REACHED if least >= bar else MISSED), value, of

    return judge


def _never_slower(steps: Sequence[Row], _on: PredictedFor) -> Judged:
    """Every shape and batch, at the largest context up to MAX_CONTEXT. A miss is one point where
    even our best is slower than a baseline, beyond both intervals. Reached takes all points."""
    held, worst, used = 0, (0.0, ""), []
    for shape in SHAPES:
        for batch in BATCHES:
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
            held += 1
    if not held:
        return NOT_MEASURED, None, "no point with a baseline and a variant of ours"
    points, at = len(SHAPES) * len(BATCHES), worst[1] + _without_graphs(used)
    if held < points:
        return NOT_MEASURED, worst[0], f"holds at {held} of {points} points so far; {at}"
    return REACHED, worst[0], f"closest: {at}"


def _prediction(steps: Sequence[Row], on: PredictedFor) -> Judged:
    """A calibration fits launches, gaps and bandwidth but no ITL, so every ITL is held out."""
    guessed = [name for name in on if not name.endswith(CALIBRATED)]
    if guessed:
        why = f"predicted with {' and '.join(guessed)}, not measured on this machine: calibrate, "
        return NOT_MEASURED, None, why + "then --spec and --host"
    off = [
        (abs(100 * (s.predicted_us / s.itl_us - 1)), s)
        for s in steps
        if s.variant in PREDICTED_VARIANTS
    ]
    if not off:
        return NOT_MEASURED, None, f"none of {', '.join(PREDICTED_VARIANTS)} has a result"
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

BARS: tuple[Bar, ...] = (
    Bar(
        "itl-qwen3-1.7b",
        "Qwen3-1.7B: ITL of 1.00 ms or less, 0.89 as a stretch",
        f"3.44 GB at 80% of {_COPY} take 1.00 ms, at 90% 0.89 ms",
        _itl("qwen3-1.7b", 1000, 890),
        "--shape qwen3-1.7b --batch 1 --context 512",
    ),
    Bar(
        "itl-qwen3-0.6b",
        "Qwen3-0.6B: ITL of 0.42 ms or less, 0.36 as a stretch",
        f"1.19 GB at {_COPY} take 0.28 ms, and 143 kernels 1 µs each; 0.36 ms is 77% of a copy",
        _itl("qwen3-0.6b", 420, 360),
        "--shape qwen3-0.6b --batch 1 --context 512",
    ),
    Bar(
        "itl-llama-3.2-1b",
        "Llama-3.2-1B shape: ITL of 0.76 ms or less, 0.68 as a stretch",
        f"0.760 ms is a published megakernel's step on an H200, {_MEGAKERNELS}; "
        "0.68 ms is 84% of a copy",
        _itl("llama-3.2-1b", 760, 680),
        "--shape llama-3.2-1b --batch 1 --context 512",
    ),
    Bar(
        "times-transformers",
        "8 times as fast as transformers eager, or more, at batch 1",
        _AIM,
        _times("hf-eager", 8.0),
        "--batch 1 --context 512",
    ),
    Bar(
        "times-compile",
        "1.3 times as fast as torch.compile (reduce-overhead) of our plain model, at batch 1",
        _AIM,
        _times("compile-reduce-overhead", 1.3),
        "--batch 1 --context 512",
    ),
    Bar(
        "never-slower",
        "no slower than any baseline at any batch up to 256",
        f"{_AIM}: where a library's product wins, ours is to use it",
        _never_slower,
        "--context 512",
    ),
    Bar(
        "prediction",
        f"the simulator's ITL within {WITHIN_PERCENT:.0f}% of every measured one (without PDL)",
        _AIM,
        _prediction,
        "",
    ),
)
