"""StepModel: the recursion's numbers, without the recursion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import STYLES, StepShape, step_ops
from mini_engine.step.run import MODES, Mode, StepModel, step_time, upper_envelope

H200, LAPTOP = load_spec("h200"), load_spec("laptop-cpu")
QWEN = named_shape("qwen3-0.6b")

figures = st.floats(0.05, 40.0)
specs = st.builds(
    lambda base, **given: replace(base, **given),
    base=st.sampled_from([H200, LAPTOP, load_spec("l4")]),
    cpu_op_us=figures,
    live_op_us=figures,
    host_step_us=figures,
    ahead_us=figures,
    request_us=figures,
    stream_gap_us=figures,
    graph_gap_us=figures,
    kernel_floor_us=figures,
    graph_launch_us=figures,
    copy_us=figures,
    sync_us=figures,
    queue_depth=st.sampled_from([1, 1024]),
)
configs = st.builds(
    lambda **sizes: replace(QWEN, **sizes),
    num_layers=st.integers(1, 6),
    hidden_size=st.sampled_from([64, 896, 4096]),
    intermediate_size=st.sampled_from([128, 4864]),
    qk_norm=st.booleans(),
    qkv_bias=st.booleans(),
)
decodes = st.builds(  # small ones too, which wait for the CPU
    StepShape.decode,
    st.sampled_from([1, 2, 9, 64, 300]),
    st.integers(1, 64) | st.integers(1, 40_000),
)
chunks = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 4000)), min_size=1, max_size=5)
mixed = chunks.map(lambda c: StepShape.mixed([q for q, _ in c], [q + past for q, past in c]))
modes = st.sampled_from(MODES)


def exact_us(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> float:
    return step_time(step_ops(config, shape, style), spec, mode, shape.num_reqs).itl_us


@given(configs, specs, st.sampled_from(STYLES), modes, decodes | mixed)
def test_every_step_costs_what_the_recursion_says(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> None:
    fast = StepModel(config, spec, style).itl_us(mode, shape)
    assert fast == pytest.approx(exact_us(config, spec, style, mode, shape), rel=1e-12)


@given(configs, specs, st.sampled_from(STYLES), modes, decodes)
def test_the_highest_line_is_the_itl(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shape: StepShape
) -> None:
    lines = StepModel(config, spec, style).lines(mode, shape.num_tokens, shape.num_reqs)
    highest = max(us + per_key * shape.kv_tokens for us, per_key in lines)
    # 1e-9: the slope is a difference, divided and multiplied again
    assert highest == pytest.approx(exact_us(config, spec, style, mode, shape), rel=1e-9)
    assert all(a[0] > b[0] and a[1] < b[1] for a, b in pairwise(lines))


@given(configs, specs, st.sampled_from(STYLES), modes, st.lists(decodes | mixed, min_size=1))
def test_many_steps_at_once_take_what_each_takes_alone(
    config: ModelConfig, spec: DeviceSpec, style: str, mode: Mode, shapes: list[StepShape]
) -> None:
    model = StepModel(config, spec, style)
    sizes = np.array([shape.sizes for shape in shapes], dtype=float)
    served = np.array([shape.served for shape in shapes], dtype=float)
    alone = [model.itl_us(mode, shape) for shape in shapes]
    assert model.itls_us(mode, sizes, served) == pytest.approx(alone, rel=1e-12)
    assert [step.itl_us for step in model.steps(mode, shapes)] == pytest.approx(alone, rel=1e-12)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 10)), min_size=1, max_size=12))
def test_the_lines_that_are_kept_are_all_that_is_ever_the_highest(
    lines: list[tuple[float, float]],
) -> None:
    def highest(of: Iterable[tuple[float, float]], keys: float) -> float:
        return max(us + per_key * keys for us, per_key in of)

    kept = upper_envelope(lines)
    assert set(kept) <= set(lines)
    for keys in (0, 0.5, 1, 3, 10, 100, 1e4, 1e9):
        assert highest(kept, keys) == pytest.approx(highest(lines, keys), rel=1e-9)


def test_a_line_that_is_the_highest_only_in_between_is_kept() -> None:
    assert upper_envelope([(0.0, 2.0), (8.0, 1.0), (10.0, 0.0), (7.0, 0.9)]) == (
        (10.0, 0.0), (8.0, 1.0), (0.0, 2.0),
    )  # fmt: skip


def test_decode_and_prefill_of_the_same_tokens_are_told_apart() -> None:
    model = StepModel(QWEN, H200)
    decode, prefill = StepShape.decode(512, 512), StepShape.mixed([512], [512])
    assert model.itl_us("eager", prefill) < model.itl_us("eager", decode)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'graph'"):
        StepModel(QWEN, H200).itl_us("graph", StepShape.decode(1, 1))  # type: ignore[arg-type]


def test_padded_requests_cost_the_engine_nothing() -> None:
    """A graph of 256 rows for nine requests: the GPU computes 256, Python serves nine."""
    model, keys = StepModel(QWEN, H200), 9 * 512
    padded = StepShape(256, 256, keys, keys, real_reqs=9)
    took_us = model.itl_us("full", padded)
    assert took_us < model.itl_us("full", StepShape(256, 256, keys, keys)) / 2
    highest = max(us + per_key * keys for us, per_key in model.lines("full", 256, 256, 9))
    assert highest == pytest.approx(took_us)
