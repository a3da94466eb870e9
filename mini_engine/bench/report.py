"""The end of a run on a GPU, in forty lines at most: what one would look at first.

In:  the folder of a run. Out: lines, from the files that the stages left, as far as they got:
     machine, stages, arms, kernels one by one, tests, bars. No torch. A rehearsal tells no GB/s and
     no percentages: they would be of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_engine.bench.bars import judged
from mini_engine.bench.evidence import Measurement, read_measurement
from mini_engine.bench.rows import MEASURED, Row, by_point
from mini_engine.bench.stages import BENCH, CHAIN, PREFILL, Outcome

MOST_LINES, WIDTH = 40, 118
EMULATED = "EMULATED ON A CPU: a rehearsal. No time below says anything about a GPU."


def report(folder: Path, outcomes: Iterable[Outcome]) -> list[str]:
    """At most MOST_LINES lines of at most WIDTH characters."""
    files = {name: read_measurement(folder / name) if (folder / name).exists() else None
             for name in ("environment.json", BENCH, CHAIN, PREFILL)}  # fmt: skip
    lines = [
        *_machine(files["environment.json"]),
        *_stages(list(outcomes)),
        *_arms(files[BENCH]),
        *_chain(files[CHAIN]),
        *_prompts(files[PREFILL]),
        *_tests(folder / "pytest.txt"),
        *_bars(files[BENCH]),
    ]
    return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines][:MOST_LINES]


def _machine(found: Measurement | None) -> list[str]:
    if found is None:
        return ["no environment.json: the run ended before it knew its machine"]
    if found.emulated:
        return [EMULATED]
    null_us = ", ".join(
        f"{name.removesuffix('_us')} {figure['median']:.2f} µs"
        for name, figure in found.figures["null_kernel"].items()
        if figure["median"] is not None
    )
    return [
        f"{found.gpu}, driver {found.driver}, torch {found.torch}, triton {found.triton}, "
        f"commit {found.commit}, {found.date}",
        f"a copy: {found.figures['copy_bandwidth_gb_s']['median']:,.0f} GB/s; a kernel that does "
        f"nothing: {null_us}",
    ]


def _stages(outcomes: Sequence[Outcome]) -> list[str]:
    told = ", ".join(f"{one.stage} {one.status} ({one.took_s:.0f} s)" for one in outcomes)
    return [f"stages: {told}", *(f"  {one.stage}: {one.note}" for one in outcomes if one.note)][:6]


def _arms(found: Measurement | None) -> list[str]:
    """A line for each point: the arms in the order in which they were measured."""
    rows = [Row.from_json(row) for row in found.figures["rows"]] if found else []
    return [
        f"{shape}, batch {batch}, context {context}, µs a step: " + " · ".join(map(_arm, at_point))
        for (shape, batch, context), at_point in by_point(rows).items()
    ]


def _arm(row: Row) -> str:
    if row.status != MEASURED:
        return f"{row.variant} {row.status}"
    return f"{row.variant} {row.itl_us:,.0f}{' (no graph)' if row.no_graph else ''}"


def _chain(found: Measurement | None) -> list[str]:
    links = found.figures["links"] if found else []
    lines = [
        f"  {link['kernel']:24} {link['left_out']['median']:8.2f} "
        f"({link['left_out']['low']:.2f} to {link['left_out']['high']:.2f})"
        + (f" {link['copy_us']:8.2f}" if found and not found.emulated else "")
        for link in links
    ]
    head = "each kernel: µs that the step loses without a launch of it; its bytes at a copy's speed"
    return [f"{links[0]['shape']}, {head}", *lines] if links else []


def _prompts(found: Measurement | None) -> list[str]:
    """µs of the attention of a layer; on a GPU also how fast that is."""

    def told(prompt: Mapping[str, Any], who: str) -> str:
        rate = f" ({prompt[f'{who}_tflops']:,.0f} TFLOP/s)"
        return f"{prompt[f'{who}_us']['median']:,.1f} µs{'' if found and found.emulated else rate}"

    return [
        f"{one['shape']}, attention to {one['tokens']} tokens of a prompt: ours "
        f"{told(one, 'ours')}, SDPA {told(one, 'sdpa')}"
        for one in (found.figures["prompts"] if found else [])
    ]


def _tests(log: Path) -> list[str]:
    """What pytest -vv printed, test by test, over all attempts; the last word counts."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    words = dict(re.findall(r"^(\S+::\S.*?) (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.MULTILINE))
    counts = {word: list(words.values()).count(word) for word in ("PASSED", "FAILED", "ERROR")}
    wrong = [f"  {name}" for name, word in words.items() if word in ("FAILED", "ERROR")]
    told = ", ".join(f"{count} {word.lower()}" for word, count in counts.items())
    return [f"tests: {told}", *wrong[:4]] if words else []


def _bars(found: Measurement | None) -> list[str]:
    if found is None or found.emulated:
        return []
    return [f"{one.status:>15}: {one.bar.compared} ({one.why})" for one in judged(found)]
