"""Engines against this one: each in a process of its own, one after the other.

In:  a checkpoint folder, a point, names of engines. Out: an `EngineRow` for each engine, yielded as
     soon as it is known.

    for row in compare(work, ["vllm", "vllm-eager"]):
        print(row.engine, row.status)

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mini_engine.bench.intervals import median_interval
from mini_engine.bench.others import EAGER, OURS, kind_of
from mini_engine.bench.others.protocol import Job, leading
from mini_engine.bench.rows import MEASURED, NOT_RUN, NOTHING, Interval, Point, six

ROOT = Path(__file__).parents[3]
COMPARED = 16  # first tokens of a request
BUDGET = 2048  # tokens of prompts in a step: the smallest of these engines
MEMORY = 0.8  # of the GPU: the process that asks holds some of it, too


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


@dataclass(frozen=True)
class Work:
    """What all engines do at one point."""

    point: Point
    model: str  # a checkpoint folder
    vocab: int
    steps: int  # decode steps of a lap in which the batch is full, about
    laps: int
    where: Mapping[str, str]  # of an engine: a Python that has it; of gpt-fast, its folder
    emulated: bool = False  # without a GPU, or as if
    seconds: float = 900.0  # for one process: load, compile, capture, warm up, measure

    def job(self, engine: str) -> Job:
        """What the child of this engine is asked."""
        _, batch, context = self.point
        tokens = new_tokens(batch, context, self.steps)
        scripts = self.where.get("gpt-fast", "") if engine.startswith("gpt-fast") else ""
        return Job(engine, self.model, batch, context, tokens, self.laps, self.vocab, MEMORY,
                   scripts)  # fmt: skip


def new_tokens(batch: int, context: int, steps: int) -> int:
    """Of each request: enough that the first one still decodes for so many steps when the last
    one's prompt is done."""
    return 1 + steps + batch * context // BUDGET


def compare(work: Work, names: Sequence[str]) -> Iterator[EngineRow]:
    """A row for each engine, this one first. ValueError for an unknown name, before anything
    runs."""
    for name in names:
        kind_of(name)
    ours: list[list[int]] = []
    ours_us = 0.0
    for engine in dict.fromkeys([OURS, *names]):
        answer = ask(work, engine)
        if reason := answer.get("not_run"):
            yield EngineRow(*work.point, engine, NOT_RUN, reason)
            continue
        laps = [lap["gaps_us"] for lap in answer["laps"]]
        itl = median_interval([statistics.median(gaps) for gaps in laps]).rounded()
        if engine == OURS:
            ours, ours_us = answer["tokens"], itl.median
        yield EngineRow(
            *work.point,
            engine,
            MEASURED,
            version=answer["version"],
            start_s=six(answer["start_s"]),
            itl=itl,
            p99_us=six(float(np.percentile(list(chain(*laps)), 99, method="inverted_cdf"))),
            times_ours=six(itl.median / ours_us) if ours_us else 0.0,
            tokens_a_piece=six(statistics.fmean(a["tokens_a_piece"] for a in answer["laps"])),
            same_tokens=six(leading(ours, answer["tokens"], COMPARED)),
        )


def ask(work: Work, engine: str) -> dict[str, Any]:
    """Run one engine in its process. What went wrong is the answer's "not_run"; then what it
    printed is kept, since an engine's own processes tell the cause there alone."""
    descriptor, log = tempfile.mkstemp(suffix=".log", prefix=f"{engine}-")
    with os.fdopen(descriptor, "w"), tempfile.TemporaryDirectory() as folder:
        found = _answer(work, engine, Path(folder) / "answer.json", descriptor)
    printed = [
        line for line in Path(log).read_text("utf-8", "replace").splitlines() if line.strip()
    ]
    if "not_run" in found and printed:
        found["not_run"] += f": {printed[-1].strip()[:200]}; what it printed is in {log}"
    else:
        Path(log).unlink()
    return found


def _answer(work: Work, engine: str, answer: Path, log: int) -> dict[str, Any]:
    """What its process wrote into that file, or why it did not. What it prints goes to `log`."""
    base = engine.removesuffix(EAGER)
    python = sys.executable if base == "gpt-fast" else work.where.get(base, sys.executable)
    try:
        process = subprocess.Popen(
            [python, "-m", "mini_engine.bench.others.child", str(answer)],
            stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, process_group=0,
            env=_environment(python, work.emulated),
        )  # fmt: skip
    except OSError as error:
        return {"not_run": f"{Path(python).name} cannot be run: {error.strerror}"}
    try:
        process.communicate(json.dumps(vars(work.job(engine))).encode(), timeout=work.seconds)
    except subprocess.TimeoutExpired:
        return {"not_run": f"it gave no answer in {work.seconds:g} s"}
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it started, which holds memory
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not answer.exists():
        return {"not_run": f"its process ended with code {process.returncode}"}
    found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return found


def _environment(python: str, emulated: bool) -> dict[str, str]:
    """Of a child: it finds this package, and what its Python's environment has installed beside it,
    as after `activate` (vLLM and SGLang compile kernels with the `ninja` there)."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name, first in (("PYTHONPATH", ROOT), ("PATH", Path(python).parent)):
        found[name] = os.pathsep.join(filter(None, [str(first), os.environ.get(name, "")]))
    return {**found, "CUDA_VISIBLE_DEVICES": ""} if emulated else found
