"""Whether a benchmark's file is what this version writes: asked before it is drawn or gone on with.

In:  a measurement and its path. Out: nothing, or a ValueError that names file, row and field.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from mini_engine.bench.evidence import Measurement
from mini_engine.files import in_short
from mini_engine.records.other_rows import OtherRow
from mini_engine.records.rows import GATE_FAILED, MEASURED, NOT_RUN, Interval, Row

AGAIN = "another version wrote it, or somebody has edited it: measure again"


def check_bench(path: Path, measurement: Measurement) -> None:
    """Raises ValueError for a file of another kind, and for one whose figures or rows lack
    something or have it in another form."""
    if measurement.kind != "bench":
        raise ValueError(f"{path}: a {measurement.kind}, expected a bench: give a benchmark's file")
    figures = measurement.figures
    try:
        _number(figures["copy_bandwidth_gb_s"]["median"], "copy_bandwidth_gb_s", above=0)
        for name in ("rounds", "steps"):
            _whole(figures[name], name)
        for name in ("spec", "host", "anchor"):
            _word(figures[name], name)
        rows = _list(figures["rows"], "rows")
        others = _list(figures.get("others", []), "others")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {_told(error)}: {AGAIN}") from None
    for told, check, listed in (("", _check_row, rows), ("others: ", _check_other, others)):
        for number, row in enumerate(listed, 1):
            try:
                check(row)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"{path}: {told}row {number}: {_told(error)}: {AGAIN}") from None


def _check_row(data: dict[str, Any]) -> None:
    row = Row.from_json(data)
    _check_fields(row, (MEASURED, NOT_RUN, GATE_FAILED))
    if row.status == MEASURED:
        _ = [row.gate[name] for name in ("passed", "forced", "produced")]


def _check_other(data: dict[str, Any]) -> None:
    _check_fields(OtherRow.from_json(data), (MEASURED, NOT_RUN))


def _check_fields(row: Row | OtherRow, statuses: tuple[str, ...]) -> None:
    for one in fields(row):
        value = getattr(row, one.name)
        if one.type == "str":
            _word(value, one.name)
        elif one.type == "Interval":
            _interval(value, one.name)
        elif one.type == "float":
            _number(value, one.name)
    _whole(row.batch, "batch")
    _whole(row.context, "context")
    if row.status not in statuses:
        raise ValueError(f"status is {in_short(row.status)}")
    if row.status == MEASURED:
        _number(row.itl.median, "itl_us", above=0)
        if not row.runs:
            raise ValueError("runs is empty, and it was measured")


def _interval(value: Interval, name: str) -> None:
    for end in (value.median, value.low, value.high):
        _number(end, name)


def _number(value: object, name: str, above: float = -math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < 1e300:
        raise ValueError(f"{name} is {in_short(value)}, expected a number")


def _whole(value: object, name: str) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {in_short(value)}, expected a whole number from 1 on")


def _word(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {in_short(value)}, expected words")


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {in_short(value)}, expected a list")
    return value


def _told(error: Exception) -> str:
    return f"no {error} in it" if isinstance(error, KeyError) else str(error)
