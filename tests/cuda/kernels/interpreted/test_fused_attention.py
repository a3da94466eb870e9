"""fused_attention.py. Every cache row that nobody may read is NaN."""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels.fused_attention import attention_options, num_splits
from mini_engine.cuda.kernels.paged import Heads
from tests.support.attention_cases import FusedBatch
from tests.support.kernel_cases import assert_close

# Heads, contexts, splits, norms of q and k. Groups of 1, 2, 4 and 7 heads; blocks that fill no
# tile; 0 is a padded row. Contexts around a tile of 64 and around what the splits hold at once, so
# that the loop runs not at all, once and twice.
CASES = [
    (Heads(1, 1, 32, 7), [1, 0, 32, 33, 34, 65], 3, True),
    (Heads(4, 2, 64, 5), [1, 0, 37, 70], 2, False),
    (Heads(4, 2, 128, 16), [64, 65, 66], 2, True),
    (Heads(4, 1, 64, 16), [129, 130, 0, 193], 3, False),
    (Heads(7, 1, 64, 5), [2, 64, 97], 4, True),
]


def check(batch: FusedBatch, splits: int) -> None:
    out, k_cache, v_cache = batch.expected()
    got = batch.run(splits)
    kv, current = batch.kv, batch.current
    assert_close(got, out, terms=64)
    assert_close(kv.k_cache.flatten(0, 1)[current], k_cache.flatten(0, 1)[current])
    torch.testing.assert_close(kv.v_cache, v_cache, rtol=0, atol=0, equal_nan=True)
    assert kv.k_cache.isnan().equal(k_cache.isnan())  # and nothing else was stored


@pytest.mark.parametrize(("heads", "contexts", "splits", "qk_norm"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_fused_kernel_equals_rope_then_attention(
    dtype: torch.dtype, heads: Heads, contexts: list[int], splits: int, qk_norm: bool
) -> None:
    if dtype == torch.float32 and heads.head_dim > 64:
        pytest.skip("the slowest shape once is enough")
    check(FusedBatch.random(heads, contexts, dtype, qk_norm=qk_norm), splits)


def test_more_splits_than_tiles_and_a_group_too_large_to_combine_together() -> None:
    """7 heads · 32 splits · 128 numbers do not fit registers: they are combined one by one."""
    check(FusedBatch.random(Heads(7, 1, 128, 16), [100], torch.bfloat16, qk_norm=False), 17)


def test_the_kernel_can_be_launched_again_and_its_rows_do_not_depend_on_each_other() -> None:
    """The counters go back to zero, storing the same K and V again changes nothing, and a padded
    row gets zeros."""
    batch = FusedBatch.random(Heads(2, 1, 32, 4), [18, 0, 40], torch.float32, qk_norm=False)
    first = batch.run(3)
    torch.testing.assert_close(batch.run(3), first, rtol=0, atol=0)
    assert (first[1] == 0).all()
    batch.kv.context_lens[0] = 0
    alone = batch.run(3)
    torch.testing.assert_close(alone[2], first[2], rtol=0, atol=0)
    assert (alone[0] == 0).all()


def test_the_current_token_needs_a_split_beside_that_of_the_past() -> None:
    batch = FusedBatch.random(Heads(2, 1, 32, 4), [18], torch.float32, qk_norm=False)
    with pytest.raises(ValueError, match="splits is 1, expected 2 to 32"):
        batch.run(1)


# ---------------------------------------------------------------- what a launch is made of


@pytest.mark.parametrize(("context", "requests", "splits"),
                         [(1, 1, 2), (65, 1, 2), (66, 1, 3), (560, 1, 10), (8192, 1, 32),
                          (8192, 4, 16), (8192, 200, 2)])  # fmt: skip
def test_there_is_a_split_for_each_tile_as_far_as_programs_and_the_combine_allow(
    context: int, requests: int, splits: int
) -> None:
    assert num_splits(context, requests, 8, 528) == splits


@pytest.mark.parametrize(("splits", "room", "one"), [(10, 560, True), (9, 560, False)])
def test_only_where_the_tiles_cover_the_room_there_is_no_loop(
    splits: int, room: int, one: bool
) -> None:
    assert attention_options(Heads(16, 8, 128, 16), splits, room)["ONE_TILE"] == one
