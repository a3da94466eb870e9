"""Engines against this one: each in a process of its own, one at a time, in balanced order.

In:  a checkpoint folder, a point, names of engines. Out: an `OtherRow` for each engine and round of
     processes, yielded as soon as it is known.

    for row in compare(work, ["vllm", "vllm-eager"], 2):
        print(row.engine, row.status)

This engine is always among them: its tokens are what the others' are compared with, and its times
what theirs are divided by. The rounds go through the engines forwards, then backwards: an even
drift of clocks and heat weighs on all the same. A process that says nothing in time is ended with
all that it started, and its row says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from mini_engine.bench.evidence import gpu_state
from mini_engine.bench.others import EAGER, OURS, kind_of
from mini_engine.bench.others.protocol import Job, leading
from mini_engine.bench.others_table import with_figures
from mini_engine.bench.table import OVER
from mini_engine.records.other_rows import OtherRow, OtherRun
from mini_engine.records.rows import MEASURED, NOT_RUN, Point, six

ROOT = Path(__file__).parents[3]
COMPARED = 16  # first tokens of a request
BUDGET = 2048  # tokens of prompts in a step: the smallest of these engines
MEMORY = 0.8  # of the GPU: the process that asks holds some of it, too
SECONDS = 900.0  # for one process: load, compile, capture, warm up, measure


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
    seconds: float = SECONDS
    deadline: float | None = None  # of `time.monotonic()`: no process starts after it

    def job(self, engine: str) -> Job:
        """What the child of this engine is asked."""
        tokens = new_tokens(self.point.batch, self.point.context, self.steps)
        scripts = self.where.get("gpt-fast", "") if engine.startswith("gpt-fast") else ""
        return Job(
            engine, self.model, self.point.batch, self.point.context, tokens, self.laps,
            self.vocab, MEMORY, scripts,
        )  # fmt: skip


def new_tokens(batch: int, context: int, steps: int) -> int:
    """Of each request: enough that the first one still decodes for so many steps when the last
    one's prompt is done."""
    return 1 + steps + batch * context // BUDGET


def compare(
    work: Work,
    names: Sequence[str],
    processes: int,
    wanted: Callable[[str, int], bool] = lambda engine, process: True,
) -> Iterator[OtherRow]:
    """A row for each engine and round. ValueError for an unknown name, before anything runs."""
    for name in names:
        kind_of(name)
    ours_first: list[list[int]] = []  # this engine's tokens: greedy, so the same in every round
    for process, order in enumerate(balanced(names, processes), 1):
        todo = [name for name in order if wanted(name, process)]
        if todo and OURS not in todo:  # its times stand beside theirs, at this hour
            todo = [name for name in order if name in (OURS, *todo)]
        for engine in todo:
            answer = ask(work, engine)
            row = _row(work, engine, process, answer, ours_first)
            if engine == OURS and row.status == MEASURED:
                ours_first = answer["tokens"]
            yield row


def balanced(names: Sequence[str], processes: int) -> list[list[str]]:
    """The order of each round: forwards, backwards, forwards ... . This engine is added to them; it
    leads the first round, so that there are tokens to compare with."""
    order = list(dict.fromkeys([OURS, *names]))
    return [order[:: -1 if process % 2 else 1] for process in range(processes)]


def ask(work: Work, engine: str) -> dict[str, Any]:
    """Run one engine in its process. What went wrong is the answer's "not_run"."""
    if work.deadline is not None and time.monotonic() > work.deadline:
        return {"not_run": OVER}
    descriptor, log = tempfile.mkstemp(suffix=".log", prefix=f"{engine}-")
    with os.fdopen(descriptor, "w+") as file, tempfile.TemporaryDirectory() as folder:
        found = _answer(work, engine, Path(folder) / "answer.json", file)
        printed = file.tell() or file.seek(0, os.SEEK_END)
    if "not_run" in found and printed:  # an engine's own processes tell the cause there alone
        found["not_run"] += f"; what it printed is in {log}"
    else:
        Path(log).unlink()
    return found


def _answer(work: Work, engine: str, answer: Path, log: TextIO) -> dict[str, Any]:
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
    if answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return found
    log.seek(0)
    told = [line.strip() for line in log.read().splitlines() if line.strip()]
    last = told[-1][:200] if told else "it printed nothing"
    return {"not_run": f"its process ended with code {process.returncode}: {last}"}


def _environment(python: str, emulated: bool) -> dict[str, str]:
    """Of a child: it finds this package, and what its Python's environment has installed beside it,
    as after `activate` (vLLM and SGLang compile kernels with the `ninja` there)."""
    found = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name, first in (("PYTHONPATH", ROOT), ("PATH", Path(python).parent)):
        found[name] = os.pathsep.join(filter(None, [str(first), os.environ.get(name, "")]))
    return {**found, "CUDA_VISIBLE_DEVICES": ""} if emulated else found


def _row(
    work: Work, engine: str, process: int, answer: Mapping[str, Any], ours: list[list[int]]
) -> OtherRow:
    if reason := answer.get("not_run"):
        return OtherRow(*work.point, engine, NOT_RUN, reason)
    laps = [lap["gaps_us"] for lap in answer["laps"]]
    run = OtherRun(
        process=process,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        start_s=round(answer["start_s"], 3),
        itl_laps_us=tuple(six(statistics.median(lap)) for lap in laps),
        p99_us=six(
            float(np.percentile(list(chain.from_iterable(laps)), 99, method="inverted_cdf"))
        ),
        gpu_state={} if work.emulated else gpu_state(),
    )
    first = min(COMPARED, len(answer["tokens"][0]))
    return with_figures(
        OtherRow(
            *work.point,
            engine,
            MEASURED,
            version=answer["version"],
            tokens_a_piece=round(statistics.fmean(a["tokens_a_piece"] for a in answer["laps"]), 3),
            same_tokens=round(leading(ours, answer["tokens"], first), 4) if ours else 0.0,
            compared=first if ours else 0,
            runs=(run,),
        )
    )
