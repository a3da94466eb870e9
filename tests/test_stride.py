"""Claims about the closed form of many decode steps: it equals the steps one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.metrics import LogHistogram
from mini_engine.stride import Stride

strides = st.builds(
    Stride,
    cpu_us=st.floats(1.0, 500.0),
    gpu_us=st.floats(1.0, 500.0),
    growth_us=st.one_of(st.just(0.0), st.floats(1e-4, 5.0)),
)


def one_by_one(stride: Stride, steps: int) -> list[float]:
    return [max(stride.cpu_us, stride.gpu_us + j * stride.growth_us) for j in range(steps)]


@given(stride=strides, steps=st.integers(1, 600))
def test_the_time_of_k_steps_is_the_sum_of_the_steps(stride: Stride, steps: int) -> None:
    # 600 additions in another order: at most 600 roundings of 1e-16 each
    assert stride.total_us(steps) == pytest.approx(sum(one_by_one(stride, steps)), rel=1e-12)
    gpu = sum(stride.gpu_us + j * stride.growth_us for j in range(steps))
    assert stride.gpu_total_us(steps) == pytest.approx(gpu, rel=1e-12)


@given(stride=strides, us=st.floats(0.0, 200_000.0))
def test_steps_until_is_the_first_step_that_gets_there(stride: Stride, us: float) -> None:
    steps = stride.steps_until(us)
    assert steps >= 1
    assert stride.total_us(steps) >= us
    assert steps == 1 or stride.total_us(steps - 1) < us


@pytest.mark.parametrize(
    ("us", "steps"), [(0.0, 1), (10.0, 1), (10.1, 2), (20.0, 2), (30.0, 3), (42.0, 4), (42.1, 5)]
)
def test_a_moment_on_the_border_belongs_to_the_step_that_ends_there(us: float, steps: int) -> None:
    # 10, 10, 10, then 12, 14, …
    assert Stride(cpu_us=10.0, gpu_us=6.0, growth_us=2.0).steps_until(us) == steps


@given(stride=strides, steps=st.integers(1, 300), weight=st.integers(1, 20))
def test_the_histogram_of_a_stride_is_that_of_its_steps(
    stride: Stride, steps: int, weight: int
) -> None:
    closed, stepped = LogHistogram(), LogHistogram()
    stride.add_to(closed, steps, weight)
    for us in one_by_one(stride, steps):
        stepped.add(us, weight)
    assert closed.count == stepped.count
    assert closed.total == pytest.approx(stepped.total, rel=1e-12)
    # The ramp starts at gpu + flat * growth, not at gpu: the last digit may differ.
    assert closed.min == pytest.approx(stepped.min, rel=1e-12)
    assert closed.max == pytest.approx(stepped.max, rel=1e-12)
    for percent in (1, 50, 99):
        # … and so a value on the very edge of a bin may land in its neighbour, 0.5% away
        assert closed.percentile(percent) == pytest.approx(stepped.percentile(percent), rel=0.0051)
