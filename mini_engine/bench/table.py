"""A benchmark's rows: completed with figures, joined over processes, printed as a table.

In:  what one process found out about one variant. Out: a `Row` whose figures cover all processes
     in it; of a whole file, Markdown.

    row = with_figures(row, copy_gb_s)              # of one process
    row = joined(row, other, copy_gb_s)             # and of the next one
    text = markdown(measurement)                    # the bars, one table a point, other engines

A gate that failed in one process has failed: the row loses its times, and only a new file gets rid
of it. No torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from mini_engine.bench import others_table
from mini_engine.bench.bars import BENCH, judged
from mini_engine.bench.evidence import Measurement
from mini_engine.bench.intervals import pooled_interval, pooled_ratio
from mini_engine.records.measured import laps_of
from mini_engine.records.other_rows import OtherRow
from mini_engine.records.rows import GATE_FAILED, MEASURED, NOT_RUN, Row, by_point, six

HEADER = (
    *("variant", "ITL µs (95%)", "each process", "wall µs", "× anchor (95%)", "kernels"),
    *("launches", "GB/s", "% of copy", "predicted µs", "off", "gate", "tokens agree"),
)
OVER = "the time of this run was over: go on with --resume"
EMULATED = "**Emulated on a CPU: these times say nothing about any GPU and are no evidence.**"


def with_figures(row: Row, copy_gb_s: float) -> Row:
    """A measured row with the figures that follow from the laps of all its runs."""
    laps = [run.itl_laps_us for run in row.runs]
    itl = pooled_interval(laps)
    gb_s = row.bytes_to_move / itl.median / 1e3
    return replace(
        row,
        itl=itl.rounded(),
        wall=pooled_interval([run.wall_laps_us for run in row.runs]).rounded(),
        times_the_anchor=pooled_ratio([run.anchor_laps_us for run in row.runs], laps).rounded(),
        process_medians_us=tuple(six(statistics.median(one)) for one in laps),
        achieved_gb_s=round(gb_s, 3),
        percent_of_copy=round(100 * gb_s / copy_gb_s, 3),
        predicted_percent_off=round(100 * (row.predicted_us / itl.median - 1), 2),
    )


def joined(old: Row | None, new: Row, copy_gb_s: float) -> Row:
    """The row that the file holds, with what the next process found out about the variant."""
    if old is None or old.status == NOT_RUN:
        return new
    if GATE_FAILED in (old.status, new.status):
        return old if old.status == GATE_FAILED else new
    if new.reason == OVER:
        return old
    if new.status != MEASURED:
        return replace(old, failed_in_another_process=new.reason)
    gate = new.gate if old.gate["passed"] else old.gate  # the worse verdict stays
    no_graph = old.no_graph or new.no_graph  # of any process
    both = replace(old, gate=gate, runs=(*old.runs, *new.runs), no_graph=no_graph)
    return with_figures(both, copy_gb_s)


def wants(row: Row | None, process: int) -> bool:
    """Whether process number `process`, from 1, has to measure this row.

    The first process of a resumed run tries again what could not run.
    """
    if row is None:
        return True
    if row.status == MEASURED:
        return len(row.runs) < process
    return row.status == NOT_RUN and process == 1


# ---------------------------------------------------------------- as Markdown


def markdown(measurement: Measurement, bench: str = BENCH) -> str:
    """The bars and the tables, under a line that names the machine. ValueError for another kind of
    file. Where the gate failed, the table says so in bold; only a baseline's time stands there. So
    it does where a variant that claims a graph ran without one, with the reason below the table.
    `bench`: how the line begins that measures what is missing of a bar."""
    if measurement.kind != "bench":
        raise ValueError(f"a {measurement.kind}, expected a bench: give the file of a benchmark")
    figures = measurement.figures
    rows = [Row.from_json(row) for row in figures["rows"]]
    copy = figures["copy_bandwidth_gb_s"]["median"]
    lines = [
        f"{measurement.gpu}, driver {measurement.driver}, torch {measurement.torch}, "
        f"triton {measurement.triton}, commit {measurement.commit}, {measurement.date}: "
        f"`{measurement.command}`",
        "",
        f"A copy reaches {copy:,.0f} GB/s. Predicted for {figures['spec']} on the host "
        f"{figures['host']}. "
        f"Times: {laps_of(figures, rows)}, in turns with the anchor `{figures['anchor']}`; "
        "intervals cover laps and processes.",
        "",
        _line(("bar", "", "value", "why")),
        _line(["---"] * 4),
    ]
    for result in judged(measurement, bench):
        value = "-" if result.value is None else f"{result.value:,.4g}"
        lines.append(_line((result.bar.says, result.status, value, result.why)))
    lines.append("")
    if measurement.emulated:
        lines = [EMULATED, "", *lines]
    for (shape, batch, context), of_point in by_point(rows).items():
        lines += [f"### {shape}, batch {batch}, context {context:,}", ""]
        lines += [_line(HEADER), _line(["---", *["---:"] * (len(HEADER) - 1)])]
        lines += [*(_line(_cells(row)) for row in of_point), ""]
        told = [f"- {row.variant} {row.told_no_graph}" for row in of_point if row.no_graph]
        lines += [*told, ""] if told else []
    lines += others_table.lines([OtherRow.from_json(row) for row in figures.get("others", ())])
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    if row.status != MEASURED:
        status = f"**{row.status}**" if row.failed_gate else row.status
        return [row.variant, f"{status}: {row.reason}", *[""] * (len(HEADER) - 2)]
    itl, ratio, gate = row.itl, row.times_the_anchor, row.gate
    agree = [path["agreement"] for path in (gate["forced"], gate["produced"]) if path]
    counts = [
        "-" if count is None else f"{count / row.steps_a_call:g}"
        for count in (row.kernels_a_call, row.launches_a_call)
    ]
    return [
        f"{row.variant} **(no graph)**" if row.no_graph else row.variant,
        f"{itl.median:,.1f} ({itl.low:,.1f} to {itl.high:,.1f})",
        " · ".join(f"{us:,.1f}" for us in row.process_medians_us),
        f"{row.wall.median:,.1f}",
        f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        *counts,
        f"{row.achieved_gb_s:,.0f}",
        f"{row.percent_of_copy:.1f}",
        f"{row.predicted_us:,.1f}",
        f"{row.predicted_percent_off:+.0f}%",
        "passed" if gate["passed"] else f"**failed**: {gate['reason']}",
        f"{min(agree):.1%}" if agree else "-",
    ]


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |"
