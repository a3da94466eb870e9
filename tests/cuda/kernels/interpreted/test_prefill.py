"""prefill.py. Every cache row that nobody may read is NaN, and so are the padded rows of q."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mini_engine.cuda.kernels import paged as paging
from mini_engine.cuda.kernels import prefill
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, Paged, assert_close, paged

UNTOUCHED = 9.0
Chunk = tuple[int, int]  # cached tokens, tokens of this step; no tokens: a padded request


def launched(q: Tensor, kv: Paged, query_lens: list[int]) -> tuple[Tensor, Tensor]:
    """What the kernel writes, and its reference."""
    outs = torch.full_like(q, UNTOUCHED), torch.full_like(q, UNTOUCHED)
    lens = torch.tensor(query_lens, dtype=torch.int32)
    inputs = (q, kv.k_cache, kv.v_cache, kv.block_table, lens, kv.context_lens)
    prefill.prefill_attention(outs[0], *inputs)
    paging.attention_reference(outs[1], *inputs)
    return outs


def check(heads: Heads, chunks: list[Chunk], dtype: torch.dtype, padding: int = 2) -> None:
    """The kernel equals its reference on these chunks, and leaves padded rows alone."""
    query_lens = [new for _, new in chunks]
    contexts = [cached + new if new else 0 for cached, new in chunks]
    torch.manual_seed(sum(contexts))
    kv = paged(contexts, heads.num_kv_heads, heads.head_dim, heads.block_size, dtype)
    q = torch.randn(sum(query_lens) + padding, heads.num_heads * heads.head_dim).to(dtype)
    q[len(q) - padding :] = NAN
    out, expected = launched(q, kv, query_lens)
    assert_close(out, expected, terms=64)
    assert (out[len(q) - padding :] == UNTOUCHED).all()


def small_tiles(*_: Any, **__: Any) -> dict[str, int]:
    """So that a few tokens have edges of every kind."""
    return {"ROWS": 16, "TILE": 16, "num_warps": 1, "STAGES": 3, "LAST_STAGES": 1}


@settings(max_examples=max(1, settings.default.max_examples // 12))  # a program takes milliseconds
@given(
    chunks=st.lists(st.tuples(st.integers(0, 34), st.integers(0, 11)), min_size=1, max_size=3)
    .filter(lambda chunks: any(new for _, new in chunks)),
    group=st.sampled_from([1, 2, 3, 7]),
    kv_heads=st.integers(1, 2),
    block_size=st.sampled_from([1, 5, 16, 32]),
)  # fmt: skip
def test_any_mix_of_chunks_decodes_and_padding_equals_its_reference(
    chunks: list[Chunk], group: int, kv_heads: int, block_size: int
) -> None:
    with patch.object(prefill, "tile_options", small_tiles):
        check(Heads(group * kv_heads, kv_heads, 16, block_size), chunks, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contexts_that_end_at_the_edge_of_a_tile_and_queries_that_do_not_fill_one(
    dtype: torch.dtype,
) -> None:
    """With the tiles of a GPU: in bf16 128 rows, 64 tokens of two heads, and 64 keys."""
    chunks = [(63, 1), (64, 1), (0, 1), (0, 64), (0, 0), (1, 65), (63, 63), (64, 2)]
    check(Heads(2, 1, 32, 16), chunks, dtype)
