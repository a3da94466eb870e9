"""e4m3.py and the kernels on a cache in fp8. Rows that nobody may read hold the code of NaN, which
the kernels take for a number as large as any."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from mini_engine.cuda.fp8 import FP8, to_e4m3
from mini_engine.cuda.kernels import rope
from mini_engine.cuda.kernels.e4m3 import cached, numbers
from mini_engine.cuda.kernels.paged import Heads
from tests.support.attention_cases import FusedBatch
from tests.support.kernel_cases import NAN, assert_close, in_fp8, paged, rotary

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
BLOCK = 1024


@triton.jit
def through_the_cache_kernel(codes, read, x, scale, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    code = cached(tl.load(x + at), tl.load(scale), tl.int8)
    tl.store(codes + at, code)
    tl.store(read + at, numbers(code, tl.float32))


def test_every_code_tie_and_neighbour_is_rounded_and_read_as_torch_does() -> None:
    """All numbers of e4m3, what lies halfway between two, one float32 to each side of that, numbers
    of all sizes, and some far beyond the range."""
    torch.manual_seed(0)
    every = torch.arange(256).to(torch.uint8).view(FP8).float()
    every = every[~every.isnan()].sort().values
    ties = (every[1:] + every[:-1]) / 2
    beside = [torch.nextafter(ties, torch.tensor(limit)) for limit in (1e9, -1e9)]
    wild = torch.randn(4 * BLOCK) * torch.exp(4 * torch.randn(4 * BLOCK))
    beyond = torch.tensor([448.0, 464.0, 480.0, -465.0, 1e30, -torch.inf, 0.0, -0.0, 1e-40])
    x = torch.cat([every, ties, *beside, wild, beyond])
    x = torch.nn.functional.pad(x, (0, -len(x) % BLOCK))
    codes, read = torch.empty(len(x), dtype=torch.int8), torch.empty(len(x))
    for scale in (torch.tensor([1.0]), torch.tensor([0.25])):
        through_the_cache_kernel[(len(x) // BLOCK,)](codes, read, x, scale, BLOCK)
        wanted = to_e4m3(x[:, None, None], scale)[:, 0, 0]
        assert torch.equal(codes, wanted.view(torch.int8))
        assert torch.equal(read, wanted.float())
        assert read.abs().max() == 448


@both
@pytest.mark.parametrize("qk_norm", [True, False])
def test_rope_writes_codes_of_the_scales_of_the_heads(dtype: torch.dtype, qk_norm: bool) -> None:
    torch.manual_seed(3)
    heads, slots = Heads(4, 2, 32, 5), torch.tensor([13, 6, 19], dtype=torch.int32)
    qkv = torch.randn(3, heads.qkv_size).to(dtype)
    weights = [torch.rand(32).to(dtype) for _ in range(2)] if qk_norm else [None, None]
    empty, scales = in_fp8(paged([20], 2, 32, 5, dtype))
    q = torch.full((3, 128), NAN, dtype=dtype)
    positions = torch.tensor([7, 0, 200], dtype=torch.int32)
    rope.rope_kv_write(
        *(q, empty.k_cache, empty.v_cache, qkv, positions, slots, *rotary(32), *weights),
        kv_scales=scales,
    )
    wanted_q, *kv = rope.rope_reference(heads, qkv, positions, *rotary(32), *weights, 1e-6)
    assert_close(q, wanted_q.flatten(1))
    for cache, new, scale in zip((empty.k_cache, empty.v_cache), kv, scales, strict=True):
        # float32 before the cast may differ in its last bit, and a code then by one
        stored = cache.flatten(0, 1)[slots.long()].view(torch.int8).int()
        off = (stored - to_e4m3(new, scale).view(torch.int8).int()).abs()
        assert off.max() <= 1
        assert (off > 0).sum() <= 1


@both
def test_the_fused_kernel_on_codes_equals_rope_then_attention(dtype: torch.dtype) -> None:
    """It sees the current token as it stores it."""
    batch = FusedBatch.random(Heads(4, 2, 64, 5), [1, 0, 37, 70], dtype, qk_norm=True, fp8=True)
    out, *caches = batch.expected()
    assert_close(batch.run(2), out, terms=64)
    for ours, wanted in zip((batch.kv.k_cache, batch.kv.v_cache), caches, strict=True):
        assert torch.equal(ours.view(torch.int8), wanted.view(torch.int8))
