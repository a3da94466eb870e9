"""What a run on a GPU measures, most valuable first: the stages of `python -m mini_engine gpu`.

In:  the kind of device. Out: `Stage`s, whose results lie in one folder.

    environment  environment.json   which machine; a copy; a kernel that does nothing
    calibrate    card.json, card-host.json, calibration.json   what it charges
    warm         Triton's cache     nothing: what follows is compiled, on all CPUs at once
    arms         bench.json         the ways to run a step that matter, behind the gate
    chain        chain.json         each kernel alone at its place, and the step without it
    prefill      prefill.json       prompts: our FlashAttention beside PyTorch's, and the floor
    kernels      kernels.txt        single kernels beside PyTorch's and their floors (labs 13, 12)
    pytest       pytest.txt         the GPU's tests, in the order of what they would teach
    compile      bench.json         torch.compile, last of the baselines because it takes minutes
    rest         bench.json, step.json   larger batches, the profiler, the slow tests

Deadlines are meant for an H200 that starts cold, nine minutes in all; "rest" has what is left.
Every benchmark goes on in one file, so a stage that was cut keeps its rows, and the bars find them
all in one place. Emulated, the same commands run on a tiny model: a rehearsal. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mini_engine.bench.evidence import CALIBRATED, read_measurement
from mini_engine.bench.stages import Stage
from mini_engine.files import write_whole

SECONDS = 540.0
BENCH, CHAIN, CARD, HOST = "bench.json", "chain.json", "card.json", "card-host.json"
PREFILL = "prefill.json"
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b")
CONTEXT = 512
ARMS = ("graph-5-pdl", "graph-5", "graph-9", "graph-5-pdl-k8", "ours-graph", "ours-eager",
        "hf-eager", "null")  # fmt: skip
COMPILED = ("compile-reduce-overhead", "hf-compile")
LARGE = ("graph-5-pdl", "graph-9", "ours-graph", "hf-eager", "compile-reduce-overhead")
BATCHES = (8, 64, 256)
TESTS = ("tests/cuda", "tests/bench")  # conftest.py puts those first that teach most
FAST, SLOW = "gpu and not gpu_slow", "gpu_slow"

Words = list[str]
Commands = Callable[[Path], Sequence[Words]]
ENGINE = ("-m", "mini_engine")


@dataclass(frozen=True)
class Scale:
    """How much a run measures."""

    models: tuple[str, ...]
    context: int
    laps: tuple[str, ...]
    warm: tuple[str, ...]  # arms to compile ahead
    batches: tuple[int, ...]
    large: tuple[str, ...]  # arms at these batches
    slower: float = 1.0  # than an H200: the deadlines grow by so much


ON_A_GPU = Scale(
    models=MODELS,
    context=CONTEXT,
    laps=("--rounds", "8", "--steps", "32"),
    warm=("graph-5-pdl", "graph-5", "graph-9"),
    batches=BATCHES,
    large=LARGE,
)
REHEARSAL = Scale(
    models=("tiny",),
    context=40,
    laps=("--rounds", "2", "--steps", "2"),
    warm=(),
    batches=(2,),
    large=LARGE[1:3],
    slower=5.0,
)


def first_run(device: str) -> list[Stage]:
    """The stages on "cuda" or, as a rehearsal, on "cpu"."""
    scale = REHEARSAL if device == "cpu" else ON_A_GPU
    models, context = scale.models, str(scale.context)

    def bench(shapes: Sequence[str], batches: Sequence[int], arms: Sequence[str]) -> Commands:
        return lambda folder: [
            [*ENGINE, "bench", "--resume", "--device", device, "--processes", "1", *scale.laps,
             "--shape", ",".join(shapes), "--batch", ",".join(map(str, batches)),
             "--context", context, "--arms", ",".join(arms), *_card(folder),
             "-o", str(folder / BENCH)]
        ]  # fmt: skip

    def calibrate(folder: Path) -> list[Words]:
        return [
            [*ENGINE, "calibrate", "--quick", "--device", device, "-o", str(folder / CARD),
             "--evidence", str(folder / "calibration.json")]
        ]  # fmt: skip

    def part(name: str, result: str, *more: str) -> Commands:
        return lambda folder: [
            [*ENGINE, "gpu", name, "--device", device, "-o", str(folder / result), *more]
        ]

    def tests(mark: str, stage: str) -> Commands:
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-vv", "--tb=short", "-m", mark, *TESTS]
        return lambda folder: [[*words, *_passed_before(folder, stage)]]

    def trace(folder: Path) -> list[Words]:
        shape = [] if device == "cpu" else ["--shape", models[0]]
        words = [*ENGINE, "trace", "--backend", "cuda", "--mode", "NONE", "--mode", "FULL"]
        return [[*words, *shape, "-o", str(folder / "step.json")]]

    def warm(_folder: Path) -> list[Words]:
        """Laps as in `bench`, so that the room for tokens is the same."""
        words = [*ENGINE, "gpu", "warm", "--device", device, "--context", context, *scale.laps,
                 "--shape", ",".join(models), "--arms", ",".join(scale.warm)]  # fmt: skip
        return [words] if scale.warm else []

    larger = bench(models[:1], scale.batches, scale.large)
    stages = [
        Stage("environment", 40, "which machine this is, and whether it is in order",
              part("environment", "environment.json")),
        Stage("calibrate", 70, "what this card and host charge: the simulator predicts with it",
              calibrate),
        Stage("warm", 40, "nothing: it compiles what the next stages launch, on all CPUs at once",
              warm),
        Stage("arms", 130, "how long a step takes, way by way, and what each idea buys",
              bench(models, [1], ARMS)),
        Stage("chain", 50, "where the step's time goes: each kernel alone, and the step without it",
              part("chain", CHAIN, "--shape", ",".join(models), "--context", context,
                   *scale.laps)),
        Stage("prefill", 25, "what our FlashAttention is worth to a prompt, beside PyTorch's",
              part("prefill", PREFILL, "--shape", models[0])),
        Stage("kernels", 30, "what our kernels are worth beside PyTorch's, one by one", kernels),
        Stage("pytest", 60, "what is wrong", tests(FAST, "pytest")),
        Stage("compile", 50, "what torch.compile reaches on the same machine",
              bench(models[:1], [1], COMPILED)),
        Stage("rest", SECONDS, "larger batches, a profiler's trace, the slow tests",
              both(trace, larger, tests(SLOW, "rest"))),
    ]  # fmt: skip
    return [replace(stage, seconds=stage.seconds * scale.slower) for stage in stages]


def both(*parts: Commands) -> Commands:
    """One after the other."""
    return lambda folder: [words for part in parts for words in part(folder)]


def kernels(_folder: Path) -> list[Words]:
    """Labs 13 and 12 measure their kernels beside PyTorch's and their floors."""
    return [["-m", "labs.lab13_gemv.measure"], ["-m", "labs.lab12_flash_decoding.measure"]]


def test_results(log: Path) -> dict[str, str]:
    """What pytest -vv printed, test by test, over all attempts; the last word counts."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    words = "PASSED|FAILED|ERROR|SKIPPED"
    return dict(re.findall(rf"^(\S+::\S.*?) ({words})\b", text, re.MULTILINE))


def _passed_before(folder: Path, stage: str) -> Words:
    """A run of the tests that was cut goes on with those that have not passed."""
    passed = [name for name, word in test_results(folder / f"{stage}.txt").items()
              if word == "PASSED"]  # fmt: skip
    if not passed:
        return []
    beside = folder / f"{stage}-passed"
    write_whole(beside, "".join(f"{name}\n" for name in passed))
    return ["-p", "tests.support.passed_before", "--passed-before", str(beside)]


def _card(folder: Path) -> Words:
    """Predict with the card and host of this machine, once they are calibrated; but a file that was
    begun without them goes on without them."""
    card, host, bench = folder / CARD, folder / HOST, folder / BENCH
    if not (card.exists() and host.exists()):
        return []
    if bench.exists() and not read_measurement(bench).figures["host"].endswith(CALIBRATED):
        return []
    return ["--spec", str(card), "--host", str(host)]
