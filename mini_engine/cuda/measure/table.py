"""The benchmark's rows as a Markdown table, made from the measurement file alone.

In:  a `Measurement` of kind "bench". Out: Markdown: the bars, then one table a shape, batch and
context. A variant that failed the gate is there, in bold, and its time is not: what a wrong program
takes is no result. (A baseline's time stands, since it is not ours to mend, and so does the word.)
No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from mini_engine.cuda.measure.bars import judged
from mini_engine.cuda.measure.evidence import Measurement
from mini_engine.records.measured import failed_gate, laps_of

HEADER = (
    *(
        "variant",
        "ITL µs (95%)",
        "each process",
        "wall µs",
        "× anchor (95%)",
        "kernels",
        "launches",
    ),
    *("GB/s", "% of copy", "predicted µs", "off", "gate", "tokens agree"),
)
EMULATED = "**Emulated on a CPU: these times say nothing about any GPU and are no evidence.**"


def markdown(measurement: Measurement) -> str:
    """The tables, under a line that says of what. Raises ValueError for another kind of file."""
    if measurement.kind != "bench":
        raise ValueError(f"a {measurement.kind}, expected a bench: give the file of a benchmark")
    figures = measurement.figures
    copy = figures["copy_bandwidth_gb_s"]["median"]
    lines = [
        f"{measurement.gpu}, driver {measurement.driver}, torch {measurement.torch}, "
        f"triton {measurement.triton}, commit {measurement.commit}, {measurement.date}: "
        f"`{measurement.command}`",
        "",
        f"A copy reaches {copy:,.0f} GB/s. Predicted with the spec of {figures['spec']}. "
        f"Times: {laps_of(figures)}, in turns with the anchor `{figures['anchor']}`; intervals "
        "cover laps and processes.",
        "",
        _line(("bar", "", "value", "why")),
        _line(["---"] * 4),
    ]
    lines += [
        _line((result.bar.says, result.status, _value(result.value), result.why))
        for result in judged(measurement)
    ]
    lines.append("")
    if measurement.emulated:
        lines = [EMULATED, "", *lines]
    for (shape, batch, context), rows in groupby(ordered(figures["rows"]), key=point_of):
        lines += [f"### {shape}, batch {batch}, context {context:,}", ""]
        lines += [_line(HEADER), _line(["---", *["---:"] * (len(HEADER) - 1)])]
        lines += [_line(cells(row)) for row in rows]
        lines.append("")
    return "\n".join(lines)


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Points as they came, each with all of its variants as they came."""
    points = list(dict.fromkeys(point_of(row) for row in rows))
    return sorted(rows, key=lambda row: points.index(point_of(row)))


def cells(row: Mapping[str, Any]) -> list[str]:
    """One variant."""
    if row["status"] != "measured":
        word = f"**{row['status']}**" if failed_gate(row) else row["status"]
        return [row["variant"], f"{word}: {row['reason']}", *[""] * (len(HEADER) - 2)]
    itl, ratio, gate = row["itl_us"], row["times_the_anchor"], row["gate"]
    agree = [path["agreement"] for path in (gate["forced"], gate["produced"]) if path]
    return [
        row["variant"],
        f"{itl['median']:,.1f} ({itl['low']:,.1f} to {itl['high']:,.1f})",
        " · ".join(f"{us:,.1f}" for us in row["process_medians_us"]),
        f"{row['wall_us']['median']:,.1f}",
        f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
        _count(row["kernels_a_call"], row["steps_a_call"]),
        _count(row["launches_a_call"], row["steps_a_call"]),
        f"{row['achieved_gb_s']:,.0f}",
        f"{row['percent_of_copy']:.1f}",
        f"{row['predicted_us']:,.1f}",
        f"{row['predicted_percent_off']:+.0f}%",
        "passed" if gate["passed"] else f"**failed**: {gate['reason']}",
        f"{min(agree):.1%}" if agree else "-",
    ]


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _count(number: int | None, steps: int) -> str:
    """For one step."""
    return "-" if number is None else f"{number / steps:g}"


def point_of(row: Mapping[str, Any]) -> tuple[str, int, int]:
    """What a row is of: shape, batch, context."""
    return row["shape"], row["batch"], row["context"]


def _line(columns: Sequence[str]) -> str:
    return "| " + " | ".join(column.replace("|", "\\|") for column in columns) + " |"
