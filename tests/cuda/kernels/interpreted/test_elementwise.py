"""norm.py, activation.py and rope.py, and the guard of the interpreter itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from labs.support.interpreter import round_to_bf16
from mini_engine.cuda.kernels import activation, norm, rope
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, assert_close, rotary

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


# ---- the guard


@triton.jit
def careless_kernel(out, x, reduces: tl.constexpr):
    at = tl.arange(0, 8)
    value = tl.load(x + at)  # bf16, and not widened
    tl.store(out + at, tl.sum(value, axis=0) + value * 0 if reduces else value + value)


@pytest.mark.parametrize("reduces", [False, True])
def test_arithmetic_on_bf16_raises_instead_of_adding_bit_patterns(reduces: bool) -> None:
    x = torch.ones(8, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="garbage in the interpreter"):
        careless_kernel[(1,)](x, x, reduces)


@triton.jit
def number_kernel(out, x, multiplies: tl.constexpr):
    at = tl.arange(0, 8)
    value = tl.load(x + at)
    tl.store(out + at, value * 0.5 if multiplies else tl.where(at < 4, value, 0.3))


def test_a_number_beside_a_bf16_tile_is_bf16_and_may_not_be_multiplied_with_it() -> None:
    x = torch.ones(8, dtype=torch.bfloat16)
    out = torch.zeros_like(x)
    number_kernel[(1,)](out, x, multiplies=False)
    assert torch.equal(out, torch.tensor([1.0] * 4 + [0.3] * 4, dtype=torch.bfloat16))
    with pytest.raises(Exception, match="create_fmul on bf16 is garbage in the interpreter"):
        number_kernel[(1,)](out, x, multiplies=True)


@triton.jit
def dot_kernel(out, a, b):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def test_dot_of_bf16_is_the_float32_product_of_its_operands() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 16, 16).bfloat16()
    out = torch.empty(16, 16)
    dot_kernel[(1,)](out, a, b)
    torch.testing.assert_close(out, a.float() @ b.float())


def test_the_cast_to_bf16_rounds_as_torch_does() -> None:
    values = torch.cat([torch.randn(4096) * 1e3, torch.tensor([0.0, -0.0, NAN, 1e39, 1.00390625])])
    ours = torch.from_numpy(round_to_bf16(values.numpy()).view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(ours, values.bfloat16(), rtol=0, atol=0, equal_nan=True)


# ---- norm


@both
@pytest.mark.parametrize(("rows", "width"), [(3, 64), (1, 100), (2, 1025)])
def test_rms_norm_equals_its_reference(dtype: torch.dtype, rows: int, width: int) -> None:
    torch.manual_seed(width)
    x, weight = torch.randn(rows, width).to(dtype), torch.rand(width).to(dtype)
    out = torch.full_like(x, NAN)
    norm.rms_norm(out, x, weight, 1e-6)
    assert_close(out, norm.rms_norm_reference(x, weight, 1e-6))


@both
def test_the_fused_addition_and_norm_equal_their_reference(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, residual = torch.randn(2, 3, 96).to(dtype) * 3
    weight = torch.rand(96).to(dtype)
    out, naive_residual = torch.full_like(x, NAN), residual + x
    norm.add_rms_norm(out, residual, x, weight, 1e-5)
    naive_out = norm.rms_norm_reference(naive_residual, weight, 1e-5)
    torch.testing.assert_close(residual, naive_residual, rtol=0, atol=0)  # one addition, one round
    assert_close(out, naive_out)
    if dtype == torch.bfloat16:  # the norm must see the rounded sum: else a third of these differ
        assert (out == naive_out).float().mean() > 0.97


# ---- activation


@both
@pytest.mark.parametrize("width", [64, 100, 1030])
def test_silu_mul_equals_its_reference(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(width)
    gate_up = torch.randn(2, 2 * width).to(dtype) * 4
    out = torch.full((2, width), NAN, dtype=dtype)
    activation.silu_mul(out, gate_up)
    assert_close(out, activation.silu_mul_reference(gate_up))


# ---- rope


@both
@pytest.mark.parametrize(
    ("heads", "qk_norm"),
    [(Heads(4, 2, 32, 5), True), (Heads(3, 3, 16, 4), False), (Heads(2, 1, 128, 16), True)],
)
def test_rope_kv_write_equals_its_reference(
    dtype: torch.dtype, heads: Heads, qk_norm: bool
) -> None:
    torch.manual_seed(heads.head_dim)
    tokens = 4
    qkv = torch.randn(tokens, heads.qkv_size).to(dtype)
    positions = torch.tensor([7, 0, 200, 0], dtype=torch.int32)
    slot_mapping = torch.tensor([13, 6, 19, 0], dtype=torch.int32)  # the last row is padding
    cos, sin = rotary(heads.head_dim)
    weights = [torch.rand(heads.head_dim).to(dtype) for _ in range(2)] if qk_norm else [None, None]
    q = torch.full((tokens, heads.num_heads * heads.head_dim), NAN, dtype=dtype)
    shape = (6, heads.block_size, heads.num_kv_heads, heads.head_dim)
    k_cache, v_cache = torch.full(shape, 9.0, dtype=dtype), torch.full(shape, 9.0, dtype=dtype)
    rope.rope_kv_write(
        q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, *weights, eps=1e-6
    )
    expected_q, keys, values = rope.rope_reference(heads, qkv, positions, cos, sin, *weights, 1e-6)
    assert_close(q, expected_q.flatten(1))
    written = slot_mapping.long()
    assert_close(k_cache.flatten(0, 1)[written], keys)
    torch.testing.assert_close(v_cache.flatten(0, 1)[written], values, rtol=0, atol=0)
    untouched = [slot for slot in range(6 * heads.block_size) if slot not in written]
    assert (k_cache.flatten(0, 1)[untouched] == 9.0).all()
    assert (v_cache.flatten(0, 1)[untouched] == 9.0).all()


def test_rope_turns_a_pair_by_its_angle_and_leaves_its_length() -> None:
    """Independent of the reference: pair i of a head is (x[i], x[i + D/2]), as a complex number."""
    heads, (cos, sin) = Heads(1, 1, 16, 4), rotary(16)
    qkv = torch.randn(1, heads.qkv_size)
    q, cache = torch.empty(1, 16), torch.zeros(2, 4, 1, 16)
    position = torch.tensor([5], dtype=torch.int32)
    rope.rope_kv_write(q, cache, cache.clone(), qkv, position, position, cos, sin)
    before = torch.complex(qkv[0, :8], qkv[0, 8:16])
    after = torch.complex(q[0, :8], q[0, 8:])
    torch.testing.assert_close(after, before * torch.complex(cos[5], sin[5]))
