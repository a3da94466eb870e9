"""The rows of other engines: completed with figures, joined over processes, printed as a table.

In:  what one process found out about one engine. Out: an `OtherRow` whose figures cover all
     processes in it; of a file, the lines of a Markdown table a point. No torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from mini_engine.bench.intervals import pooled_interval, pooled_ratio
from mini_engine.records.other_rows import OtherRow
from mini_engine.records.rows import MEASURED, NOTHING, Point, six

HEADER = (
    *("engine", "version", "ITL µs at the caller (95%)", "p99 µs", "× launch-bound (95%)"),
    *("tokens a piece", "same tokens", "start s"),
)
HOW = (
    "Engines as their callers see them: the time between a request's tokens, each taken when the "
    "interface had handed it over, while all requests decode. It holds scheduling, read-back and "
    "the way between processes, which no step of a variant above does: compare these rows with one "
    "another."
)


def with_figures(row: OtherRow) -> OtherRow:
    """A measured row with the figures that follow from the laps of all its runs."""
    return replace(
        row,
        itl=pooled_interval([run.itl_laps_us for run in row.runs]).rounded(),
        p99_us=six(statistics.fmean(run.p99_us for run in row.runs)),
    )


def beside(row: OtherRow, ours: OtherRow | None) -> OtherRow:
    """A row with its ratio to this engine's, from the runs of the same numbers."""
    if row.status != MEASURED or ours is None:
        return row
    laps = {run.process: run.itl_laps_us for run in ours.runs}
    pairs = [(laps[run.process], run.itl_laps_us) for run in row.runs if run.process in laps]
    ratio = pooled_ratio([a for a, _ in pairs], [b for _, b in pairs]) if pairs else NOTHING
    return replace(row, times_ours=ratio.rounded())


def joined(old: OtherRow | None, new: OtherRow) -> OtherRow:
    """The row that the file holds, with what the next process found out about the engine.

    What was measured stays where a later process could not run. Another version begins anew: its
    times are not those of the first.
    """
    if old is None or old.status != MEASURED:
        return new
    if new.status != MEASURED:
        return old
    if old.version != new.version:
        return new
    again = {run.process for run in new.runs}
    runs = [*(run for run in old.runs if run.process not in again), *new.runs]
    return with_figures(replace(old, runs=tuple(sorted(runs, key=lambda run: run.process))))


def wants(row: OtherRow | None, process: int) -> bool:
    """Whether round number `process` of processes, from 1, has to measure this row."""
    if row is None or row.status != MEASURED:
        return row is None or process == 1
    return all(run.process != process for run in row.runs)


def lines(rows: Sequence[OtherRow]) -> list[str]:
    """Markdown: one table a point, [] for no rows."""
    if not rows:
        return []
    of_point: dict[Point, list[OtherRow]] = {}
    for row in rows:
        of_point.setdefault(row.point, []).append(row)
    found = ["## Against other engines", "", HOW, ""]
    for (shape, batch, context), those in of_point.items():
        found += [f"### {shape}, batch {batch}, context {context:,}", ""]
        found += [_line(HEADER), _line(("---", "---", *["---:"] * (len(HEADER) - 2)))]
        found += [*(_line(cells(row)) for row in those), ""]
    return found


def cells(row: OtherRow) -> list[str]:
    """A row's columns, as HEADER has them."""
    if row.status != MEASURED:
        return [row.engine, f"{row.status}: {row.reason}", *[""] * (len(HEADER) - 2)]
    itl, ratio = row.itl, row.times_ours
    start = statistics.fmean(run.start_s for run in row.runs)
    times = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio.samples else "-"
    return [
        row.engine,
        row.version,
        f"{itl.median:,.1f} ({itl.low:,.1f} to {itl.high:,.1f})",
        f"{row.p99_us:,.1f}",
        times,
        f"{row.tokens_a_piece:.2f}",
        f"{row.same_tokens:.0%} of {row.compared}" if row.compared else "-",
        f"{start:,.0f}",
    ]


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |"
