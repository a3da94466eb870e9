"""The end of a run on a GPU, in forty lines at most: what one would look at first.

In:  the folder of a run. Out: lines, from the files that the stages left, as far as they got:
     stages, machine, arms, what the machine charges, tests, bars. No torch. A rehearsal tells no
     rates and no shares: they would be of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mini_engine.bench.bars import judged
from mini_engine.bench.evidence import read_measurement
from mini_engine.bench.rows import MEASURED, Row, by_point
from mini_engine.bench.stages import BENCH, CALIBRATION, TESTS, Outcome

MOST_LINES, WIDTH = 40, 118
EMULATED = "EMULATED ON A CPU: a rehearsal. No time below says anything about a GPU."


def report(folder: Path, outcomes: Iterable[Outcome]) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters."""
    lines = list(_lines(folder, list(outcomes)))[:MOST_LINES]
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _lines(folder: Path, outcomes: list[Outcome]) -> Iterator[str]:
    yield "stages: " + ", ".join(f"{o.stage} {o.status} ({o.took_s:.0f} s)" for o in outcomes)
    yield from [f"  {one.stage}: {one.note}" for one in outcomes if one.note][:5]
    found = read_measurement(folder / BENCH) if (folder / BENCH).exists() else None
    if found:
        machine = f"{found.gpu}, driver {found.driver}, torch {found.torch}, triton {found.triton}"
        yield EMULATED if found.emulated else f"{machine}, commit {found.commit}, {found.date}"
        for point, rows in by_point(map(Row.from_json, found.figures["rows"])).items():
            yield f"{point}, µs a step: {' · '.join(map(_arm, rows))}"
    if (folder / CALIBRATION).exists():
        charged = read_measurement(folder / CALIBRATION).figures
        medians = {name: one["median"] for name, one in charged.items() if one.get("median")}
        told = [f"{name} {us:.3g}" for name, us in medians.items() if name.endswith("_us")]
        yield f"the machine charges: {', '.join(told)}"
    yield from _tests(folder / TESTS)
    if found and not found.emulated:
        yield from map(str, judged(found))


def _arm(row: Row) -> str:
    if row.status != MEASURED:
        return f"{row.variant} {row.status}"
    return f"{row.variant} {row.itl_us:,.0f}{' (no graph)' if row.no_graph else ''}"


def _tests(log: Path) -> Iterator[str]:
    """What pytest -vv printed, test by test, over all attempts; the last word counts."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    words = dict(re.findall(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE))
    if words:
        counts = {word: list(words.values()).count(word) for word in ("PASSED", "FAILED", "ERROR")}
        yield "tests: " + ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    yield from [f"  {name}" for name, word in words.items() if word in ("FAILED", "ERROR")][:4]
