"""Engines against this one: each in a process of its own, one after the other.

In:  a `Job`, engines, and the Python that has them. Out: an `EngineRow` for each engine, yielded as
     soon as it is known.

This engine always comes first: its tokens are what the others' are compared with, and its times
what theirs are divided by. Not a `Row`: there the device's clock times decode steps that follow one
another without a caller; here the caller's clock times tokens that it can use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mini_engine.bench.intervals import median_interval
from mini_engine.bench.others.child import OURS, Job
from mini_engine.bench.rows import MEASURED, NOT_RUN, NOTHING, Interval, six

ROOT = Path(__file__).parents[3]
COMPARED = 16  # first tokens of a request
BUDGET = 2048  # tokens of prompts in a step: the smallest of these engines
MEMORY = 0.8  # of the GPU: the process that asks holds some of it, too
SECONDS = 900.0  # for one process: load, compile, capture, warm up, measure


@dataclass(frozen=True)
class EngineRow:
    """An engine at a point. What follows `reason` is filled in for a measured row only."""

    shape: str
    batch: int
    context: int
    engine: str
    status: str  # MEASURED or NOT_RUN
    reason: str = ""
    version: str = ""
    start_s: float = 0.0  # load, compile, capture
    itl: Interval = NOTHING  # µs between tokens, over the laps
    p99_us: float = 0.0  # over the gaps of all laps
    times_ours: float = 0.0  # its ITL over this engine's; 0: ours is not known
    tokens_a_piece: float = 0.0  # 1.0: each came alone
    same_tokens: float = 0.0  # share of the first tokens up to which it wrote ours


def job_for(model: str, batch: int, context: int, steps: int, laps: int, vocab: int) -> Job:
    """Enough new tokens of each request that the first one still decodes for so many steps when
    the last one's prompt is done."""
    tokens = 1 + steps + batch * context // BUDGET
    return Job(OURS, model, batch, context, tokens, laps, vocab, MEMORY)


def compare(
    shape: str, job: Job, engines: Sequence[str], python: str = sys.executable
) -> Iterator[EngineRow]:
    """A row for this engine, and then for each of the others, which `python` runs."""
    ours: list[list[int]] = []
    ours_us = 0.0
    for engine in dict.fromkeys([OURS, *engines]):
        row = EngineRow(shape, job.batch, job.context, engine, NOT_RUN)
        found = ask(replace(job, engine=engine), sys.executable if engine == OURS else python)
        if reason := found.get("not_run"):
            yield replace(row, reason=reason)
            continue
        laps = [gaps for gaps, _ in found["laps"]]
        itl = median_interval([statistics.median(gaps) for gaps in laps]).rounded()
        if engine == OURS:
            ours, ours_us = found["tokens"], itl.median
        yield replace(
            row,
            status=MEASURED,
            version=found["version"],
            start_s=six(found["start_s"]),
            itl=itl,
            p99_us=six(float(np.percentile(list(chain(*laps)), 99, method="inverted_cdf"))),
            times_ours=six(itl.median / ours_us) if ours_us else 0.0,
            tokens_a_piece=six(statistics.fmean(pieces for _, pieces in found["laps"])),
            same_tokens=six(leading(ours, found["tokens"])),
        )


def leading(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of the first COMPARED tokens of each request up to which both wrote the same. After the
    first difference two right engines write different texts, so what follows is not compared."""
    same = compared = 0
    for one, other in zip(ours, theirs, strict=False):
        equal = [a == b for a, b in zip(one, other, strict=False)][:COMPARED]
        same += equal.index(False) if False in equal else len(equal)
        compared += len(equal)
    return same / compared if compared else 0.0


def ask(job: Job, python: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Run one engine in its process. What went wrong is the answer's "not_run", with the last line
    that the engine printed, since its own processes tell the cause there alone."""
    told = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # it finds this package, and what is installed beside its Python (vLLM compiles with `ninja`)
    for name, first in (("PYTHONPATH", ROOT), ("PATH", Path(python).parent)):
        told[name] = os.pathsep.join(filter(None, [str(first), os.environ.get(name, "")]))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as printed:
        answer = Path(folder) / "answer.json"
        words = [python, "-m", "mini_engine.bench.others.child", str(answer)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=printed,
                                   stderr=subprocess.STDOUT, process_group=0, env=told)  # fmt: skip
        why = f"it gave no answer in {seconds:g} s"
        try:
            process.communicate(json.dumps(asdict(job)).encode(), timeout=seconds)
            why = f"its process ended with code {process.returncode}"
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started, which holds memory
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = json.loads(answer.read_text("utf-8")) if answer.exists() else {"not_run": why}
        printed.seek(0)
        lines = printed.read().strip().splitlines()
    if "not_run" in found and lines:
        found["not_run"] += f": {lines[-1].strip()[:200]}"
    return dict(found)
