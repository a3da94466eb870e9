"""step/speculation.py and its published points: what drafts buy, and how far off that is."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.step.speculation import head_of, speculated, tokens_a_step
from mini_engine.validate.points import draft_rows

SHAPE, SPEC = named_shape("qwen3-8b"), load_spec("h100")


@given(st.floats(0, 1), st.integers(0, 15))
def test_tokens_a_step_are_the_sum_that_leviathan_gives(accept: float, drafts: int) -> None:
    tokens = tokens_a_step(accept, drafts)
    if accept < 0.999:
        assert tokens == pytest.approx((1 - accept ** (drafts + 1)) / (1 - accept))
    assert 1 <= tokens <= drafts + 1


@pytest.mark.parametrize(("batch", "rows"), [(1, 4), (5, 24), (8, 32), (128, 512)])
def test_a_step_that_checks_is_one_graph_of_k_plus_one_rows_a_request(
    batch: int, rows: int
) -> None:
    """All of them give logits; padded requests have no keys."""
    found = speculated(SHAPE, SPEC, batch=batch, context=1000, drafts=3)
    assert found.rung == rows
    pairs = 4 * 1003 - 6
    shape = StepShape(rows, rows, batch * 1003, batch * pairs, batch)
    checked = step_time(step_ops(SHAPE, shape, SPEC.ops), SPEC, "full", batch)
    assert found.check_us == pytest.approx(checked.itl_us)


def test_above_the_ladder_the_step_is_eager() -> None:
    assert speculated(SHAPE, SPEC, batch=129, context=100, drafts=3).rung is None


def test_without_drafts_nothing_is_gained_or_lost() -> None:
    found = speculated(SHAPE, SPEC, batch=8, context=500, drafts=0)
    assert found.longer == 1
    assert found.pays_from == 0


@given(st.integers(1, 128), st.integers(1, 7), st.booleans())
def test_where_drafts_pay_they_are_faster_and_below_slower(
    batch: int, drafts: int, head: bool
) -> None:
    draft = head_of(SHAPE) if head else None
    found = speculated(SHAPE, SPEC, batch=batch, context=500, drafts=drafts, draft=draft)
    if found.pays_from is None:
        assert found.speedup(1.0) < 1
        return
    assert found.speedup(found.pays_from) >= 1
    if found.pays_from:
        assert found.speedup(found.pays_from - 1e-3) < 1
    assert found.tokens_s(1.0) == pytest.approx(batch * (drafts + 1) * 1e6 / found.drafts_us)


def test_a_busy_batch_asks_for_more_right_drafts_than_a_small_one() -> None:
    small, busy = (
        speculated(SHAPE, SPEC, batch=batch, context=500, drafts=3).pays_from or 1.0
        for batch in (1, 128)
    )
    assert small < 0.02 < 0.2 < busy


def test_published_steps_with_drafts_are_missed_by_no_more_than_is_said() -> None:
    """The course says by how much. The direction, too: the model takes products of few rows for
    free, and knows neither what the sampler nor what the host does for a draft."""
    rows = draft_rows()
    errors = [row.error for row in rows]
    assert len(rows) == 30
    assert len({row.point["source"] for row in rows}) == 5
    assert median(map(abs, errors)) == pytest.approx(0.13, abs=0.02)
    assert median(errors) > 0.1
    heads = [row for row in rows if row.point["id"] == "EAGLE llama-3.1-8b"]
    best = max(heads, key=lambda row: row.predicted).point["drafts"]
    assert best == max(heads, key=lambda row: row.measured).point["drafts"] == 3
