"""bench/bar_points.py: what a bar takes, what a file lacks of it, and that one call does it."""

from __future__ import annotations

from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench import gate  # noqa: E402
from mini_engine.bench.bar_points import BASELINES, CONTEXT, BarPoints, Missing, covering, told  # noqa: E402
from mini_engine.bench.bars import BARS, BENCH, Bar  # noqa: E402
from mini_engine.bench.bench import check_names, predicted_us  # noqa: E402
from mini_engine.bench.variants import ANCHOR, VARIANTS  # noqa: E402
from mini_engine.model.config import named_shape  # noqa: E402
from mini_engine.step.hardware import load_spec  # noqa: E402
from mini_engine.step.oplists import StepShape, step_ops  # noqa: E402

POINTS = BarPoints(("qwen3-0.6b", "qwen3-1.7b"), (1, 8), ("graph-5", "hf-eager"), processes=2)

# ---------------------------------------------------------------- how long a bar takes

CALL_S = 9 * 60
ROUNDS, STEPS = 8, 32  # of BENCH, and the default
# Guesses, not yet measured, on the long side: seconds on one H200 with 16 cores.
PROCESS_S = 15  # Python, torch, a CUDA context, transformers
SHAPE_S = 5  # random weights, in bf16 and in float32
POINT_S = 3  # a filled cache, and one for the gate
AFTER_S = 3  # an arm's errors in float64, its profile, its memory given back
COMPILED_S, AGAIN_S = 50, 25  # torch.compile of a step, and where its cache knows the kernels
TRITON_S, LOADED_S = 10, 4  # the kernels of one batch, and from Triton's cache
OTHERS_S = 5


@lru_cache
def itl_s(shape: str, batch: int, arm: str) -> float:
    """As the simulator predicts it, in seconds."""
    kind = VARIANTS[arm]
    spec = load_spec("h200", engine=kind.engine)
    ops = step_ops(named_shape(shape), StepShape.decode(batch, CONTEXT), spec.ops)
    return predicted_us(ops, 1, spec, kind.mode) / 1e6


def prepare_s(arm: str, process: int) -> float:
    if "compile" in arm:
        return AGAIN_S if process else COMPILED_S
    if arm.startswith("graph-"):
        return LOADED_S if process else TRITON_S
    return OTHERS_S


def arm_s(shape: str, batch: int, arm: str, process: int) -> float:
    """Prepare, the gate's two paths, laps in turns with the anchor, one of each to warm up. The
    plain model walks the path that the arm produced, too, and so does the reference."""
    itl, plain = itl_s(shape, batch, arm), itl_s(shape, batch, "ours-eager")
    judged = gate.steps_of(batch) * 2 * (itl + plain)
    laps = (ROUNDS + 1) * STEPS * (itl + itl_s(shape, batch, ANCHOR))
    return prepare_s(arm, process) + judged + laps + AFTER_S


def bar_s(points: BarPoints) -> float:
    """One call, from an empty file."""
    seconds = 0.0
    for process in range(points.processes):
        seconds += PROCESS_S
        for shape in points.shapes:
            seconds += SHAPE_S
            for batch in points.batches:
                forced = 2 * gate.steps_of(batch) * itl_s(shape, batch, "ours-eager")
                seconds += POINT_S + forced
                seconds += sum(arm_s(shape, batch, arm, process) for arm in points.arms)
    return seconds


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.name)
def test_one_call_of_nine_minutes_measures_a_bar(bar: Bar) -> None:
    assert bar_s(bar.points) <= 0.95 * CALL_S
    check_names(bar.points.arms)
    assert not any(":" in arm for arm in bar.points.arms)


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.name)
def test_a_call_ends_in_time_even_if_it_takes_longer_than_it_should(bar: Bar) -> None:
    """No arm starts after seven and a half minutes, and each takes less than the rest."""
    assert f"--minutes 7.5 --rounds {ROUNDS} " in BENCH
    last = max(
        arm_s(shape, batch, arm, 0)
        for shape in bar.points.shapes
        for batch in bar.points.batches
        for arm in bar.points.arms
    )
    assert 7.5 * 60 + last <= CALL_S


# ---------------------------------------------------------------- what is missing


def test_points_are_options_of_the_command_line() -> None:
    assert POINTS.options == (
        "--shape qwen3-0.6b,qwen3-1.7b --batch 1,8 --context 512 --arms graph-5,hf-eager "
        "--processes 2"
    )


def test_an_empty_file_lacks_everything_and_batches_that_lack_the_same_are_told_together() -> None:
    every = POINTS.missing([])
    assert len(every) == 8
    assert told(every) == (
        "qwen3-0.6b, batch 1 8: graph-5, hf-eager; qwen3-1.7b, batch 1 8: graph-5, hf-eager"
    )
    assert covering(every, POINTS) == POINTS


def test_what_covers_the_missing_is_no_more_than_their_shapes_batches_and_arms() -> None:
    some = [Missing("qwen3-1.7b", 8, "hf-eager"), Missing("qwen3-1.7b", 1, "hf-eager", True)]
    found = covering(some, POINTS)
    assert found == BarPoints(("qwen3-1.7b",), (1, 8), ("hf-eager",), 2)
    assert told(some) == (
        "qwen3-1.7b, batch 8: hf-eager; qwen3-1.7b, batch 1: hf-eager (failed the gate)"
    )


def test_every_baseline_is_a_variant_that_may_fail_the_gate_and_the_others_are_ours() -> None:
    assert set(BASELINES) == {name for name, kind in VARIANTS.items() if not kind.gated}
