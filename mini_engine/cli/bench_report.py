"""What a benchmark's file yields, without measuring again: table, pictures, bars.

In:  the path of a measurement file. Out: `NAME.md`, `NAME-itl.png`, `NAME-crossover.png` and
     `NAME-waterfall.png` beside it, or where `out` says; a picture for which the file has too few
     points is left out, with the reason. No torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_engine import plots
from mini_engine.bench import bars
from mini_engine.bench.bar_points import bench_line
from mini_engine.bench.bench_check import check_bench
from mini_engine.bench.evidence import Measurement, read_measurement, without_paths
from mini_engine.bench.table import markdown
from mini_engine.cli import CheckFailed
from mini_engine.files import write_whole
from mini_engine.records.measured import Origin, ablation, measured_steps, of_one_place, origin_of
from mini_engine.records.rows import NOT_RUN, Row

MEASURES = (
    "quick", "batch", "arms", "against", "rounds", "steps", "processes", "minutes", "blas", "spec",
    "host", "resume",
)  # fmt: skip
Draw = Callable[[Sequence[Row], Path, Origin], None]


def plotted(args: argparse.Namespace) -> dict[str, Any]:
    """What `bench --plot` makes. ValueError for an option that only a measurement has a use for."""
    for name in MEASURES:
        if getattr(args, name):
            raise ValueError(f"--{name}: with --plot nothing is measured, so leave it out")
    return report(args.plot, args.out, _only(args, "shape"), _only(args, "context"))


def report(
    path: Path, out: Path | None = None, shape: str | None = None, context: int | None = None
) -> dict[str, Any]:
    """Read the file and write everything that it yields.

    The pictures show one shape at one context: those given, or the pair with the most batches.
    Raises ValueError for a file that is no benchmark, and where a shape or context has no result.
    """
    measurement = read_measurement(path)
    check_bench(path, measurement)
    return _report(measurement, path, out or path, shape, context)


def check_any_ran(result: dict[str, Any]) -> dict[str, Any]:
    """The result. Raises CheckFailed, with the first reason, where nothing at all was timed."""
    rows = [Row.from_json(row) for row in result["rows"]]
    if rows and not result["others"] and all(row.status == NOT_RUN for row in rows):
        raise CheckFailed(
            f"none of {len(rows)} arms was timed; {rows[0].variant}: {rows[0].reason} "
            f"({result['out']} has the reason of each)"
        )
    return result


def _only(args: argparse.Namespace, name: str) -> Any:
    """The one value of a list option, None where it is not given."""
    values = getattr(args, name) or [None]
    if len(values) > 1:
        raise ValueError(f"--{name} {','.join(map(str, values))}: with --plot, give one")
    return values[0]


def _report(
    measurement: Measurement, path: Path, out: Path, shape: str | None, context: int | None
) -> dict[str, Any]:
    table = out.with_suffix(".md")
    write_whole(table, without_paths(markdown(measurement, bench_line(path))))
    drawn, not_drawn = _pictures(measurement, out, shape, context)
    return {
        "out": str(path),
        "emulated": measurement.emulated,
        "rows": measurement.figures["rows"],
        "others": measurement.figures.get("others", []),
        "bars": [result.as_dict() for result in bars.judged(measurement, bench_line(path))],
        "table": str(table),
        "pictures": [str(picture) for picture in drawn],
        "not_drawn": not_drawn,
    }


def _pictures(
    measurement: Measurement, out: Path, shape: str | None, context: int | None
) -> tuple[list[Path], dict[str, str]]:
    """(paths, file name -> why it is missing). An older picture of that name is removed."""
    origin, drawn, not_drawn = origin_of(vars(measurement)), [], {}
    try:
        steps = of_one_place(measured_steps(measurement.figures["rows"]), shape, context)
    except ValueError as error:
        if shape or context:
            raise
        steps, reason = [], str(error)
    for name, draw in PICTURES.items():
        path = out.with_name(f"{out.stem}-{name}.png")
        try:
            if not steps:
                raise ValueError(reason)
            draw(steps, path, origin)
            drawn.append(path)
        except ValueError as error:
            path.unlink(missing_ok=True)
            not_drawn[path.name] = str(error)
    return drawn, not_drawn


def _waterfall(steps: Sequence[Row], path: Path, origin: Origin) -> None:
    """At the smallest batch, where launches weigh most."""
    batch = min(step.batch for step in steps)
    plots.waterfall(ablation(steps, batch, origin.copy_gb_s), path, origin)


PICTURES: Mapping[str, Draw] = {
    "itl": plots.itl_against_batch,
    "crossover": plots.measured_crossover,
    "waterfall": _waterfall,
}
