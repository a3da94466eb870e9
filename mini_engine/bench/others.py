"""Other engines beside this one: each in a process of its own, one after the other.

    for row in compare("qwen3-0.6b", job_for(folder, 1, 512, 32, 8, vocab), ["vllm"], python): ...

The caller's clock times tokens that it can use, where a `Row` has the device's times. The process
of an engine is `python -m mini_engine.bench.others ANSWER.json JOB`, under the engine's own Python.
It answers {"not_run": why}, or version, seconds to start, the tokens of the first lap, and of each
lap the gaps between tokens. An adapter loads the model; its `lap(prompts)` runs one batch and
yields pieces of (request, new tokens) as soon as the interface has them. Each names the version
whose interface it was written to.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise, takewhile
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np

from mini_engine.bench.evidence import first_line, version
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import MEASURED, NOT_RUN, NOTHING, Interval
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.model.config import ModelConfig

OURS = "launch-bound"
EAGER = "-eager"  # behind a name: the same engine with its graphs switched off
KEPT_BACK = 8  # tokens of a request that some schedulers keep for themselves
COMPARED = 16  # first tokens of a request
BUDGET = 2048  # tokens of prompts in a step: the smallest of these engines
MEMORY = 0.8  # of the GPU: the process that asks holds some of it, too
SECONDS = 900.0  # for one process: load, compile, capture, warm up, measure
Piece = tuple[int, Sequence[int]]  # the number of a request, and tokens that it got together
Prompts = Sequence[Sequence[int]]


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

    @property
    def eager(self) -> bool:
        return self.engine.endswith(EAGER)

    @property
    def room(self) -> int:  # tokens that a request may grow to
        return self.context + self.tokens + KEPT_BACK


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
    """The first request still decodes for so many steps when the last one's prompt is done."""
    tokens = 1 + steps + batch * context // BUDGET
    return Job(OURS, model, batch, context, tokens, laps, vocab)


def compare(
    shape: str, job: Job, engines: Sequence[str], python: str = sys.executable
) -> Iterator[EngineRow]:
    """A row for this engine first, with whose tokens and times those of the others are compared,
    and then for each of the others, which `python` runs."""
    ours, ours_us = list[list[int]](), 0.0
    for engine in dict.fromkeys([OURS, *engines]):
        row = EngineRow(shape, job.batch, job.context, engine, NOT_RUN)
        found = ask(replace(job, engine=engine), sys.executable if engine == OURS else python)
        if reason := found.get("not_run"):
            yield replace(row, reason=reason)
            continue
        laps = [gaps for gaps, _ in found["laps"]]
        itl = median_interval([statistics.median(gaps) for gaps in laps])
        if engine == OURS:
            ours, ours_us = found["tokens"], itl.median
        yield replace(
            row, status=MEASURED, version=found["version"], start_s=found["start_s"], itl=itl,
            p99_us=float(np.percentile(list(chain(*laps)), 99, method="inverted_cdf")),
            times_ours=itl.median / ours_us if ours_us else 0.0,
            tokens_a_piece=statistics.fmean(pieces for _, pieces in found["laps"]),
            same_tokens=leading(ours, found["tokens"]),
        )  # fmt: skip


def leading(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of the first COMPARED tokens of each request up to which both wrote the same. After the
    first difference two right engines write different texts."""
    rows = [list(map(eq, one, other))[:COMPARED] for one, other in zip(ours, theirs, strict=False)]
    return sum(sum(takewhile(bool, row)) for row in rows) / max(1, sum(map(len, rows)))


def ask(job: Job, python: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Run one engine in its process. What went wrong is "not_run", with the last line printed."""
    told = {**os.environ, "PYTHONUNBUFFERED": "1"}  # so that its last line is there at any end
    # it finds this package, and what is installed beside its Python (vLLM compiles with `ninja`)
    for name, first in (("PYTHONPATH", Path(__file__).parents[2]), ("PATH", Path(python).parent)):
        told[name] = f"{first}{os.pathsep}{told.get(name, '')}"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as printed:
        answer = Path(folder) / "answer.json"
        words = [python, "-m", "mini_engine.bench.others", str(answer), json.dumps(asdict(job))]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            process_group=0, env=told,
        )  # fmt: skip
        try:
            why = f"its process ended with code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            why = f"it gave no answer in {seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started, which holds memory
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        found = dict(json.loads(answer.read_text("utf-8")) if answer.exists() else {"not_run": why})
        printed.seek(0)
        if "not_run" in found:
            last = printed.read().strip().splitlines()[-1:]
            found["not_run"] = ": ".join([found["not_run"], *last])[:400]
        return found


# ---------------------------------------------------------------- the process of one engine


def prompts(job: Job, lap: int) -> list[list[int]]:
    """Random prompts, the same for every engine, others each lap: no prefix cache knows one."""
    drawn = random.Random(f"{job.context} tokens, lap {lap}")
    return [[drawn.randrange(job.vocab) for _ in range(job.context)] for _ in range(job.batch)]


def gaps(times: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """(µs between two pieces that one request got, tokens a piece), while all requests decode: both
    ends of a gap lie between the last first token and the first last one. Tokens that arrive at the
    same time are one piece. Raises ValueError where there is no gap."""
    began, ended = max(each[0] for each in times), min(each[-1] for each in times)
    found, tokens = list[float](), 0
    for each in times:
        inside = [time for time in each if began <= time <= ended]
        pieces = sorted(set(inside))
        found += [1e6 * (after - before) for before, after in pairwise(pieces)]
        tokens += sum(time > pieces[0] for time in inside) if pieces else 0
    if not found:
        raise ValueError(f"{len(times)} requests never all decoded: take more --steps")
    return found, tokens / len(found)


def answer(job: Job) -> dict[str, Any]:
    name = job.engine.removesuffix(EAGER)
    adapter, package, install = KINDS[name]
    if importlib.util.find_spec(package) is None:
        return {"not_run": f"{package} is not installed: {install}"}
    try:
        began = time.perf_counter()
        session = adapter(job)
        started = time.perf_counter() - began
        timed_lap(session, job, 0)  # warms up: what is compiled, captured or allocated late
        gc.collect()
        gc.disable()
        laps = [timed_lap(session, job, number) for number in range(1, job.laps + 1)]
        found = {"start_s": started, "version": version(name), "tokens": laps[0][1]}
        return {**found, "laps": [gaps(times) for times, _ in laps]}
    except Exception as error:
        return {"not_run": first_line(error)}
    finally:
        gc.enable()


def timed_lap(session: Any, job: Job, number: int) -> tuple[list[list[float]], list[list[int]]]:
    """One batch: for each request when each token arrived (s), and the tokens."""
    times, tokens = ([list[Any]() for _ in range(job.batch)] for _ in range(2))
    for pieces in session.lap(prompts(job, number)):
        now = time.perf_counter()
        for request, new in pieces:
            tokens[request].extend(new)
            times[request].extend([now] * len(new))
    if wrong := {len(each) for each in tokens} - {job.tokens}:
        raise ValueError(f"requests got {sorted(wrong)} tokens, asked for {job.tokens}")
    return times, tokens


# ---------------------------------------------------------------- the adapters


class Ours:
    """This engine, asked as the others are. A step ends when its tokens have been read back."""

    def __init__(self, job: Job) -> None:
        from mini_engine.bench.decode_setup import BLOCK_SIZE
        from mini_engine.cuda.generate import open_engine

        limits = SchedulerLimits(
            max_num_seqs=job.batch, max_num_batched_tokens=BUDGET, max_model_len=job.room,
            num_blocks=1 + job.batch * -(-job.room // BLOCK_SIZE), block_size=BLOCK_SIZE,
        )  # fmt: skip
        self.tokens, self.engine = job.tokens, open_engine(
            ModelConfig.from_folder(job.model), Path(job.model), limits,
            "NONE" if job.eager else "FULL_DECODE_ONLY", [job.batch], print, sampling=False,
        )  # fmt: skip
        captured = job.eager or self.engine.dispatcher.descriptors()
        if not captured or self.engine.scheduler.limits.num_blocks < limits.num_blocks:
            raise MemoryError(f"no memory for batch {job.batch}, or to capture it")

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        for index, prompt in enumerate(prompts):
            self.engine.submit(Request(str(index), tuple(prompt), self.tokens))
        while record := self.engine.step():
            yield [(int(request.request_id), [token]) for request, token in record.written]


class Vllm:
    """vLLM 0.33.0: `LLMEngine.step` hands over tokens, with `RequestOutputKind.DELTA` the new ones.
    The engine works in another process, as it does by default: a token's time holds the way."""

    def __init__(self, job: Job) -> None:
        vllm = importlib.import_module("vllm")
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self.engine = vllm.LLM(
            model=job.model, skip_tokenizer_init=True, dtype="bfloat16",
            max_model_len=job.room, max_num_seqs=job.batch, enable_prefix_caching=False,
            gpu_memory_utilization=MEMORY, enforce_eager=job.eager,
        ).llm_engine  # fmt: skip
        self.params = vllm.SamplingParams(
            temperature=0.0, max_tokens=job.tokens, ignore_eos=True, detokenize=False,
            output_kind=kinds.DELTA,
        )  # fmt: skip
        self.laps = 0

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        self.laps += 1
        for index, prompt in enumerate(prompts):
            words = {"prompt_token_ids": list(prompt)}
            self.engine.add_request(f"{self.laps}-{index}", words, self.params)
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            yield [(int(one.request_id.split("-")[1]), one.outputs[0].token_ids) for one in outputs]


class Sglang:
    """SGLang 001067f (2026): `Engine.generate` streams a piece of one request after the other, each
    with its "index". "completion_tokens" counts the tokens so far; "output_ids" ends with the new
    ones, several where the event loop here is late."""

    def __init__(self, job: Job) -> None:
        self.engine = importlib.import_module("sglang").Engine(
            model_path=job.model, skip_tokenizer_init=True, dtype="bfloat16",
            context_length=job.room, max_running_requests=job.batch, disable_radix_cache=True,
            mem_fraction_static=MEMORY, disable_cuda_graph=job.eager,
            cuda_graph_max_bs_decode=job.batch,
        )  # fmt: skip
        self.params = {"temperature": 0.0, "max_new_tokens": job.tokens, "ignore_eos": True}

    def lap(self, prompts: Prompts) -> Iterator[list[Piece]]:
        given, known = [list(prompt) for prompt in prompts], [0] * len(prompts)
        for piece in self.engine.generate(
            input_ids=given, sampling_params=self.params, stream=True
        ):
            index = piece.get("index", 0)  # missing where a version unpacks a batch of one
            new = piece["meta_info"]["completion_tokens"] - known[index]
            if new > 0:
                known[index] += new
                yield [(index, piece["output_ids"][-new:])]


KINDS: dict[str, tuple[Any, str, str]] = {  # name: adapter, what `import` looks for, how to get it
    OURS: (Ours, "torch", "pip install 'torch>=2.11,<2.14'"),
    "vllm": (Vllm, "vllm", "pip install vllm"),
    "sglang": (Sglang, "sglang", "pip install 'sglang[all]'"),
}  # fmt: skip
NAMES = tuple(name + end for name in KINDS for end in ("", EAGER))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(Job(**json.loads(sys.argv[2])))), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # not through the engine's own clean-up, which may hang
