"""Sharing a pool and capturing the largest first: what each saves on a full-size model."""

from __future__ import annotations

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import named_shape
from mini_engine.sim.pools import pool_bytes
from mini_engine.step.cards import load_spec

SHAPE, SPEC = named_shape("qwen3-0.6b"), load_spec("h200")


def test_one_pool_largest_first_costs_hardly_more_than_the_largest_rung_alone() -> None:
    sizes = default_capture_sizes(256, 8192)
    ways = pool_bytes(SHAPE, SPEC, sizes)
    alone = pool_bytes(SHAPE, SPEC, [max(sizes)]).apart
    assert alone <= ways.largest_first <= 1.1 * alone
    assert ways.largest_first < ways.ascending <= ways.apart
    assert ways.apart > 10 * ways.largest_first


def test_with_one_rung_there_is_nothing_to_share() -> None:
    ways = pool_bytes(SHAPE, SPEC, [64])
    assert ways.largest_first == ways.ascending == ways.apart
