"""The end of a run on a GPU, in forty lines at most: what one would look at first.

In:  the folder of a run. Out: lines, from the files that the stages left, as far as they got:
     machine, stages, ways to run a step, kernels one by one, tests, bars. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_engine.bench.bars import judged
from mini_engine.bench.evidence import Measurement, read_measurement
from mini_engine.bench.first_run import ARMS, BENCH, CHAIN, COMPILED, PREFILL, test_results
from mini_engine.bench.stages import Outcome
from mini_engine.records.rows import MEASURED, Row, by_point

MOST_LINES, WIDTH = 40, 118
EMULATED = "EMULATED ON A CPU: a rehearsal. No time below says anything about a GPU."


def summary(folder: Path, outcomes: Sequence[Outcome]) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters."""
    lines = [
        *_machine(_read(folder / "environment.json")),
        *_stages(outcomes),
        *_arms(_read(folder / BENCH)),
        *_chain(_read(folder / CHAIN)),
        *_prefill(_read(folder / PREFILL)),
        *_tests(folder),
        *_bars(_read(folder / BENCH)),
        f"files: {folder}; again: `python -m mini_engine gpu report -o {folder}`",
    ]
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines][:MOST_LINES]


def _read(path: Path) -> Measurement | None:
    return read_measurement(path) if path.exists() else None


def _machine(found: Measurement | None) -> list[str]:
    if found is None:
        return ["no environment.json: the run ended before it knew its machine"]
    null = found.figures["null_kernel"]
    copy = found.figures["copy_bandwidth_gb_s"]["median"]
    null_us = ", ".join(
        f"{name.removesuffix('_us')} "
        + ("-" if figure["median"] is None else f"{figure['median']:.2f} µs")
        for name, figure in null.items()
    )
    first = [EMULATED] if found.emulated else []
    return [
        *first,
        f"{found.gpu}, driver {found.driver}, torch {found.torch}, triton {found.triton}, "
        f"commit {found.commit}, {found.date}",
        f"a copy: {copy:,.0f} GB/s; a kernel that does nothing: {null_us}",
    ]


def _stages(outcomes: Sequence[Outcome]) -> list[str]:
    told = [f"{one.stage} {one.status} ({one.seconds:.0f} s)" for one in outcomes]
    troubles = [f"  {one.stage} {one.status}: {one.note}" for one in outcomes if one.note]
    return [f"stages: {', '.join(told)}", *troubles[:4]]


def _arms(found: Measurement | None) -> list[str]:
    """A line or two for each model at batch 1: the ways in the order of first_run."""
    if found is None:
        return []
    lines = []
    rows = [Row.from_json(row) for row in found.figures["rows"]]
    for (shape, batch, context), at_point in by_point(rows).items():
        by_name = {row.variant: row for row in at_point}
        told = [_told(by_name[name]) for name in (*ARMS, *COMPILED) if name in by_name]
        lines.append(f"{shape}, batch {batch}, context {context}, µs a step: {' · '.join(told)}")
    return lines[:9]


def _told(row: Row) -> str:
    if row.status != MEASURED:
        return f"{row.variant} {row.status}"
    return f"{row.variant} {row.itl_us:,.0f}{' (no graph)' if row.no_graph else ''}"


def _chain(found: Measurement | None) -> list[str]:
    """The kernels of the first shape."""
    if found is None or not found.figures["links"]:
        return []
    links: list[Mapping[str, Any]] = found.figures["links"]
    shape = links[0]["shape"]
    lines = [f"{shape}, each kernel: alone µs, GB/s, µs beyond its bytes, what the step loses"]
    for link in links:
        if link["shape"] == shape:
            lines.append(
                f"  {link['kernel']:24} {link['alone']['median']:8.2f} {link['gb_s']:8,.0f} "
                f"{link['latency_us']:8.2f} {link['left_out']['median']:8.2f}"
            )
    return lines


def _prefill(found: Measurement | None) -> list[str]:
    """Attention of the steps with prompts in them, two a line."""
    rows = found.figures["rows"] if found else []
    told = [f"{r['case']} {prompt_told(r)}" for r in rows if r["what"] == "attention"]
    return [f"attention of {'; '.join(told[i : i + 2])}" for i in range(0, len(told), 2)]


def prompt_told(row: Mapping[str, Any]) -> str:
    """Our time, the floor, and how many times as long SDPA takes."""
    ours, floor, times = row["ours_us"]["median"], row["floor_us"], row["times"]["median"]
    return f"{ours:,.0f} µs (floor {floor:,.0f}, SDPA × {times:.2f})"


def _tests(folder: Path) -> list[str]:
    """As far as they came."""
    words = test_results(folder / "pytest.txt")
    if not words:
        return []
    counts = {word: list(words.values()).count(word) for word in ("PASSED", "FAILED", "ERROR")}
    told = ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    failed = [f"  {name}" for name, word in words.items() if word in ("FAILED", "ERROR")]
    return [f"tests: {told}", *failed[:4]]


def _bars(found: Measurement | None) -> list[str]:
    if found is None:
        return []
    return [f"{one.status:>15}: {one.bar.says} ({one.why})" for one in judged(found)]
