"""Random decode batches for the fused attention, and what it must leave behind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mini_engine.cuda.kernels import attention, fused_attention, rope
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, Paged, paged, rotary


@dataclass(frozen=True)
class FusedBatch:
    """The last position of each request is the current token: its rows of the cache are NaN until
    the kernel stores them."""

    heads: Heads
    kv: Paged
    qkv: Tensor
    norms: list[Tensor | None]
    current: list[int]  # its slot, of each request that is no padding

    @classmethod
    def random(
        cls, heads: Heads, contexts: list[int], dtype: torch.dtype, *, qk_norm: bool
    ) -> FusedBatch:
        torch.manual_seed(sum(contexts))
        kv = paged(contexts, heads.num_kv_heads, heads.head_dim, heads.block_size, dtype)
        current = [slots[-1] for slots in kv.slots if slots]
        for cache in (kv.k_cache, kv.v_cache):
            cache.flatten(0, 1)[current] = NAN
        qkv = torch.randn(len(contexts), heads.qkv_size).to(dtype)
        weights = [torch.rand(heads.head_dim).to(dtype) + 0.5 for _ in range(2)]
        norms = list(weights) if qk_norm else [None, None]
        return cls(heads, kv, qkv, norms, current)

    def copy(self) -> FusedBatch:
        """With a cache of its own: the kernel writes it."""
        kv = replace(self.kv, k_cache=self.kv.k_cache.clone(), v_cache=self.kv.v_cache.clone())
        return replace(self, kv=kv)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """out and both caches, from rope.py's reference and then attention.py's."""
        kv, lens = self.kv, self.kv.context_lens
        positions = (lens - 1).clamp(min=0)
        cos_sin = rotary(self.heads.head_dim)
        q, keys, values = rope.rope_reference(
            self.heads, self.qkv, positions, *cos_sin, *self.norms, 1e-6
        )
        live = lens > 0
        k_cache, v_cache = kv.k_cache.clone(), kv.v_cache.clone()
        k_cache.flatten(0, 1)[self.current] = keys[live]
        v_cache.flatten(0, 1)[self.current] = values[live]
        out = attention.decode_reference(q.flatten(1), k_cache, v_cache, kv.block_table, lens)
        return out, k_cache, v_cache

    def run(self, splits: int) -> Tensor:
        """Runs the kernel on this batch's cache, and returns out. Behind out stands a row that
        nobody may write."""
        kv, heads = self.kv, self.heads
        width = heads.num_heads * heads.head_dim
        both = torch.full((len(self.qkv) + 1, width), NAN).to(self.qkv.dtype)
        out = both[:-1]
        counters = torch.zeros(len(self.qkv), heads.num_kv_heads, dtype=torch.int32)
        fused_attention.rope_kv_write_attention(
            *(out, kv.k_cache, kv.v_cache, counters, self.qkv, kv.block_table, kv.context_lens),
            *(*rotary(heads.head_dim), splits, *self.norms),
        )
        assert (counters == 0).all()
        assert both[-1].isnan().all()
        return out
