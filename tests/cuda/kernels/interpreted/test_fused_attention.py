"""fused_attention.py and its alternatives. Every cache row that nobody may read is NaN."""

from __future__ import annotations

import os

import pytest
import torch

from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.kernels.plans import BASE
from tests.support.attention_cases import FusedBatch
from tests.support.kernel_cases import assert_close

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
TYPES = [torch.float32, torch.bfloat16]
# heads, contexts (not multiples of the block or the tile; 0 is a padded row), splits
CASES = [
    (Heads(4, 2, 64, 5), [1, 0, 37, 70], 2),
    (Heads(6, 1, 128, 16), [65], 1),
    (Heads(2, 2, 32, 7), [33, 32, 31], 5),
]


def check(batch: FusedBatch, splits: int, plan: str) -> None:
    out, k_cache, v_cache = batch.expected()
    got = batch.run(splits, plan)
    kv, current = batch.kv, batch.current
    assert_close(got, out, terms=64)
    assert_close(kv.k_cache.flatten(0, 1)[current], k_cache.flatten(0, 1)[current])
    torch.testing.assert_close(kv.v_cache, v_cache, rtol=0, atol=0, equal_nan=True)
    assert kv.k_cache.isnan().equal(k_cache.isnan())  # and nothing else was stored


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize(("heads", "contexts", "splits"), CASES)
def test_the_fused_kernel_equals_rope_then_attention(
    dtype: torch.dtype, heads: Heads, contexts: list[int], splits: int, qk_norm: bool
) -> None:
    if qk_norm and heads.head_dim == 128:
        pytest.skip("the slowest shape once is enough")
    check(FusedBatch.random(heads, contexts, dtype, qk_norm=qk_norm), splits, BASE)


# ---- the alternatives

# Of a group of 1, 2, 4 and 7 heads; contexts around a tile of 32 and one of 64 and around what the
# splits hold at once, so that loops run not at all, once and twice.
OTHERS = [
    (Heads(1, 1, 32, 7), [1, 0, 32, 33, 34, 65], 3, True),
    (Heads(4, 2, 128, 16), [64, 65, 66], 2, True),
    (Heads(4, 1, 64, 16), [129, 130, 0, 193], 3, False),
    (Heads(7, 1, 64, 5), [2, 64, 97], 4, True),
]


@pytest.mark.parametrize("plan", ["attention", "attention-apart"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("heads", "contexts", "splits", "qk_norm"), OTHERS)
def test_every_plan_equals_rope_then_attention(
    plan: str, dtype: torch.dtype, heads: Heads, contexts: list[int], splits: int, qk_norm: bool
) -> None:
    smallest = heads.head_dim == 32
    if not SLOW and dtype == torch.float32 and not (smallest and plan == "attention-apart"):
        pytest.skip("in float32 the smallest shape of one plan is enough")
    check(FusedBatch.random(heads, contexts, dtype, qk_norm=qk_norm), splits, plan)


def test_more_splits_than_tiles_and_a_group_too_large_to_combine_together() -> None:
    """7 heads · 32 splits · 128 numbers do not fit registers: they are combined one by one."""
    batch = FusedBatch.random(Heads(7, 1, 128, 16), [100], torch.bfloat16, qk_norm=False)
    for plan in ("attention", "attention-apart") if SLOW else ("attention-apart",):
        check(batch.copy(), 17, plan)


@pytest.mark.parametrize("plan", [BASE, "attention", "attention-apart"])
def test_the_kernel_can_be_launched_again_and_its_rows_do_not_depend_on_each_other(
    plan: str,
) -> None:
    """The counters go back to zero, storing the same K and V again changes nothing, and a padded
    row gets zeros."""
    batch = FusedBatch.random(Heads(2, 1, 32, 4), [18, 0, 40], torch.float32, qk_norm=False)
    first = batch.run(3, plan)
    torch.testing.assert_close(batch.run(3, plan), first, rtol=0, atol=0)
    assert (first[1] == 0).all()
    batch.kv.context_lens[0] = 0
    alone = batch.run(3, plan)
    torch.testing.assert_close(alone[2], first[2], rtol=0, atol=0)
    assert (alone[0] == 0).all()


def test_a_current_token_that_is_apart_needs_a_second_split() -> None:
    batch = FusedBatch.random(Heads(2, 1, 32, 4), [18], torch.float32, qk_norm=False)
    with pytest.raises(ValueError, match="splits is 1, expected 2 to 32"):
        batch.run(1, "attention-apart")
