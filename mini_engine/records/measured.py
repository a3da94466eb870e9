"""What a benchmark's file holds, as data to draw and to judge: no wing, no torch, no matplotlib.

In:  the rows of a measurement (`course/measurements/README.md`).
Out: the `Row`s whose time is a result; those of one shape and context; the ablation ladder; the
     batch from which on a graph does not pay.

    origin = origin_of(vars(measurement))             # what was measured, when, on what
    steps = measured_steps(figures["rows"])
    steps = of_one_place(steps)                       # the shape and context with the most batches
    ladder = ablation(steps, 1, copy_gb_s)            # transformers eager -> ... -> the floor
    crossing_batch(batches, saved)                    # where a graph saves less than 5%

The time of a variant that failed the gate is no result, whoever wrote the variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_engine.records.rows import Row

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
class Origin:
    """Where the numbers of a file come from."""

    gpu: str
    date: str
    commit: str
    emulated: bool  # a CPU wrote them: no evidence
    copy_gb_s: float
    spec: str  # of the predictions
    laps: str  # "medians of 8 laps of 32 dependent steps"
    failed: tuple[str, ...]  # variants that failed the gate, at some point at least

    def caption(self) -> str:
        """For a picture: what, when, how, and which variants it leaves out as wrong."""
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
class Idea:
    """One step of the ablation ladder."""

    label: str
    row: Row
    saved_us: float  # against the idea before; 0 for the first, below 0 where it is slower


@dataclass(frozen=True)
class Ablation:
    """The ladder at one point, down to the floor."""

    ideas: tuple[Idea, ...]
    left_out: tuple[str, ...]  # labels without a result in the file
    floor_us: float

    @property
    def to_the_floor_us(self) -> float:
        return self.ideas[-1].row.itl_us - self.floor_us


def origin_of(measurement: Mapping[str, Any]) -> Origin:
    """From the fields of a measurement of kind "bench"."""
    figures = measurement["figures"]
    rows = [Row.from_json(row) for row in figures["rows"]]
    return Origin(
        gpu=measurement["gpu"],
        date=measurement["date"],
        commit=measurement["commit"],
        emulated=measurement["emulated"],
        copy_gb_s=figures["copy_bandwidth_gb_s"]["median"],
        spec=figures["spec"],
        laps=laps_of(figures, rows),
        failed=tuple(dict.fromkeys(row.variant for row in rows if row.failed_gate)),
    )


def laps_of(figures: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """How the figures of these rows were obtained, in words."""
    runs = {len(row.runs) for row in rows if row.runs}
    laps = f"medians of {figures['rounds']} laps of {figures['steps']} dependent steps"
    if runs <= {1}:
        return laps
    several = f"{min(runs)} to {max(runs)}" if len(runs) > 1 else f"{max(runs)}"
    return f"means over {several} processes of {laps}"


def measured_steps(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Those of a file's rows whose time is a result: measured, and past the gate."""
    return [row for row in map(Row.from_json, rows) if row.is_result]


def of_one_place(
    steps: Sequence[Row], shape: str | None = None, context: int | None = None
) -> list[Row]:
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


def curve(steps: Sequence[Row], variant: str) -> list[Row]:
    """One variant's steps, batch rising."""
    return sorted((s for s in steps if s.variant == variant), key=lambda s: s.batch)


def floor_curve(steps: Sequence[Row], copy_gb_s: float) -> list[tuple[int, float]]:
    """(batch, µs): no step is faster than its bytes at a copy's speed. Batch rising."""
    moved = {step.batch: step.bytes_to_move for step in steps}
    return [(batch, moved[batch] / copy_gb_s / 1e3) for batch in sorted(moved)]


def ablation(steps: Sequence[Row], batch: int, copy_gb_s: float) -> Ablation:
    """The ladder at one batch. ValueError unless two of its variants have a result there."""
    there = {step.variant: step for step in steps if step.batch == batch}
    ideas: list[Idea] = []
    for variant, label in ABLATION:
        if variant in there:
            row = there[variant]
            ideas.append(Idea(label, row, ideas[-1].row.itl_us - row.itl_us if ideas else 0.0))
    if len(ideas) < 2:
        raise ValueError(
            f"{len(ideas)} of its variants with a result at batch {batch}, it takes two: "
            f"{', '.join(variant for variant, _ in ABLATION)}"
        )
    left_out = tuple(label for variant, label in ABLATION if variant not in there)
    return Ablation(tuple(ideas), left_out, ideas[0].row.bytes_to_move / copy_gb_s / 1e3)


def crossing_batch(batches: Sequence[int], saved: Sequence[float]) -> float | None:
    """The batch beyond which a graph saves less than PAYS, interpolated between measured batches
    over log(batch). None when it still pays at the last one, the first batch when it never does.
    `saved`: shares of eager's ITL, batch rising."""
    late = [i for i, share in enumerate(saved) if share >= PAYS]
    if not late:
        return float(batches[0])
    i = late[-1]
    if i == len(batches) - 1:
        return None
    along = (saved[i] - PAYS) / (saved[i] - saved[i + 1])
    begin, end = math.log(batches[i]), math.log(batches[i + 1])
    return math.exp(begin + along * (end - begin))
