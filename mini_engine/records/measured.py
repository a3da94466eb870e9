"""What a benchmark's file holds, as data to draw and to judge: no wing, no torch, no matplotlib.

In:  the rows of a measurement (`course/measurements/README.md`).
Out: `MeasuredStep`s; of one shape and context; the ladder of ablations; where a graph stops to pay.

    origin = origin_of(vars(measurement))             # of what, when, on what
    steps = measured_steps(figures["rows"])
    steps = of_one_place(steps)                       # the shape and context with the most batches
    climb = ablation(steps, batch=1)                  # transformers eager -> ... -> the floor
    crossing_batch(batches, saved)                    # where a graph saves less than 5%

A variant that failed the gate has no step here, whoever wrote it: its time is no result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABLATION = (
    ("hf-eager", "transformers, eager"),
    ("ours-eager", "our plain model, eager"),
    ("ours-graph", "in one CUDA graph"),
    ("graph-9", "9 Triton kernels a layer"),
    ("graph-5", "5 Triton kernels a layer"),
    ("graph-5-pdl", "with PDL"),
    ("graph-5-pdl-k8", "8 steps a replay"),
)
PAYS = 0.05  # of eager's ITL: what a graph saves while it pays


@dataclass(frozen=True)
class MeasuredStep:
    """A decode step of one variant, medians in µs, with the 95% interval of the ITL."""

    variant: str
    shape: str
    batch: int
    context: int
    itl_us: float
    low_us: float
    high_us: float
    predicted_us: float
    bytes_to_move: int  # weights and KV, read once
    percent_of_copy: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl_us * 1e6


@dataclass(frozen=True)
class Origin:
    """What the numbers of a file are of."""

    gpu: str
    date: str
    commit: str
    emulated: bool  # a CPU wrote them: no evidence
    copy_gb_s: float
    spec: str  # predicted with
    laps: str  # "medians of 8 laps of 32 dependent steps"
    failed: tuple[str, ...]  # variants that failed the gate, at some point at least

    def caption(self) -> str:
        """For under a picture: of what, when, how; and what is not shown because it is wrong."""
        who = f"Measured on {self.gpu}"
        if self.emulated:
            who = "Emulated on a CPU: no evidence about any GPU"
        told = f"{who}, {self.date[:10]}, commit {self.commit}; {self.laps}."
        if self.failed:
            told += f" Failed the gate, and not shown where they did: {', '.join(self.failed)}."
        return told

    def floor_caption(self) -> str:
        """What a floor in the picture is."""
        copy = f"{self.copy_gb_s:,.0f}" if self.copy_gb_s >= 10 else f"{self.copy_gb_s:.3g}"
        return f"Floor: weights and KV, read once at the {copy} GB/s of a copy."


@dataclass(frozen=True)
class Rung:
    """One step of the ablation ladder."""

    label: str
    step: MeasuredStep
    saved_us: float  # against the rung before; 0 for the first, below 0 when it is slower


@dataclass(frozen=True)
class Ablation:
    """The ladder at one point, down to the floor."""

    rungs: tuple[Rung, ...]
    left_out: tuple[str, ...]  # variants that the file has no figure for
    floor_us: float

    @property
    def to_the_floor_us(self) -> float:
        return self.rungs[-1].step.itl_us - self.floor_us


def origin_of(measurement: Mapping[str, Any]) -> Origin:
    """From the fields of a measurement of kind "bench"."""
    figures = measurement["figures"]
    return Origin(
        gpu=measurement["gpu"],
        date=measurement["date"],
        commit=measurement["commit"],
        emulated=measurement["emulated"],
        copy_gb_s=figures["copy_bandwidth_gb_s"]["median"],
        spec=figures["spec"],
        laps=laps_of(figures),
        failed=tuple(dict.fromkeys(row["variant"] for row in figures["rows"] if failed_gate(row))),
    )


def failed_gate(row: Mapping[str, Any]) -> bool:
    """Whether what it computes is not what it should be: its time, if it has one, is no result."""
    return row["status"] == "gate failed" or (
        row["status"] == "measured" and not row["gate"]["passed"]
    )


def laps_of(figures: Mapping[str, Any]) -> str:
    """How its figures were come by, in words."""
    runs = {len(row["runs"]) for row in figures["rows"] if row["status"] == "measured"}
    laps = f"medians of {figures['rounds']} laps of {figures['steps']} dependent steps"
    if runs <= {1}:
        return laps
    several = f"{min(runs)} to {max(runs)}" if len(runs) > 1 else f"{max(runs)}"
    return f"means over {several} processes of {laps}"


def measured_steps(rows: Sequence[Mapping[str, Any]]) -> list[MeasuredStep]:
    """The rows that have a time which is a result: measured, and past the gate."""
    return [
        MeasuredStep(
            variant=row["variant"],
            shape=row["shape"],
            batch=row["batch"],
            context=row["context"],
            itl_us=row["itl_us"]["median"],
            low_us=row["itl_us"]["low"],
            high_us=row["itl_us"]["high"],
            predicted_us=row["predicted_us"],
            bytes_to_move=row["bytes_to_move"],
            percent_of_copy=row["percent_of_copy"],
        )
        for row in rows
        if row["status"] == "measured" and row["gate"]["passed"]
    ]


def of_one_place(
    steps: Sequence[MeasuredStep], shape: str | None = None, context: int | None = None
) -> list[MeasuredStep]:
    """The steps of one shape at one context: of those that fit, the place with the most batches,
    and the first of these. Raises ValueError where nothing fits."""
    batches: dict[tuple[str, int], set[int]] = {}
    for step in steps:
        if shape in (None, step.shape) and context in (None, step.context):
            batches.setdefault((step.shape, step.context), set()).add(step.batch)
    if not batches:
        wanted = f" of {shape or 'any shape'} at context {context or 'any'}"
        raise ValueError(f"no variant has a result{wanted if shape or context else ''}")
    place = max(batches, key=lambda one: len(batches[one]))  # the first of equals
    return [step for step in steps if (step.shape, step.context) == place]


def curve(steps: Sequence[MeasuredStep], variant: str) -> list[MeasuredStep]:
    """One variant's steps, batch rising."""
    return sorted((s for s in steps if s.variant == variant), key=lambda s: s.batch)


def floor_curve(steps: Sequence[MeasuredStep], copy_gb_s: float) -> list[tuple[int, float]]:
    """(batch, µs): nothing can be faster than the bytes at the speed of a copy. Batch rising."""
    moved = {step.batch: step.bytes_to_move for step in steps}
    return [(batch, moved[batch] / copy_gb_s / 1e3) for batch in sorted(moved)]


def ablation(steps: Sequence[MeasuredStep], batch: int, copy_gb_s: float) -> Ablation:
    """The ladder at one batch. ValueError unless two of its rungs have a result there."""
    there = {step.variant: step for step in steps if step.batch == batch}
    rungs: list[Rung] = []
    for variant, label in ABLATION:
        if variant in there:
            before = rungs[-1].step.itl_us if rungs else there[variant].itl_us
            rungs.append(Rung(label, there[variant], before - there[variant].itl_us))
    if len(rungs) < 2:
        raise ValueError(
            f"{len(rungs)} of its variants with a result at batch {batch}, it takes two: "
            f"{', '.join(variant for variant, _ in ABLATION)}"
        )
    left_out = tuple(label for variant, label in ABLATION if variant not in there)
    return Ablation(tuple(rungs), left_out, rungs[0].step.bytes_to_move / copy_gb_s / 1e3)


def crossing_batch(batches: Sequence[int], saved: Sequence[float]) -> float | None:
    """The batch from which on a graph saves less than PAYS, on a straight line between measured
    batches over log(batch); None when it still pays at the last one, the first batch when it never
    does. `saved`: shares of eager's ITL, batch rising."""
    late = [i for i, share in enumerate(saved) if share >= PAYS]
    if not late:
        return float(batches[0])
    i = late[-1]
    if i == len(batches) - 1:
        return None
    along = (saved[i] - PAYS) / (saved[i] - saved[i + 1])
    begin, end = math.log(batches[i]), math.log(batches[i + 1])
    return math.exp(begin + along * (end - begin))
