"""Claims about the closed form of many decode steps: it equals the steps one by one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mini_engine.serving.replay import Ramp, begun_before, ramps_of
from mini_engine.serving.report import LogHistogram
from mini_engine.step.step_model import Line

lines = st.lists(
    st.tuples(st.floats(1.0, 500.0), st.one_of(st.just(0.0), st.floats(1e-4, 5.0), st.just(0.5))),
    min_size=1,
    max_size=5,
)


def one_by_one(lines: list[Line], steps: int) -> list[float]:
    return [max(us + j * rise for us, rise in lines) for j in range(steps)]


def total(ramps: list[Ramp]) -> tuple[int, float]:
    """Steps, and the time that they take."""
    return sum(ramp.steps for ramp in ramps), sum(ramp.total_us(ramp.steps) for ramp in ramps)


@given(lines=lines, steps=st.integers(1, 600))
def test_the_time_of_k_steps_is_the_sum_of_the_steps(lines: list[Line], steps: int) -> None:
    ramps = ramps_of(lines, steps)
    # 600 additions in another order: at most 600 roundings of 1e-16 each
    assert total(ramps) == (steps, pytest.approx(sum(one_by_one(lines, steps)), rel=1e-12))
    assert len(ramps) <= len(lines)


@given(lines=lines, steps=st.integers(1, 600), us=st.floats(0.0, 200_000.0))
@example(lines=[(1.0, 2.0)], steps=1, us=0.0)  # a growth of twice the first step, and no time
def test_the_steps_that_begin_before_a_moment(lines: list[Line], steps: int, us: float) -> None:
    begins, now = 0, 0.0
    for step_us in one_by_one(lines, steps):
        if begins and now >= us:
            break
        begins, now = begins + 1, now + step_us
    found = total(begun_before(us, ramps_of(lines, steps)))
    assert found == (begins, pytest.approx(now, rel=1e-12))


@given(lines=lines, steps=st.integers(1, 300), weight=st.integers(1, 20))
def test_the_histogram_of_a_stride_is_that_of_its_steps(
    lines: list[Line], steps: int, weight: int
) -> None:
    closed, stepped = LogHistogram(), LogHistogram()
    for ramp in ramps_of(lines, steps):
        closed.add_ramp(*ramp, weight=weight)
    for us in one_by_one(lines, steps):
        stepped.add(us, weight)
    assert closed.count == stepped.count
    # A ramp starts in the middle of its chain, so its values may differ in the last digit.
    assert closed.min == pytest.approx(stepped.min, rel=1e-12)
    assert closed.max == pytest.approx(stepped.max, rel=1e-12)
    for percent in (1, 50, 99):
        # … and so a value on the very edge of a bin may land in its neighbour, 0.5% away
        assert closed.percentile(percent) == pytest.approx(stepped.percentile(percent), rel=0.0051)
