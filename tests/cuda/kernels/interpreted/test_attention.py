"""attention.py. Every cache row that nobody may read is NaN."""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels import attention
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, Paged, assert_close, paged

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# heads, contexts (not multiples of the block or the tile; 0 is a padded row), splits
CASES = [
    (Heads(4, 2, 64, 5), [1, 0, 37, 70], 2),
    (Heads(6, 1, 128, 16), [65], 1),
    (Heads(2, 2, 32, 7), [33, 32, 31], 5),
]
cases = pytest.mark.parametrize(("heads", "contexts", "splits"), CASES)


def batch(heads: Heads, contexts: list[int], dtype: torch.dtype) -> tuple[torch.Tensor, Paged]:
    torch.manual_seed(sum(contexts))
    q = torch.randn(len(contexts), heads.num_heads * heads.head_dim).to(dtype)
    return q, paged(contexts, heads.num_kv_heads, heads.head_dim, heads.block_size, dtype)


def decode(
    q: torch.Tensor, kv: Paged, splits: int, counters: torch.Tensor | None = None
) -> torch.Tensor:
    out = torch.full_like(q, NAN)
    if counters is None:
        counters = torch.zeros(len(q), kv.k_cache.shape[2], dtype=torch.int32)
    attention.decode_attention(
        out, counters, q, kv.k_cache, kv.v_cache, kv.block_table, kv.context_lens, splits
    )
    assert (counters == 0).all()
    return out


# ---- decode


@both
@cases
def test_split_decode_equals_its_reference(
    dtype: torch.dtype, heads: Heads, contexts: list[int], splits: int
) -> None:
    q, kv = batch(heads, contexts, dtype)
    expected = attention.decode_reference(
        q, kv.k_cache, kv.v_cache, kv.block_table, kv.context_lens
    )
    assert_close(decode(q, kv, splits), expected, terms=64)


def test_a_padded_row_gets_zeros_and_changes_no_other() -> None:
    heads = Heads(4, 2, 32, 5)
    q, kv = batch(heads, [40, 0, 7], torch.float32)
    out = decode(q, kv, 3)
    assert (out[1] == 0).all()
    for row in (0, 2):
        alone = Paged(
            kv.k_cache, kv.v_cache, kv.block_table[[row]], kv.context_lens[[row]], kv.slots
        )
        torch.testing.assert_close(decode(q[[row]], alone, 3)[0], out[row], rtol=0, atol=0)


def test_the_kernel_can_be_launched_again_with_the_counters_that_it_left() -> None:
    """As in a graph, layer after layer: the same bits, and the counters are zero again."""
    heads, contexts, splits = CASES[0]
    q, kv = batch(heads, contexts, torch.float32)
    counters = torch.zeros(len(contexts), heads.num_kv_heads, dtype=torch.int32)
    first = decode(q, kv, splits, counters)
    torch.testing.assert_close(decode(q, kv, splits, counters), first, rtol=0, atol=0)


def test_the_table_may_be_the_left_part_of_a_wider_one() -> None:
    """A graph for short contexts reads the first columns of the engine's table where they are."""
    heads, contexts, splits = CASES[2]
    q, kv = batch(heads, contexts, torch.float32)
    columns = kv.block_table.shape[1]
    wider = torch.cat([kv.block_table, torch.full((3, 4), 2**30, dtype=torch.int32)], dim=1)
    left = Paged(kv.k_cache, kv.v_cache, wider[:, :columns], kv.context_lens, kv.slots)
    torch.testing.assert_close(decode(q, left, splits), decode(q, kv, splits), rtol=0, atol=0)


def test_more_splits_than_tiles_leave_the_rest_idle() -> None:
    q, kv = batch(Heads(2, 1, 32, 4), [attention.TILE + 1], torch.float32)
    assert_close(decode(q, kv, 8), decode(q, kv, 1), terms=64)
