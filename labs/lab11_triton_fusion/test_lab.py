"""Lab 11: four fused kernels. What you write runs in Triton's interpreter and is held against
float64 arithmetic; around every tensor lie rows that nobody may read (NaN) or write."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from mini_engine.cuda.kernels import activation, norm, rope
from mini_engine.cuda.kernels.fp8 import to_e4m3
from mini_engine.cuda.kernels.paged import Heads

NAN = float("nan")
BF16, F32 = torch.bfloat16, torch.float32
WIDTHS = (64, 100, 33)  # a power of two, and two that are not


def fenced(rows: Tensor, fill: float = NAN) -> tuple[Tensor, Tensor]:
    """(a copy of `rows` that lies between two rows full of `fill`, those two rows)."""
    whole = torch.full((len(rows) + 2, *rows.shape[1:]), fill, dtype=rows.dtype)
    whole[1:-1] = rows
    return whole[1:-1], whole[:: len(rows) + 1]


def empty_like(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a result: NaN inside, 9 in the rows around it."""
    return fenced(torch.full_like(rows, NAN), fill=9.0)


def assert_equal(got: Tensor, wanted: Tensor, what: str) -> None:
    """Up to the order of a float32 sum, or in bf16 one rounding of the exact result (8 bits)."""
    bits = {F32: (2e-5, 1e-6), BF16: (2**-7, 1e-6)}[got.dtype]

    def said(text: str) -> str:
        return f"{what} is off\n{text}"

    torch.testing.assert_close(got.double(), wanted, rtol=bits[0], atol=bits[1], msg=said)


def assert_same(got: Tensor, wanted: Tensor, what: str) -> None:
    """To the last bit."""
    torch.testing.assert_close(
        got, wanted, rtol=0, atol=0, msg=lambda text: f"{what} is off\n{text}"
    )


def assert_untouched(around: Tensor, what: str) -> None:
    assert_same(around, torch.full_like(around, 9.0), f"what lies beyond {what}")


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Line by line what RMSNorm says, in float64."""
    wide = x.double()
    return wide / ((wide * wide).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


# ---------------------------------------------------------------- norms


def norm_case(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x and residual (rows, width), weight (width,), with NaN around each."""
    torch.manual_seed(rows * 1000 + width)
    x, residual = (fenced(torch.randn(rows, width).to(dtype) * 3)[0] for _ in range(2))
    weight, _ = fenced(torch.rand(1, width).to(dtype) + 0.5)
    return x, residual, weight[0]


@pytest.mark.catches("mean-over-the-block")
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_divides_a_row_by_the_root_of_its_mean_square(width: int) -> None:
    x, _, weight = norm_case(3, width, F32)
    out, _ = empty_like(x)
    norm.rms_norm(out, x, weight, 1e-6)
    assert_equal(out, exact_norm(x, weight, 1e-6), "out")


@pytest.mark.catches("eps-outside-the-root")
def test_eps_stands_under_the_root_beside_the_mean() -> None:
    x, residual, weight = norm_case(2, 48, F32)
    for size in (0.0, 0.01, 0.3):
        (small, _), (other, _), (out, _) = fenced(x * size), fenced(residual * size), empty_like(x)
        norm.rms_norm(out, small, weight, 0.01)
        assert_equal(out, exact_norm(small, weight, 0.01), f"out, eps 0.01, size {size}")
        total = other + small
        norm.add_rms_norm(out, other, small, weight, 0.01)
        assert_equal(out, exact_norm(total, weight, 0.01), f"out, eps 0.01, size {size}")


@pytest.mark.catches("residual-not-written-back", "norm-before-the-addition")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_fused_kernel_leaves_the_sum_and_the_norm_of_the_sum(width: int) -> None:
    x, residual, weight = norm_case(2, width, F32)
    out, _ = empty_like(x)
    total = residual.double() + x.double()
    norm.add_rms_norm(out, residual, x, weight, 1e-5)
    assert_equal(residual, total, "residual")
    assert_equal(out, exact_norm(total, weight, 1e-5), "out")


@pytest.mark.catches("bf16-arithmetic")
def test_norms_of_bf16_are_computed_in_float32() -> None:
    for width in WIDTHS:
        x, residual, weight = norm_case(2, width, BF16)
        out, _ = empty_like(x)
        norm.rms_norm(out, x, weight, 1e-6)
        assert_equal(out, exact_norm(x, weight, 1e-6), "out of rms_norm")
        total = (residual.double() + x.double()).bfloat16()
        norm.add_rms_norm(out, residual, x, weight, 1e-6)
        assert_equal(residual, total.double(), "residual")
        assert_equal(out, exact_norm(total, weight, 1e-6), "out of add_rms_norm")


@pytest.mark.catches("norm-of-the-unrounded-sum")
def test_the_norm_sees_the_sum_as_the_next_layer_will_rounded() -> None:
    """Between 256 and 512 a bf16 is even: half of these sums are rounded."""
    torch.manual_seed(5)
    residual, _ = fenced((torch.randint(128, 254, (4, 96)) * 2).bfloat16())
    x, weight = torch.randint(0, 3, (4, 96)).bfloat16(), torch.ones(128).bfloat16()[:96]
    rounded = (residual.float() + x.float()).bfloat16()
    out, _ = empty_like(x)
    norm.add_rms_norm(out, residual, x, weight, 1e-6)
    wanted = exact_norm(rounded, weight, 1e-6).bfloat16()
    share = (out == wanted).float().mean().item()
    assert share > 0.95, "out is not the norm of the sum that is stored"


# ---------------------------------------------------------------- SiLU · mul


def exact_silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.catches("gate-and-up-swapped")
@pytest.mark.parametrize("width", [64, 100, 1030])
def test_silu_mul_gates_the_right_half_by_the_left(width: int) -> None:
    torch.manual_seed(width)
    gate_up, _ = fenced(torch.randn(2, 2 * width) * 4)
    out, _ = empty_like(gate_up[:, :width])
    activation.silu_mul(out, gate_up)
    assert_equal(out, exact_silu_mul(gate_up), "out")


@pytest.mark.catches("bf16-arithmetic")
def test_silu_mul_of_bf16_is_computed_in_float32() -> None:
    torch.manual_seed(7)
    gate_up, _ = fenced(torch.randn(3, 200).bfloat16() * 4)
    out, _ = empty_like(gate_up[:, :100])
    activation.silu_mul(out, gate_up)
    assert_equal(out, exact_silu_mul(gate_up), "out")


# ---------------------------------------------------------------- what lies around


@pytest.mark.catches("no-mask-at-the-end-of-a-row")
@pytest.mark.parametrize("width", [100, 33, 64])
def test_nothing_beyond_the_last_column_is_written(width: int) -> None:
    x, residual, weight = norm_case(2, width, F32)
    (out, around), (residual, beside) = empty_like(x), fenced(residual, fill=9.0)
    norm.rms_norm(out, x, weight, 1e-6)
    assert_untouched(around, "out of rms_norm")
    assert_equal(out, exact_norm(x, weight, 1e-6), "out")
    norm.add_rms_norm(out, residual, x, weight, 1e-6)
    assert_untouched(around, "out of add_rms_norm")
    assert_untouched(beside, "residual of add_rms_norm")
    gate_up, _ = fenced(torch.randn(2, 2 * width))
    activation.silu_mul(out, gate_up)
    assert_untouched(around, "out of silu_mul")
    assert_equal(out, exact_silu_mul(gate_up), "out")


# ---------------------------------------------------------------- RoPE and the KV write


class Step:
    """Some tokens on their way into the cache: random heads, scattered slots, NaN around them."""

    def __init__(
        self, heads: Heads, slots: list[int], *, qk_norm: bool, dtype: torch.dtype = F32
    ) -> None:
        torch.manual_seed(heads.head_dim + len(slots))
        tokens, dim = len(slots), heads.head_dim
        self.heads, self.eps = heads, 1e-3
        self.qkv, _ = fenced(torch.randn(tokens, heads.qkv_size).to(dtype))
        self.positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
        self.slots = torch.tensor(slots, dtype=torch.int32)
        angle = torch.arange(50)[:, None] * 100.0 ** -(torch.arange(dim // 2) * 2 / dim)
        self.cos, self.sin = angle.cos(), angle.sin()
        weights = [fenced(torch.rand(1, dim).to(dtype) + 0.5)[0][0] for _ in range(2)]
        self.weights = weights if qk_norm else [None, None]
        shape = (64 // heads.block_size, heads.block_size, heads.num_kv_heads, dim)
        self.k_cache, self.v_cache = (torch.full(shape, 9.0, dtype=dtype) for _ in range(2))
        self.q, self.around = fenced(
            torch.full((tokens, heads.num_heads * dim), NAN).to(dtype), 9.0
        )

    def run(self) -> Step:
        rope.rope_kv_write(
            *(self.q, self.k_cache, self.v_cache, self.qkv, self.positions, self.slots),
            *(self.cos, self.sin, *self.weights, self.eps),
        )
        return self

    def wanted(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (tokens, heads, D): a head as complex numbers (x[i], x[i + D/2]), turned."""
        parts = [self.heads.num_heads, *2 * [self.heads.num_kv_heads]]
        heads = self.qkv.unflatten(1, (-1, self.heads.head_dim))
        q, k, v = heads.split(parts, dim=1)
        where = self.positions.long()
        turn = torch.complex(self.cos[where].double(), self.sin[where].double())[:, None]
        turned = []
        for x, weight in zip((q, k), self.weights, strict=True):
            x = x.double() if weight is None else exact_norm(x, weight, self.eps)
            z = torch.complex(*x.chunk(2, dim=-1)) * turn
            turned.append(torch.cat([z.real, z.imag], dim=-1))
        return turned[0], turned[1], v

    def stored(self, cache: Tensor) -> Tensor:
        """(tokens, kv_heads, D): the rows of the slots."""
        return cache.flatten(0, 1)[self.slots.long()]


# with and without grouped queries; the last slots of a block, the first ones, far apart
SHAPES = [
    (Heads(4, 2, 32, 5), [29, 6]),
    (Heads(3, 3, 16, 4), [4, 23]),
    (Heads(6, 1, 16, 8), [8, 31]),
]
each_shape = pytest.mark.parametrize("shape", range(len(SHAPES)))


@cache
def ran(shape: int, qk_norm: bool, dtype: torch.dtype = F32) -> Step:
    """A step that has run. Several tests look at each: do not change it."""
    heads, slots = SHAPES[shape]
    return Step(heads, slots, qk_norm=qk_norm, dtype=dtype).run()


@pytest.mark.catches("position-for-slot")
@each_shape
def test_a_token_is_written_to_its_slot_and_nowhere_else(shape: int) -> None:
    step = ran(shape, False)
    for name, cached in (("k", step.k_cache), ("v", step.v_cache)):
        written = (cached.flatten(0, 1) != 9.0).flatten(1).any(dim=1).nonzero().flatten()
        wanted = sorted(SHAPES[shape][1])
        assert written.tolist() == wanted, f"slots of the {name} cache that were written"


@pytest.mark.catches("rotates-even-and-odd-columns")
@each_shape
def test_q_is_turned_by_the_halves_of_a_head(shape: int) -> None:
    for qk_norm in (False, True):
        step = ran(shape, qk_norm)
        assert_equal(step.q, step.wanted()[0].flatten(1), f"q, qk-norm {qk_norm},")
        assert_untouched(step.around, "q")


@pytest.mark.catches("caches-k-before-its-norm")
@each_shape
def test_the_cache_holds_k_normed_and_turned(shape: int) -> None:
    for qk_norm in (False, True):
        step = ran(shape, qk_norm)
        assert_equal(step.stored(step.k_cache), step.wanted()[1], f"cached k, qk-norm {qk_norm},")


@pytest.mark.catches("rotates-v")
@each_shape
def test_v_goes_into_the_cache_as_it_is_bit_by_bit(shape: int) -> None:
    step = ran(shape, True)
    assert_same(step.stored(step.v_cache), step.wanted()[2], "cached v")


def test_a_cache_in_fp8_gets_k_and_v_under_the_scales_of_their_heads() -> None:
    heads, slots = SHAPES[0]
    step = Step(heads, slots, qk_norm=False)
    scales = torch.tensor([[0.5, 0.125], [0.25, 2.0]])
    caches = [to_e4m3(c, s) for c, s in zip((step.k_cache, step.v_cache), scales, strict=True)]
    rope.rope_kv_write(
        *(step.q, *caches, step.qkv, step.positions, step.slots, step.cos, step.sin),
        kv_scales=scales,
    )
    for name, stored, new, scale in zip("kv", caches, step.wanted()[1:], scales, strict=True):
        read = step.stored(stored).float() * scale[:, None]
        wanted = to_e4m3(new.float(), scale).float() * scale[:, None]
        assert_same(read, wanted, f"cached {name}")


@pytest.mark.catches("bf16-arithmetic")
def test_heads_in_bf16_are_normed_and_turned_in_float32() -> None:
    for qk_norm in (False, True):
        step = ran(0, qk_norm, BF16)
        q, k, v = step.wanted()
        assert_equal(step.q, q.flatten(1), f"q, qk-norm {qk_norm},")
        assert_equal(step.stored(step.k_cache), k, f"cached k, qk-norm {qk_norm},")
        assert_same(step.stored(step.v_cache), v, "cached v")


@pytest.mark.catches("position-for-slot")
def test_padded_rows_write_to_the_null_block_and_change_no_live_row() -> None:
    heads, slots = SHAPES[0]
    alone = ran(0, True)
    padded = Step(heads, [*slots, 0, 0], qk_norm=True)
    live = len(slots)
    padded.qkv[:live], padded.positions[:live] = alone.qkv, alone.positions
    padded.qkv[live:], padded.positions[live:] = NAN, 0
    padded.weights = alone.weights
    padded.run()
    assert_same(padded.q[:live], alone.q, "q of the live rows")
    for cached, lonely in ((padded.k_cache, alone.k_cache), (padded.v_cache, alone.v_cache)):
        assert_same(cached[1:], lonely[1:], "what lies outside of block 0")


# ---------------------------------------------------------------- the kernel before


def before(fill: list[tuple[Tensor, Tensor]]) -> object:
    """A `pdl_wait` during which the kernel before writes its results: (target, value) pairs."""

    def wait(_pdl: object) -> None:
        for target, value in fill:
            target.copy_(value)
        fill.clear()

    return wait


@pytest.mark.catches("reads-before-the-wait")
def test_what_the_kernel_before_writes_is_read_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, residual, weight = norm_case(2, 48, F32)
    (out, _), (late, _), (later, _) = (empty_like(x) for _ in range(3))
    monkeypatch.setattr(norm, "pdl_wait", before([(late, x)]))
    norm.rms_norm(out, late, weight, 1e-6)
    assert_equal(out, exact_norm(x, weight, 1e-6), "out of rms_norm")
    late.fill_(NAN)
    monkeypatch.setattr(norm, "pdl_wait", before([(late, x), (later, residual)]))
    norm.add_rms_norm(out, later, late, weight, 1e-6)
    assert_equal(out, exact_norm(x + residual, weight, 1e-6), "out of add_rms_norm")

    gate_up, _ = empty_like(x.repeat(1, 2))
    monkeypatch.setattr(activation, "pdl_wait", before([(gate_up, x.repeat(1, 2))]))
    activation.silu_mul(out, gate_up)
    assert_equal(out, exact_silu_mul(x.repeat(1, 2)), "out of silu_mul")

    heads, slots = SHAPES[0]
    step = Step(heads, slots, qk_norm=True)
    names = ("qkv", "positions", "slots")
    real = [(getattr(step, name), getattr(step, name).clone()) for name in names]
    for tensor, _ in real:
        tensor.zero_()
    monkeypatch.setattr(rope, "pdl_wait", before(real))
    step.run()
    q, k, _ = step.wanted()
    assert_equal(step.q, q.flatten(1), "q of rope_kv_write")
    assert_equal(step.stored(step.k_cache), k, "k in the cache")
