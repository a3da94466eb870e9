"""The prediction ledger: what you predicted, and what was measured afterwards.

In:  predictions, and later measurements of the same things. Out: a file with a line of JSON for
each, in `labs/mine`, which git ignores; a table; a picture of predicted against measured.

    predict("ITL qwen3-0.6b, batch 1, eager", 2.0, "ms")
    measure("ITL qwen3-0.6b, batch 1, eager", 2.31, "ms", on="NVIDIA H200", command="…")
    entries()[0].percent_off            # -13.4: predicted too short

The file only ever grows: a prediction cannot be changed once its measurement is known. Until then
you may predict again, and both lines stay. Numbers from an emulator are refused, because they
measure nothing. `./lab ledger` prints the table and draws the picture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labs.runner import workspace

if TYPE_CHECKING:
    from rich.table import Table

NEAR = 10.0  # percent: how far off a prediction may be and still be called near


@dataclass(frozen=True)
class Entry:
    """A prediction, with its measurement once there is one. Dates are ISO 8601."""

    what: str
    unit: str
    predicted: float
    date: str
    revised: bool = False  # another prediction came before any measurement
    measured: float | None = None
    low: float | None = None  # the 95% interval of the measurement, if it is known
    high: float | None = None
    measured_date: str = ""
    on: str = ""  # the GPU
    command: str = ""

    @property
    def open(self) -> bool:
        """Is it still waiting for its measurement?"""
        return self.measured is None and not self.revised

    @property
    def percent_off(self) -> float | None:
        """How far the prediction is above (+) or below (-) the measurement, in percent of that."""
        return None if self.measured is None else 100 * (self.predicted / self.measured - 1)


def ledger_file() -> Path:
    """The path of the ledger, which need not exist yet."""
    return workspace.home() / "ledger.jsonl"


def predict(what: str, value: float, unit: str) -> Entry:
    """Write a prediction down, dated now. An open one of the same thing is marked as revised.

    Raises ValueError if the value is not above zero.
    """
    entries()  # a file that cannot be read is not written to
    _check_value("predicted", value)
    _append({"event": "predicted", "what": what, "unit": unit, "value": value})
    return entries()[-1]


def measure(
    what: str,
    value: float,
    unit: str,
    *,
    on: str,
    command: str,
    low: float | None = None,
    high: float | None = None,
) -> Entry:
    """Close the open prediction of `what` with a measurement on a GPU by a command.

    Raises ValueError if there is no open prediction, if the value is not above zero, or if the GPU
    is emulated.
    """
    _check_value("measured", value)
    if "emulat" in on.lower():
        raise ValueError(f"{what}: {on!r} measures nothing, so nothing goes into the ledger")
    found = entries()
    places = [i for i, entry in enumerate(found) if entry.open and entry.what == what]
    if not places:
        known = any(entry.what == what for entry in found)
        why = "measured already: predict again first" if known else "not predicted: say first"
        raise ValueError(f"{what} is {why}")
    _append(
        {"event": "measured", "what": what, "unit": unit, "value": value, "low": low, "high": high,
         "on": on, "command": command}
    )  # fmt: skip
    return entries()[places[0]]


def entries() -> list[Entry]:
    """All predictions in the order they were made. ValueError names a line it cannot read."""
    path, found = ledger_file(), list[Entry]()
    if not path.exists():
        return found
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            _replay(found, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}:{number} is no line of a ledger ({error}): mend it, or move the file away "
                "to begin anew"
            ) from error
    return found


# ---------------------------------------------------------------- shown


def table(found: Sequence[Entry]) -> Table:
    """A table for the terminal, without revised predictions."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("what", "predicted", "measured (95%)", "off", "on"):
        words = name in ("what", "on")  # on a narrow screen these wrap, and numbers do not
        shown.add_column(name, justify="left" if name == "what" else "right", no_wrap=not words)
    for entry in found:
        if entry.revised:
            continue
        off, measured = entry.percent_off, "not yet measured"
        if entry.measured is not None:
            measured = f"{entry.measured:.4g} {entry.unit}"
        if entry.low is not None and entry.high is not None:
            measured += f" ({entry.low:.4g} to {entry.high:.4g})"
        shown.add_row(
            entry.what,
            f"{entry.predicted:.4g} {entry.unit}",
            measured,
            "" if off is None else f"{off:+.1f}%",
            entry.on,
        )
    return shown


def plot(found: Sequence[Entry], path: Path, unit: str = "ms") -> None:
    """Draw predicted against measured for this unit. Raises ValueError if nothing is measured.

    A prediction on the diagonal was right; in the band it was within NEAR percent.
    """
    from matplotlib.ticker import FuncFormatter

    from mini_engine.plots import hue
    from mini_engine.plots.canvas import canvas

    pairs = [(e, e.measured) for e in found if e.measured is not None and e.unit == unit]
    if not pairs:
        raise ValueError(f"nothing is measured in {unit} yet: there is nothing to draw")
    near = sum(abs(e.percent_off or 0) <= NEAR for e, _ in pairs)
    worst = max((e for e, _ in pairs), key=lambda e: abs(math.log(e.predicted / (e.measured or 1))))
    title = f"{near} of {len(pairs)} predictions were within {NEAR:.0f}%"
    gpus = ", ".join(sorted({e.on for e, _ in pairs}))
    caption = (
        f"Measured on {gpus}, bars: 95%. Furthest off: {worst.what}, {worst.percent_off:+.0f}%. "
        f"Grey: within {NEAR:.0f}%."
    )
    ends = [value for e, measured in pairs for value in (e.predicted, measured)]
    low, high = min(ends) / 1.4, max(ends) * 1.4
    with canvas(path, (13, 8.5), title=title, caption=caption) as figure:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        share = NEAR / 100
        axes.fill_between([low, high], [low * (1 - share), high * (1 - share)],
                          [low * (1 + share), high * (1 + share)], color=hue.PANEL)  # fmt: skip
        axes.plot([low, high], [low, high], color=hue.INK, linewidth=1.2)
        for i, (entry, measured) in enumerate(pairs, start=1):
            bars = [[measured - (entry.low or measured)], [(entry.high or measured) - measured]]
            axes.errorbar(measured, entry.predicted, xerr=bars, fmt="o", color=hue.FULL,
                          markersize=9, capsize=4)  # fmt: skip
            axes.annotate(str(i), (measured, entry.predicted), (8, 6), textcoords="offset points")
        names = "\n".join(f"{i}  {entry.what}" for i, (entry, _) in enumerate(pairs, start=1))
        axes.text(1.04, 1, names, transform=axes.transAxes, va="top", fontsize=13, linespacing=1.5)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(
                FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
            )
        axes.set_xlabel(f"measured ({unit})")
        axes.set_ylabel(f"predicted ({unit})")


# ---------------------------------------------------------------- parts


def _replay(found: list[Entry], event: dict[str, Any]) -> None:
    """Apply one line of the file to the entries so far."""
    what, unit, value, date = event["what"], event["unit"], float(event["value"]), event["date"]
    places = [i for i, entry in enumerate(found) if entry.open and entry.what == what]
    if event["event"] == "predicted":
        for i in places:
            found[i] = replace(found[i], revised=True)
        found.append(Entry(what, unit, value, date))
    elif event["event"] == "measured":
        if not places:
            raise ValueError(f"a measurement of {what!r} without a prediction")
        found[places[0]] = replace(
            found[places[0]], measured=value, low=event["low"], high=event["high"],
            measured_date=date, on=event["on"], command=event["command"],
        )  # fmt: skip
    else:
        raise ValueError(f"event {event['event']!r}")


def _append(event: dict[str, Any]) -> None:
    path = ledger_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"date": workspace.now(), **event}, ensure_ascii=False, allow_nan=False)
    with path.open("a", encoding="utf-8") as out:
        out.write(line + "\n")


def _check_value(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value}: expected a number above zero")
