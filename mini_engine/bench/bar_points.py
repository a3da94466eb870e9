"""What a bar takes to be measured: shapes, batches and arms of `bench`, and which a file lacks.

In:  shapes, batches, arms (variants, as `--arms` names them); a file's rows. Out: options of the
     command line; what is missing, in words and as the options that measure it. No torch.

    points = BarPoints(("qwen3-0.6b",), (1, 8), ("graph-5-pdl", "hf-eager"))
    missing = points.missing(rows)       # [Missing("qwen3-0.6b", 8, "hf-eager", False)]
    told(missing)                        # "qwen3-0.6b, batch 8: hf-eager"
    covering(missing, points).options    # "--shape qwen3-0.6b --batch 8 --context 512 ..."

The time of an arm that failed the gate is no result. It is not missing where another arm of its
side, ours or the baselines, has one: then there is something to compare.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mini_engine.records.rows import Row

CONTEXT = 512  # tokens
BARS_FILE = "course/measurements/bars-h200.json"
BASELINES = ("hf-eager", "hf-compile", "compile-default", "compile-reduce-overhead",
             "compile-max-autotune")  # fmt: skip
QUANTS = ("int8", "int4")


def in_few_bits(arm: str) -> bool:
    """Whether it reads fewer bytes than the model has: it is held against its own floor, and stands
    in for nothing else."""
    return arm.rpartition("-")[2] in (*QUANTS, "kv8")


class Missing(NamedTuple):
    """An arm that has no result at a point."""

    shape: str
    batch: int
    arm: str
    failed_gate: bool = False  # it was run, and nothing else stands in for it


@dataclass(frozen=True)
class BarPoints:
    """Every arm at every batch of every shape, at one context."""

    shapes: tuple[str, ...]
    batches: tuple[int, ...]
    arms: tuple[str, ...]  # in the order in which they are measured: what costs most comes last
    processes: int = 1

    @property
    def options(self) -> str:
        """For `python -m mini_engine bench`."""
        batches = ",".join(map(str, self.batches))
        return (
            f"--shape {','.join(self.shapes)} --batch {batches} --context {CONTEXT} "
            f"--arms {','.join(self.arms)} --processes {self.processes}"
        )

    def missing(self, rows: Iterable[Row]) -> list[Missing]:
        """What a file with these rows lacks."""
        here = [row for row in rows if row.context == CONTEXT]
        results = {(row.shape, row.batch, row.variant) for row in here if row.is_result}
        failed = {(row.shape, row.batch, row.variant) for row in here if row.failed_gate}
        sides = {(*one[:2], _side(one[2])) for one in results}
        every = itertools.product(self.shapes, self.batches, self.arms)
        return [
            Missing(*one, failed_gate=one in failed)
            for one in every
            if one not in results and not (one in failed and (*one[:2], _side(one[2])) in sides)
        ]


def _side(arm: str) -> str:
    """Which arms stand in for each other: ours, the baselines, those of one format."""
    if in_few_bits(arm):
        return arm.rpartition("-")[2]
    return "baseline" if arm in BASELINES else "ours"


def bench_line(
    file: Path | str = BARS_FILE,
    card: Path | str = "out/h200.json",
    host: Path | str = "out/h200-host.json",
) -> str:
    """The beginning of a line that measures into this file and goes on where it stood, in calls
    after each of which it may be cut; `BarPoints.options` come behind it."""
    return (
        "python -m mini_engine bench --resume --minutes 7.5 --rounds 8 "
        f"--spec {card} --host {host} -o {file}"
    )


def told(missing: Sequence[Missing]) -> str:
    """In words: the batches of a shape that lack the same arms stand together."""
    arms: dict[tuple[str, int], tuple[str, ...]] = {}
    for shape, batch, arm, failed in missing:
        name = f"{arm} (failed the gate)" if failed else arm
        arms[shape, batch] = (*arms.get((shape, batch), ()), name)
    batches: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for (shape, batch), lacking in arms.items():
        batches.setdefault((shape, lacking), []).append(batch)
    return "; ".join(
        f"{shape}, batch {' '.join(map(str, of))}: {', '.join(lacking)}"
        for (shape, lacking), of in batches.items()
    )


def covering(missing: Sequence[Missing], of: BarPoints) -> BarPoints:
    """The least part of a bar's points that holds all of these, in the bar's order. --resume leaves
    out what is in the file already."""
    return BarPoints(
        tuple(shape for shape in of.shapes if shape in {one.shape for one in missing}),
        tuple(batch for batch in of.batches if batch in {one.batch for one in missing}),
        tuple(arm for arm in of.arms if arm in {one.arm for one in missing}),
        of.processes,
    )
