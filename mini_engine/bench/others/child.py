"""The process of one engine: a job on standard input, an answer in the file that argv names.

    python -m mini_engine.bench.others.child ANSWER.json < job.json

The answer is an object: {"not_run": why}, or version, seconds to start, the tokens of the first
lap, and of each lap the gaps between tokens. A token's time is `time.perf_counter()` when the
interface has handed it over: the caller could use it then and not before. Standard output belongs
to the engine. Standard library only, for this runs under the other engine's Python.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "launch-bound"
EAGER = "-eager"  # behind a name: the same engine with its graphs switched off
KEPT_BACK = 8  # tokens of a request that some schedulers keep for themselves
KINDS = {  # engine: its adapter, what `import` looks for, how to install it
    OURS: ("Ours", "torch", "pip install 'torch>=2.11,<2.14'"),
    "nano-vllm": ("Nano", "nanovllm",
                  "pip install git+https://github.com/GeeeekExplorer/nano-vllm.git"),
    "vllm": ("Vllm", "vllm", "pip install vllm"),
    "sglang": ("Sglang", "sglang", "pip install 'sglang[all]'"),
}  # fmt: skip
NAMES = tuple(name + end for name in KINDS for end in ("", EAGER))
Piece = tuple[int, Sequence[int]]  # the number of a request, and tokens that it got together


@dataclass(frozen=True)
class Job:
    """The same work for every engine: `batch` prompts of `context` tokens at a time."""

    engine: str  # "vllm", "vllm-eager"
    model: str  # a checkpoint folder
    batch: int
    context: int
    tokens: int  # new tokens of each request, the prompt's own among them
    laps: int  # batches that count, after one that does not
    vocab: int
    memory: float  # of the GPU, for weights and cache

    @property
    def eager(self) -> bool:
        return self.engine.endswith(EAGER)

    @property
    def room(self) -> int:
        """Tokens that a request may grow to."""
        return self.context + self.tokens + KEPT_BACK


def prompts(job: Job, lap: int) -> list[list[int]]:
    """Random prompts, other ones each lap: none is answered out of a prefix cache. The same for
    every engine, on every Python."""
    drawn = random.Random(f"{job.context} tokens, lap {lap}")
    return [[drawn.randrange(job.vocab) for _ in range(job.context)] for _ in range(job.batch)]


def gaps(times: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """(µs between two pieces that one request got, tokens a piece), while all requests decode.

    All of them decode from the last first token to the first last one: before, some prompts are
    still computed; after, the batch is smaller. A gap counts where both its ends lie in between.
    Tokens that arrive at the same time are one piece. Raises ValueError where there is no gap.
    """
    began, ended = max(each[0] for each in times), min(each[-1] for each in times)
    found: list[float] = []
    tokens = 0
    for each in times:
        inside = [time for time in each if began <= time <= ended]
        pieces = sorted(set(inside))
        found += [1e6 * (after - before) for before, after in zip(pieces, pieces[1:])]  # noqa: B905, RUF007
        tokens += sum(time > pieces[0] for time in inside) if pieces else 0
    if not found:
        raise ValueError(
            f"there was no time at which all {len(times)} requests were decoding: take a smaller "
            "batch, or more --steps"
        )
    return found, tokens / len(found)


def answer(job: Job) -> dict[str, Any]:
    """Load, warm up, measure. What cannot be measured is told in one line."""
    name = job.engine.removesuffix(EAGER)
    adapter, package, install = KINDS[name]
    if importlib.util.find_spec(package) is None:
        return {"not_run": f"{package} is not installed: {install}"}
    try:
        began = time.perf_counter()
        engines = importlib.import_module("mini_engine.bench.others.engines")
        session = getattr(engines, adapter)(job)
        started = time.perf_counter() - began
        timed_lap(session, job, 0)  # warms up: what is compiled, captured or allocated late
        gc.collect()
        gc.disable()
        laps = [timed_lap(session, job, number) for number in range(1, job.laps + 1)]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"  # a folder that pip has not seen
        found = {"start_s": started, "version": version, "tokens": laps[0][1]}
        return {**found, "laps": [gaps(times) for times, _ in laps]}
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0][:300]
        return {"not_run": line if type(error) is ValueError else f"{type(error).__name__}: {line}"}
    finally:
        gc.enable()


def timed_lap(session: Any, job: Job, number: int) -> tuple[list[list[float]], list[list[int]]]:
    """One batch: for each request when each token arrived (s), and the tokens."""
    times: list[list[float]] = [[] for _ in range(job.batch)]
    tokens: list[list[int]] = [[] for _ in range(job.batch)]
    for pieces in session.lap(prompts(job, number)):
        now = time.perf_counter()
        for request, new in pieces:
            tokens[request].extend(new)
            times[request].extend([now] * len(new))
    tokens = getattr(session, "written", tokens)
    if wrong := {len(each) for each in tokens} - {job.tokens}:
        raise ValueError(f"requests got {sorted(wrong)} tokens, asked for {job.tokens}")
    return times, tokens


if __name__ == "__main__":
    asked = Job(**json.load(sys.stdin))
    Path(sys.argv[1]).write_text(json.dumps(answer(asked)), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # not through the engine's own clean-up, which may hang
