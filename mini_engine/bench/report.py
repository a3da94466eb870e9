"""The end of a run on a GPU, in forty lines at most: what one would look at first.

In:  the folder of a run. Out: lines, from the files that the stages left, as far as they got:
     machine, stages, arms, kernels one by one, prompts, tests, bars. No torch. A rehearsal tells no
     GB/s and no percentages: they would be of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mini_engine.bench.bars import judged
from mini_engine.bench.evidence import Measurement, read_measurement
from mini_engine.bench.rows import MEASURED, Row, by_point
from mini_engine.bench.stages import BENCH, CHAIN, ENVIRONMENT, PREFILL, Outcome

MOST_LINES, WIDTH = 40, 118
EMULATED = "EMULATED ON A CPU: a rehearsal. No time below says anything about a GPU."


def report(folder: Path, outcomes: Iterable[Outcome]) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters."""
    lines = list(_lines(folder, list(outcomes)))[:MOST_LINES]
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines]


def _lines(folder: Path, outcomes: list[Outcome]) -> Iterator[str]:
    parts = {ENVIRONMENT: _machine, BENCH: _arms, CHAIN: _chain, PREFILL: _prompts}
    for name, told in parts.items():
        if (folder / name).exists():
            yield from told(read_measurement(folder / name))
        if name == ENVIRONMENT:
            yield "stages: " + ", ".join(
                f"{o.stage} {o.status} ({o.took_s:.0f} s)" for o in outcomes
            )
            yield from [f"  {one.stage}: {one.note}" for one in outcomes if one.note][:5]
    yield from _tests(folder / "pytest.txt")
    if (folder / BENCH).exists():
        found = read_measurement(folder / BENCH)
        yield from map(str, judged(found) if not found.emulated else ())


def _machine(found: Measurement) -> Iterator[str]:
    if found.emulated:
        yield EMULATED
        return
    nothing = ", ".join(
        f"{name.removesuffix('_us')} {figure['median']:.2f} µs"
        for name, figure in found.figures["null_kernel"].items()
        if figure["median"] is not None
    )
    yield (
        f"{found.gpu}, driver {found.driver}, torch {found.torch}, triton {found.triton}, "
        f"commit {found.commit}, {found.date}"
    )
    copy = found.figures["copy_bandwidth_gb_s"]["median"]
    yield f"a copy: {copy:,.0f} GB/s; a kernel that does nothing: {nothing}"


def _arms(found: Measurement) -> Iterator[str]:
    """A line for each point: the arms in the order in which they were measured."""
    for point, rows in by_point(map(Row.from_json, found.figures["rows"])).items():
        arms = [
            f"{row.variant} {row.itl_us:,.0f}{' (no graph)' if row.no_graph else ''}"
            if row.status == MEASURED
            else f"{row.variant} {row.status}"
            for row in rows
        ]
        yield f"{point}, µs a step: {' · '.join(arms)}"


def _chain(found: Measurement) -> Iterator[str]:
    links = found.figures["links"]
    for link in links[:1]:
        yield (
            f"{link['shape']}, each kernel: µs that the step loses without a launch of it; its "
            "bytes at a copy's speed"
        )
    for link in links:
        lost = link["left_out"]
        told = f"{lost['median']:8.2f} ({lost['low']:.2f} to {lost['high']:.2f})"
        yield f"  {link['kernel']:24} {told}" + f" {link['copy_us']:8.2f}" * (not found.emulated)


def _prompts(found: Measurement) -> Iterator[str]:
    """µs of the attention of a layer; on a GPU also how fast that is."""
    for one in found.figures["prompts"]:
        ours, sdpa = (
            f"{one[f'{who}_us']['median']:,.1f} µs"
            + f" ({one[f'{who}_tflops']:,.0f} TFLOP/s)" * (not found.emulated)
            for who in ("ours", "sdpa")
        )
        yield (
            f"{one['shape']}, attention to {one['tokens']} tokens of a prompt: ours {ours}, "
            f"SDPA {sdpa}"
        )


def _tests(log: Path) -> Iterator[str]:
    """What pytest -vv printed, test by test, over all attempts; the last word counts."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    words = dict(re.findall(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE))
    if words:
        counts = {word: list(words.values()).count(word) for word in ("PASSED", "FAILED", "ERROR")}
        yield "tests: " + ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    yield from [f"  {name}" for name, word in words.items() if word in ("FAILED", "ERROR")][:4]
