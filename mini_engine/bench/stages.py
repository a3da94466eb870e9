"""The run on a GPU in stages, most valuable first: each has a deadline, and its result is on disk
before the next one begins, in `run.json`, and what its commands print in NAME.txt.

A run may be cut at any moment, by Ctrl-C or because the machine is taken away; the same call goes
on. A stage that was cut or failed is tried again behind the others while time is left. No torch.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mini_engine.files import read_object, typed, write_whole

DONE, FAILED, CUT, WAITING = "done", "failed", "cut", "not run"
SECONDS = 540.0  # of a whole run on one H200
LEAST_SECONDS = 5.0  # what is left of a run's time, below which no stage begins
STATE, BENCH = "run.json", "bench.json"
REHEARSED = "tests/bench/test_intervals.py"
FOLDER = "{folder}"  # in a word: the folder of the run


@dataclass(frozen=True)
class Stage:
    """A command behind `python`; in its words {folder} is the run's."""

    name: str
    teaches: str  # one line
    deadline_s: float  # on one H200 that starts cold; no GPU has run it yet
    command: str


@dataclass(frozen=True)
class Outcome:
    stage: str
    status: str  # DONE | FAILED | CUT | WAITING
    took_s: float = 0.0  # all attempts together
    note: str = ""  # of a stage that is not done: why, in one line


@dataclass(frozen=True)
class State:
    """The file `run.json`."""

    machine: dict[str, str]
    stages: tuple[Outcome, ...]


def stages_for(device: str) -> list[Stage]:
    """The stages on "cuda" or, as a rehearsal, on "cpu"."""
    real = device == "cuda"
    small, large, llama = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b") if real else ("tiny",) * 3
    three, two = (f"{small},{large},{llama}", f"{small},{large}") if real else (small, small)
    best = "graph-5-pdl" if real else "graph-5"
    how = "--context 512 --rounds 8 --steps 32" if real else "--context 40 --rounds 2 --steps 2"

    def bench(arms: str, shapes: str, batches: str = "1", gate_steps: int = 128) -> str:
        what = f"--shape {shapes} --arms {arms} --batch {batches if real else 1}"
        gate = f"--gate-steps {gate_steps if real else 4}"
        command = f"-m mini_engine bench --device {device} --resume {how}"
        return f"{command} {what} {gate} -o {FOLDER}/{BENCH}"

    calibrate = (f"-m mini_engine calibrate --device {device} -o {FOLDER}/card.json "
                 f"--evidence {FOLDER}/calibration.json")  # fmt: skip
    which = "-m 'gpu and not gpu_slow' tests/cuda tests/bench" if real else REHEARSED
    tests = f"-m pytest -p no:cacheprovider -vv --tb=short {which}"
    # The deadlines: 9 s until a process has torch and the GPU; 2 s for a model's weights and their
    # copy in float32; 15 s for Triton to compile a model's kernels, once; 4 s for an arm's gate and
    # laps, 7 s for an eager one; a compiler's arm 25 s. Then something to spare: 510 s in all.
    return [
        Stage("environment", "which machine this is, its driver, compilers and packages",
              20, "-m torch.utils.collect_env"),
        Stage("design", "how long a step of our one design takes, on three models",
              80, bench(best, three, gate_steps=32)),
        Stage("baselines", "what a graph takes off the step, and transformers beside it",
              65, bench("ours-graph,ours-eager,hf-eager", two)),
        Stage("ideas", "what each idea buys: without PDL, nine kernels, eight steps a graph",
              55, bench("graph-5,graph-9,graph-5-pdl-k8,null", small)),
        Stage("calibrate", "what card and host charge: a card and a host to predict with",
              60, calibrate),
        Stage("pytest", "what is wrong", 90, tests),
        Stage("compile", "what torch.compile reaches on the same machine",
              80, bench("compile-default,compile-reduce-overhead", small)),
        Stage("batches", "larger batches",
              60, bench(f"{best},ours-graph", small, "8,64,256", 32)),
    ]  # fmt: skip


def run(
    folder: Path, stages: Sequence[Stage], machine: dict[str, str], seconds: float,
    tell: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:  # fmt: skip
    """Yield the outcome of each stage that had to run, once it is on disk; end after `seconds`.
    `tell` is given a line as a stage begins. Raises ValueError for a folder of another machine,
    KeyboardInterrupt after Ctrl-C or SIGTERM."""
    before = read_outcomes(folder, machine)
    outcomes = {s.name: Outcome(s.name, WAITING) for s in stages} | before
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    # a lender of machines sends SIGTERM: the same as Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # twice through the stages: what was cut or has failed gets another chance behind the others
    for stage in [*stages, *stages]:
        left = min(stage.deadline_s, ends - time.monotonic())
        if outcomes[stage.name].status == DONE or left < LEAST_SECONDS:
            continue
        tell(f"{stage.name}: {stage.teaches} (at most {left:.0f} s)")
        began, status, note = time.monotonic(), CUT, "interrupted"
        try:
            status, note = _run_stage(folder, stage, left)
        finally:
            took = round(outcomes[stage.name].took_s + time.monotonic() - began, 1)
            outcomes[stage.name] = Outcome(stage.name, status, took, note)
            state = asdict(State(machine, tuple(outcomes.values())))
            write_whole(folder / STATE, json.dumps(state, indent=1) + "\n")
        yield outcomes[stage.name]


def read_outcomes(folder: Path, machine: dict[str, str] | None = None) -> dict[str, Outcome]:
    """By stage, {} where no run has begun. ValueError for a run of another machine."""
    path = folder / STATE
    if not path.exists():
        return {}
    state = typed(State, read_object(path), str(path))
    if machine is not None and state.machine != machine:
        raise ValueError(f"{path}: begun on {state.machine}, this is {machine}: another folder")
    return {one.stage: one for one in state.stages}


def _run_stage(folder: Path, stage: Stage, seconds: float) -> tuple[str, str]:
    """(status, note)."""
    words = [word.replace(FOLDER, str(folder)) for word in shlex.split(stage.command)]
    told = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    with (folder / f"{stage.name}.txt").open("a", encoding="utf-8") as log:
        print("$ python", *words, file=log, flush=True)
        process = subprocess.Popen(
            [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, env=told, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return CUT, f"its {seconds:.0f} s were over"
        finally:
            with suppress(ProcessLookupError, PermissionError):  # it and its children may be
                os.killpg(process.pid, signal.SIGKILL)  # gone already
            process.wait()
    if code:
        return FAILED, f"{' '.join(words[:3])} ended with code {code}: see {stage.name}.txt"
    return DONE, ""
