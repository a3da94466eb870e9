"""FastStep says what the recursion says, of every model, engine and way to launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.step.fast_step import FastStep
from mini_engine.step.figures import names
from mini_engine.step.hardware import DeviceSpec, load_spec
from mini_engine.step.oplists import STYLES, StepShape, step_ops
from mini_engine.step.step_cost import MODES, Mode, step_time
from mini_engine.step.step_model import StepModel

DEEP = 1 << 20  # the queue that FastStep leaves out

models = st.sampled_from(sorted(SHAPES)).map(SHAPES.get)
specs = st.builds(
    lambda *chosen: replace(load_spec(*chosen), queue_depth=DEEP),
    st.sampled_from(names("card")),
    st.sampled_from(names("host")),
    st.sampled_from(names("engine")),
)
shapes = st.builds(StepShape.decode, st.integers(1, 512), st.integers(1, 40_000))


@given(models, specs, shapes, st.sampled_from(STYLES), st.sampled_from(MODES))
def test_arrays_give_the_itl_of_the_step_model(
    config: ModelConfig, spec: DeviceSpec, shape: StepShape, style: str, mode: Mode
) -> None:
    fast = FastStep(config, shape, style, mode).itl_us(spec)
    # 1e-9: the same additions in another order
    assert fast == pytest.approx(StepModel(config, spec, style).itl_us(mode, shape), rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("model", sorted(SHAPES))
def test_every_model_style_and_mode_is_the_recursion_counted_out(
    model: str, style: str, mode: Mode
) -> None:
    config, shape = SHAPES[model], StepShape.decode(3, 700)
    spec = replace(load_spec("rtx4090"), queue_depth=DEEP)
    counted = step_time(step_ops(config, shape, style), spec, mode, shape.num_reqs)
    assert FastStep(config, shape, style, mode).itl_us(spec) == pytest.approx(counted.itl_us)


def test_one_step_is_asked_for_many_specs() -> None:
    """What a fit does: the ops stay, the figures move."""
    step = FastStep(SHAPES["qwen3-0.6b"], StepShape.decode(1, 512), "fused9", "eager")
    spec = load_spec("h200")
    fast, slow = (step.itl_us(replace(spec, cpu_op_us=us)) for us in (10.0, 20.0))
    assert slow - fast == pytest.approx(257 * 10.0, rel=1e-3)
