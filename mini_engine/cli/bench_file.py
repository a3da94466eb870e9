"""Measure into a file: what it holds already, what is missing, which process measures that.

In:  the arguments of `bench`, a device. Out: a measurement file, written after every row.

    for row, number in measure(args, backend, spec_for, measurement, out): ...   # in this process
    in_fresh_processes(args, out)                                     # in several, one by one

A fresh process runs the line that was typed, with --process K behind it, and the minutes that are
left: it continues the file as --resume does, and adds its laps to the rows that have fewer than K
processes in them. Whatever ends a run, the file holds everything that was measured, and --resume
measures the rest: first what nothing has tried yet, since an arm that broke a device or hung may do
so again.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mini_engine.bench.bench_check import check_bench
from mini_engine.bench.evidence import Measurement, continued, read_measurement, write_measurement
from mini_engine.bench.table import OVER, joined, wants
from mini_engine.cli import measuring
from mini_engine.model.config import ModelConfig
from mini_engine.records.rows import NOT_RUN, Point, Row
from mini_engine.step.hardware import DeviceSpec

if TYPE_CHECKING:
    from mini_engine.cuda.graphs.backend import GraphBackend

KILLED = "its process was killed while it ran"  # until there is something else to say
QUICK_MINUTES = 3.3  # no variant starts after this, and none but max-autotune should take one more


def measure(
    args: argparse.Namespace,
    backend: GraphBackend,
    spec_for: Callable[[str], DeviceSpec],
    measurement: Measurement,
    out: Path,
) -> Iterator[tuple[Row, str]]:
    """(row, "3 of 24") for everything that is missing, each once it is in the file."""
    process = args.process or 1
    measurement = _header(measurement, args, backend, spec_for)
    if (args.resume or process > 1) and out.exists():
        measurement = _resumed(out, measurement)
    in_file = map(Row.from_json, measurement.figures["rows"])
    rows = {(row.point, row.variant): row for row in in_file}
    copy_gb_s = measurement.figures["copy_bandwidth_gb_s"]["median"]
    todo = _missing(args, rows, process)
    wanted = [(point, name) for *_, point, names in todo for name in names]
    measured = _measured(args, backend, spec_for, copy_gb_s, todo)

    def write() -> None:
        figures = {**measurement.figures, "rows": [one.as_json() for one in rows.values()]}
        write_measurement(out, replace(measurement, figures=figures))

    for number, key in enumerate(wanted, 1):
        before = rows.get(key)
        if before is None:
            rows[key] = Row(*key[0], key[1], NOT_RUN, KILLED)
            write()
        try:
            row = next(measured)
        except BaseException:
            if before is None:
                del rows[key]
                write()
            raise
        rows[key] = joined(before, row, copy_gb_s)
        write()
        yield row, f"{number} of {len(wanted)}"
    next(measured, None)  # gives back what the last arm held
    write()  # where there was nothing to measure, the file says so


def in_fresh_processes(args: argparse.Namespace, out: Path) -> None:
    """One process after the other; each prints what it measures to standard error.

    Raises ValueError when one of them fails, KeyboardInterrupt when one is interrupted.
    """
    began = time.monotonic()
    for process in range(1, args.processes + 1):
        words = ["--process", str(process)]
        if args.minutes:
            left = args.minutes - (time.monotonic() - began) / 60
            if left <= 0:
                return
            words += ["--minutes", f"{left:.2f}"]
        code = run_python(["-m", "mini_engine", *args.typed, *words])
        if code == 130:
            raise KeyboardInterrupt
        if code:
            raise ValueError(
                f"process {process} of {args.processes} ended with code {code}: what it measured "
                f"is in {out}, go on with --resume"
            )


def as_typed(words: list[str]) -> list[str]:
    """The words of a command line, without those that `in_fresh_processes` has appended."""
    return words[: words.index("--process")] if "--process" in words else words


def run_python(words: list[str]) -> int:
    """Run this Python; its exit code. What it prints to standard output is dropped."""
    return subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL).returncode


def config_of(word: str) -> ModelConfig:
    """What a word of --shape means, in bf16. Raises ValueError for one that means nothing."""
    return replace(measuring.shape_of(word), dtype="bfloat16")


# ---------------------------------------------------------------- parts

Todo = list[tuple[str, ModelConfig, Point, list[str]]]  # --shape's word, its shape, where, variants


def _header(
    measurement: Measurement,
    args: argparse.Namespace,
    backend: GraphBackend,
    spec_for: Callable[[str], DeviceSpec],
) -> Measurement:
    """The measurement with what all rows share. Measures the bandwidth of a copy."""
    from mini_engine.bench.blas import preferred
    from mini_engine.bench.calibrate import copy_bandwidth, sizes_for
    from mini_engine.bench.variants import ANCHOR, VARIANTS

    of_anchor = spec_for(VARIANTS[ANCHOR].engine)
    figures = {
        "copy_bandwidth_gb_s": copy_bandwidth(backend, sizes_for(backend, quick=True)),
        "spec": of_anchor.name,
        "host": of_anchor.host,
        "rounds": args.rounds,
        "steps": args.steps,
        "anchor": ANCHOR,
        "blas": preferred(),
        "rows": [],
    }
    return replace(measurement, figures=figures)


def _resumed(out: Path, measurement: Measurement) -> Measurement:
    """The existing file. ValueError where it was measured in another way than this run does."""
    old = continued(out, read_measurement(out), measurement)
    check_bench(out, old)
    for name in ("spec", "host", "rounds", "steps", "anchor", "blas"):
        if old.figures.get(name) != measurement.figures[name]:
            raise ValueError(
                f"{out}: measured with {name} {old.figures.get(name)}, this is "
                f"{measurement.figures[name]}: write to another file, or leave out --resume"
            )
    return old


def _missing(args: argparse.Namespace, rows: dict[tuple[Point, str], Row], process: int) -> Todo:
    """What this process has to measure, shape after shape; then what an earlier one has tried."""
    todo = []
    for tried in (False, True):
        for word in args.shape:
            config = config_of(word)
            for batch, context in itertools.product(args.batch, args.context):
                point = Point(config.name, batch, context)
                found = {name: rows.get((point, name)) for name in args.arms}
                names = [name for name, row in found.items()
                         if wants(row, process) and _tried(row) is tried]  # fmt: skip
                if names:
                    todo.append((word, config, point, names))
    return todo


def _tried(row: Row | None) -> bool:
    """Whether an arm was begun and gave no row."""
    return row is not None and row.status == NOT_RUN and row.reason != OVER


def _measured(
    args: argparse.Namespace,
    backend: GraphBackend,
    spec_for: Callable[[str], DeviceSpec],
    copy_gb_s: float,
    todo: Todo,
) -> Iterator[Row]:
    """The rows of this process; a shape's weights are made when they are needed."""
    import torch

    from mini_engine.bench.bench import Effort, bench_point
    from mini_engine.cuda.weights import no_room

    deadline = time.monotonic() + 60 * args.minutes if args.minutes else None
    effort = Effort(args.rounds, args.steps, deadline)
    for (word, config), points in itertools.groupby(todo, key=lambda one: one[:2]):
        if effort.over:
            for _, _, point, names in points:
                yield from (Row(*point, name, NOT_RUN, OVER) for name in names)
            continue
        if reason := no_room(config, backend, "bf16", "fp32"):  # the gate's reference is a copy
            for _, _, point, names in points:
                yield from (Row(*point, name, NOT_RUN, reason) for name in names)
            continue
        weights = measuring.weights_of(word, config, backend, torch.bfloat16)
        for _, _, point, names in points:
            yield from bench_point(backend, weights, point, names, effort, spec_for, copy_gb_s)
        del weights  # before the next shape's are made
