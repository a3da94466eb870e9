"""Lab 11: four fused kernels. What you write runs in Triton's interpreter and is held against
float64 arithmetic, and to a list of everything that it reads and writes; then it is compiled.

Around every tensor lie rows that nobody may read (NaN) or write (nines).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import pytest
import torch
from torch import Tensor

from labs.support.compared import assert_near, assert_same, fenced, unchanged
from labs.support.compiled import Kernel, must_compile
from labs.support.watched import Watch
from labs.support.watching import shuffled, undefined, watching
from mini_engine.cuda.kernels import activation, norm, rope
from mini_engine.cuda.kernels.paged import Heads

NAN = float("nan")
BF16, F32 = torch.bfloat16, torch.float32
WIDTHS = (64, 100, 33)  # a power of two, and two that are not
KERNELS = "mini_engine.cuda.kernels"

ROW = (("WIDTH", 1000), ("BLOCK", 1024))
HEADS = (("Q_HEADS", 16), ("KV_HEADS", 8), ("HEAD_DIM", 128), ("QK_NORM", True))
COMPILED = {
    "silu_mul": Kernel(
        f"{KERNELS}.activation", "silu_mul_kernel", (("WIDTH", 3000), ("BLOCK", 1024))
    ),
    "rms_norm": Kernel(f"{KERNELS}.norm", "rms_norm_kernel", ROW),
    "add_rms_norm": Kernel(f"{KERNELS}.norm", "add_rms_norm_kernel", ROW),
    "rope": Kernel(f"{KERNELS}.rope", "rope_kv_write_kernel", HEADS, 1),
    "rope_without_norms": Kernel(
        f"{KERNELS}.rope",
        "rope_kv_write_kernel",
        (*HEADS[:3], ("QK_NORM", False), ("q_norm", None), ("k_norm", None)),
        1,
    ),
}


@pytest.fixture(autouse=True)
def _a_gpu_promises_less() -> Iterator[None]:
    """No order of programs, and nothing in lanes that a load without `other=` does not read."""
    with undefined(), shuffled(11):
        yield


def compiles(*names: str) -> None:
    for name in names:
        must_compile(COMPILED[name], tuple(COMPILED.values()))


def empty_like(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(rows of NaN for a result, the rows of nines that lie around them)."""
    return fenced(torch.full_like(rows, NAN), fill=9.0)


def assert_equal(got: Tensor, wanted: Tensor, what: str) -> None:
    """Up to the order of a float32 sum, and in bf16 one rounding of that: half a unit of 8 bits.
    What is rounded on its way, too, is further off."""
    rtol, atol = {F32: (2e-5, 1e-6), BF16: (2**-8 + 2e-5, 1e-6)}[got.dtype]
    assert_near(got, wanted, what, rtol=rtol, atol=atol)


def assert_untouched(around: Tensor, what: str) -> None:
    assert_same(around, torch.full_like(around, 9.0), f"what lies beyond {what}")


@contextmanager
def one_read(module: ModuleType, **tensors: Tensor) -> Iterator[Watch]:
    """Watches a launch. The tensors, by their names in the kernel, are all that it may touch."""
    with watching(module, **tensors) as watch:
        yield watch
    watch.nothing_outside()


# ---------------------------------------------------------------- SiLU · mul


def exact_silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def silu_mul(gate_up: Tensor) -> Tensor:
    """The kernel's result; fails if anything around it, or gate_up, was changed."""
    given, _ = fenced(gate_up)
    out, around = empty_like(given[:, : gate_up.shape[1] // 2])
    with unchanged(gate_up=given):
        activation.silu_mul(out, given)
    assert_untouched(around, "out of silu_mul")
    return out


def gates(rows: int, width: int, dtype: torch.dtype = F32) -> Tensor:
    """Gate and up side by side, with gates so large that exp of them overflows."""
    torch.manual_seed(width)
    gate_up = torch.randn(rows, 2 * width) * 4
    gate_up[0, :3] = torch.tensor([0.0, 100.0, -100.0])
    return gate_up.to(dtype)


@pytest.mark.catches("gate-and-up-swapped")
@pytest.mark.parametrize("width", [64, 100, 1030])
def test_silu_mul_gates_the_right_half_by_the_left(width: int) -> None:
    gate_up = gates(2, width)
    assert_equal(silu_mul(gate_up), exact_silu_mul(gate_up), "out")


@pytest.mark.catches("bf16-arithmetic")
def test_silu_mul_of_bf16_is_computed_in_float32() -> None:
    gate_up = gates(3, 100, BF16)
    assert_equal(silu_mul(gate_up), exact_silu_mul(gate_up), "out")


def watched_silu_mul(width: int) -> Watch:
    gate_up, _ = fenced(gates(3, width))
    out, _ = empty_like(gate_up[:, :width])
    with one_read(activation, gate_up=gate_up, out=out) as watch:
        activation.silu_mul(out, gate_up)
    return watch


def test_a_program_of_silu_mul_takes_as_many_columns_as_block_says() -> None:
    given, _ = fenced(gates(2, 100))
    for block in (32, 64):
        out, around = empty_like(given[:, :100])
        grid = (2, -(-100 // block))
        activation.silu_mul_kernel[grid](out, given, WIDTH=100, BLOCK=block, PDL=False)
        assert_equal(out, exact_silu_mul(given), f"out, programs of {block} columns,")
        assert_untouched(around, "out of silu_mul_kernel")


@pytest.mark.parametrize("width", [64, 100, 1030])
def test_silu_mul_touches_each_number_once_and_no_other(width: int) -> None:
    watch = watched_silu_mul(width)
    watch.read_once("gate_up")
    watch.written_once("out")


@pytest.mark.catches("releases-at-the-end")
def test_silu_mul_releases_first_and_reads_what_was_just_written_after_the_wait() -> None:
    watch = watched_silu_mul(100)
    watch.releases_first_and_waits_once()
    watch.reads_and_writes_below_the_wait("gate_up", "out")
    watch.reads_past_l1("gate_up")


def test_silu_mul_finds_a_row_that_lies_beyond_two_to_the_31() -> None:
    row, width = 2**30, 64
    gate_up, out = torch.zeros(1, 2 * width), torch.zeros(1, width)
    with watching(activation, imagined=True, first=(row, 0, 0)) as watch:
        activation.silu_mul(out, gate_up)
    watch.reaches("load", "gate_up", gate_up, row * 2 * width, 2 * width)
    watch.reaches("store", "out", out, row * width, width)


@pytest.mark.catches("runs-only-in-the-interpreter")
def test_silu_mul_compiles_for_a_gpu() -> None:
    compiles("silu_mul")


# ---------------------------------------------------------------- norms


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Line by line what RMSNorm says, in float64."""
    wide = x.double()
    return wide / ((wide * wide).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def norm_case(rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x and residual (rows, width), weight (width,), with NaN around each."""
    torch.manual_seed(rows * 1000 + width)
    x, residual = (fenced(torch.randn(rows, width).to(dtype) * 3)[0] for _ in range(2))
    weight, _ = fenced(torch.rand(1, width).to(dtype) + 0.5)
    return x, residual, weight[0]


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The kernel's result; fails if anything around it, x or the weight was changed."""
    out, around = empty_like(x)
    with unchanged(x=x, weight=weight):
        norm.rms_norm(out, x, weight, eps)
    assert_untouched(around, "out of rms_norm")
    return out


def add_rms_norm(
    residual: Tensor, x: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """(the residual afterwards, out); fails if anything around them, x or the weight changed."""
    total, beside = fenced(residual, fill=9.0)
    out, around = empty_like(x)
    with unchanged(x=x, weight=weight):
        norm.add_rms_norm(out, total, x, weight, eps)
    assert_untouched(around, "out of add_rms_norm")
    assert_untouched(beside, "residual of add_rms_norm")
    return total, out


@pytest.mark.catches("mean-over-the-block", "no-mask-at-the-end-of-a-row")
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_divides_a_row_by_the_root_of_its_mean_square(width: int) -> None:
    x, _, weight = norm_case(3, width, F32)
    assert_equal(rms_norm(x, weight), exact_norm(x, weight, 1e-6), "out")


@pytest.mark.catches("eps-outside-the-root")
def test_eps_stands_under_the_root_beside_the_mean() -> None:
    x, _, weight = norm_case(2, 48, F32)
    for size in (0.0, 0.01, 0.3):
        small, _ = fenced(x * size)
        out = rms_norm(small, weight, 0.01)
        assert_equal(out, exact_norm(small, weight, 0.01), f"out, eps 0.01, x times {size},")


@pytest.mark.catches("bf16-arithmetic", "rounds-before-the-gain")
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_of_bf16_is_computed_in_float32(width: int) -> None:
    x, _, weight = norm_case(2, width, BF16)
    assert_equal(rms_norm(x, weight), exact_norm(x, weight, 1e-6), "out")


def watched_rms_norm(width: int) -> Watch:
    x, _, weight = norm_case(3, width, F32)
    out, _ = empty_like(x)
    with one_read(norm, x=x, weight=weight, out=out) as watch:
        norm.rms_norm(out, x, weight, 1e-6)
    return watch


@pytest.mark.catches("unmasked-gains")
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_touches_each_number_of_a_row_once_and_no_other(width: int) -> None:
    watch = watched_rms_norm(width)
    watch.read_once("x")
    watch.read_once("weight", by_each_program=True)
    watch.written_once("out")


@pytest.mark.catches("reads-before-the-wait")
def test_rms_norm_releases_first_and_reads_what_was_just_written_after_the_wait() -> None:
    watch = watched_rms_norm(48)
    watch.releases_first_and_waits_once()
    watch.reads_and_writes_below_the_wait("x", "out")
    watch.reads_past_l1("x")


def test_rms_norm_finds_a_row_that_lies_beyond_two_to_the_31() -> None:
    row, width = 2**30, 64
    x, out, weight = torch.zeros(1, width), torch.zeros(1, width), torch.zeros(width)
    with watching(norm, imagined=True, first=(row, 0, 0), weight=weight) as watch:
        norm.rms_norm(out, x, weight, 1e-6)
    watch.reaches("load", "x", x, row * width, width)
    watch.reaches("store", "out", out, row * width, width)


def test_rms_norm_compiles_for_a_gpu() -> None:
    compiles("rms_norm")


# ---------------------------------------------------------------- the addition before a norm


@pytest.mark.catches("residual-not-written-back", "norm-before-the-addition")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_fused_kernel_leaves_the_sum_and_the_norm_of_the_sum(width: int) -> None:
    x, residual, weight = norm_case(2, width, F32)
    total = residual.double() + x.double()
    left, out = add_rms_norm(residual, x, weight, 1e-5)
    assert_equal(left, total, "residual")
    assert_equal(out, exact_norm(total, weight, 1e-5), "out")


def test_eps_of_the_fused_kernel_stands_under_the_root_too() -> None:
    x, residual, weight = norm_case(2, 48, F32)
    for size in (0.0, 0.01, 0.3):
        small, _ = fenced(x * size)
        total, out = add_rms_norm(residual * size, small, weight, 0.01)
        assert_equal(out, exact_norm(total, weight, 0.01), f"out, eps 0.01, both times {size},")


@pytest.mark.catches("bf16-arithmetic")
@pytest.mark.parametrize("width", WIDTHS)
def test_sum_and_norm_of_bf16_are_computed_in_float32(width: int) -> None:
    x, residual, weight = norm_case(2, width, BF16)
    total = (residual.double() + x.double()).bfloat16()
    left, out = add_rms_norm(residual, x, weight)
    assert_equal(left, total.double(), "residual")
    assert_equal(out, exact_norm(total, weight, 1e-6), "out")


@pytest.mark.catches("norm-of-the-unrounded-sum")
def test_the_norm_sees_the_sum_as_the_next_layer_will_rounded() -> None:
    """Between 256 and 512 a bf16 is even: half of these sums are rounded."""
    torch.manual_seed(5)
    residual = (torch.randint(128, 254, (4, 96)) * 2).bfloat16()
    x, weight = torch.randint(0, 3, (4, 96)).bfloat16(), torch.ones(128).bfloat16()[:96]
    rounded = (residual.float() + x.float()).bfloat16()
    _, out = add_rms_norm(residual, x, weight)
    share = (out == exact_norm(rounded, weight, 1e-6).bfloat16()).float().mean().item()
    assert share > 0.95, "out is not the norm of the sum that is stored"


def test_the_sum_is_stored_in_the_dtype_of_the_residual_not_of_x() -> None:
    x, _, weight = norm_case(3, 100, BF16)
    _, residual, _ = norm_case(3, 100, F32)
    total = residual.double() + x.double()
    left, out = add_rms_norm(residual, x, weight)
    assert_equal(left, total, "a float32 residual, x in bf16: residual")
    assert_equal(out, exact_norm(total, weight, 1e-6), "a float32 residual, x in bf16: out")


def test_x_is_added_as_it_is_also_to_a_residual_that_is_narrower() -> None:
    x, _, weight = norm_case(3, 100, F32)
    _, residual, _ = norm_case(3, 100, BF16)
    total = (residual.float() + x).bfloat16()
    left, out = add_rms_norm(residual, x, weight)
    assert_same(left, total, "a bf16 residual, x in float32: residual")
    assert_equal(out, exact_norm(total, weight, 1e-6), "a bf16 residual, x in float32: out")


def watched_add_rms_norm(width: int) -> Watch:
    x, residual, weight = norm_case(3, width, F32)
    out, _ = empty_like(x)
    with one_read(norm, x=x, residual=residual, weight=weight, out=out) as watch:
        norm.add_rms_norm(out, residual, x, weight, 1e-6)
    return watch


@pytest.mark.catches("reads-the-residual-again")
@pytest.mark.parametrize("width", WIDTHS)
def test_the_fused_kernel_touches_each_number_of_a_row_once_and_no_other(width: int) -> None:
    watch = watched_add_rms_norm(width)
    watch.read_once("x", "residual")
    watch.read_once("weight", by_each_program=True)
    watch.written_once("residual", "out")


@pytest.mark.catches("reads-through-l1")
def test_the_fused_kernel_releases_first_and_reads_what_was_just_written_after_the_wait() -> None:
    watch = watched_add_rms_norm(48)
    watch.releases_first_and_waits_once()
    watch.reads_and_writes_below_the_wait("x", "residual", "out")
    watch.reads_past_l1("x", "residual")


def test_the_fused_kernel_finds_a_row_that_lies_beyond_two_to_the_31() -> None:
    row, width = 2**30, 64
    x, residual, out = (torch.zeros(1, width) for _ in range(3))
    weight = torch.zeros(width)
    with watching(norm, imagined=True, first=(row, 0, 0), weight=weight) as watch:
        norm.add_rms_norm(out, residual, x, weight, 1e-6)
    for name, tensor in (("x", x), ("residual", residual)):
        watch.reaches("load", name, tensor, row * width, width)
    for name, tensor in (("residual", residual), ("out", out)):
        watch.reaches("store", name, tensor, row * width, width)


def test_the_fused_kernel_compiles_for_a_gpu() -> None:
    compiles("add_rms_norm")


# ---------------------------------------------------------------- RoPE and the KV write


@dataclass
class Step:
    """Some tokens on their way into the cache: random heads, scattered slots, NaN around them."""

    heads: Heads
    slots: Tensor
    qk_norm: bool
    dtype: torch.dtype = F32
    eps: float = 1e-3

    def __post_init__(self) -> None:
        heads, tokens, dim, dtype = self.heads, len(self.slots), self.heads.head_dim, self.dtype
        torch.manual_seed(dim + tokens)
        self.qkv, _ = fenced(torch.randn(tokens, heads.qkv_size).to(dtype))
        self.positions = torch.randint(0, 50, (tokens,), dtype=torch.int32)
        angle = torch.arange(50)[:, None] * 100.0 ** -(torch.arange(dim // 2) * 2 / dim)
        self.cos, self.sin = angle.cos(), angle.sin()
        weights = [fenced(torch.rand(1, dim).to(dtype) + 0.5)[0][0] for _ in range(2)]
        self.q_norm, self.k_norm = weights if self.qk_norm else (None, None)
        shape = (64 // heads.block_size, heads.block_size, heads.num_kv_heads, dim)
        self.k_cache, self.v_cache = (torch.full(shape, 9.0, dtype=dtype) for _ in range(2))
        nothing = torch.full((tokens, heads.num_heads * dim), NAN).to(dtype)
        self.q, self.around = fenced(nothing, 9.0)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What is only read, by its name in the kernel."""
        given = {"qkv": self.qkv, "positions": self.positions, "slot_mapping": self.slots}
        given |= {"cos": self.cos, "sin": self.sin}
        norms = {"q_norm": self.q_norm, "k_norm": self.k_norm}
        return given | {name: x for name, x in norms.items() if x is not None}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.inputs | {"q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache}

    def run(self) -> Step:
        with unchanged(**self.inputs):
            rope.rope_kv_write(
                *(self.q, self.k_cache, self.v_cache, self.qkv, self.positions, self.slots),
                *(self.cos, self.sin, self.q_norm, self.k_norm, self.eps),
            )
        assert_untouched(self.around, "q")
        return self

    def wanted(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (tokens, heads, D): a head as complex numbers (x[i], x[i + D/2]), turned."""
        parts = [self.heads.num_heads, *2 * [self.heads.num_kv_heads]]
        heads = self.qkv.unflatten(1, (-1, self.heads.head_dim))
        q, k, v = heads.split(parts, dim=1)
        where = self.positions.long()
        turn = torch.complex(self.cos[where].double(), self.sin[where].double())[:, None]
        turned = []
        for x, weight in zip((q, k), (self.q_norm, self.k_norm), strict=True):
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


def new_step(shape: int, qk_norm: bool, dtype: torch.dtype = F32) -> Step:
    heads, slots = SHAPES[shape]
    return Step(heads, torch.tensor(slots, dtype=torch.int32), qk_norm, dtype)


@cache
def ran(shape: int, qk_norm: bool, dtype: torch.dtype = F32) -> Step:
    """A step that has run. Several tests look at each: do not change it."""
    return new_step(shape, qk_norm, dtype).run()


@pytest.mark.catches("position-for-slot")
@each_shape
def test_a_token_is_written_to_its_slot_and_nowhere_else(shape: int) -> None:
    step = ran(shape, False)
    for name, cached in (("k", step.k_cache), ("v", step.v_cache)):
        written = (cached.flatten(0, 1) != 9.0).flatten(1).any(dim=1).nonzero().flatten().tolist()
        slots = sorted(SHAPES[shape][1])
        assert written == slots, f"rows of the {name} cache that were written"


@pytest.mark.catches("rotates-even-and-odd-columns")
@each_shape
def test_q_is_turned_by_the_halves_of_a_head(shape: int) -> None:
    for qk_norm in (False, True):
        step = ran(shape, qk_norm)
        assert_equal(step.q, step.wanted()[0].flatten(1), f"q, qk-norm {qk_norm},")


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
    alone, live = ran(0, True), len(slots)
    padded = Step(heads, torch.tensor([*slots, 0, 0], dtype=torch.int32), True)
    padded.qkv[:live], padded.positions[:live] = alone.qkv, alone.positions
    padded.qkv[live:], padded.positions[live:] = NAN, 0
    padded.q_norm, padded.k_norm = alone.q_norm, alone.k_norm
    padded.run()
    assert_same(padded.q[:live], alone.q, "q of the live rows")
    for cached, lonely in ((padded.k_cache, alone.k_cache), (padded.v_cache, alone.v_cache)):
        assert_same(cached[1:], lonely[1:], "what lies outside of block 0")


def watched_rope(shape: int, qk_norm: bool) -> Watch:
    step = new_step(shape, qk_norm)
    with one_read(rope, **step.tensors) as watch:
        step.run()
    return watch


@each_shape
def test_each_head_is_read_once_and_each_number_of_it_written_once(shape: int) -> None:
    watch = watched_rope(shape, True)
    watch.read_once("qkv")
    watch.written_once("q")
    heads, slots = SHAPES[shape]
    for name in ("k_cache", "v_cache"):
        written = watch.elements("store", name)
        new = len(slots) * heads.num_kv_heads * heads.head_dim
        assert len(written) == new, f"{len(written)} stores into {name}, of {new} new numbers"


def test_heads_are_read_past_l1_and_after_the_wait_and_the_release_comes_first() -> None:
    for qk_norm in (False, True):
        watch = watched_rope(0, qk_norm)
        watch.releases_first_and_waits_once()
        watch.reads_and_writes_below_the_wait("qkv", "positions", "slot_mapping")
        watch.reads_and_writes_below_the_wait("q", "k_cache", "v_cache")
        watch.reads_past_l1("qkv", "positions", "slot_mapping")


@pytest.mark.catches("a-slot-fits-into-32-bits")
def test_the_cache_may_have_more_than_two_to_the_31_numbers() -> None:
    heads, slot, token = Heads(1, 1, 64, 16), 2**29 + 3, 2**26
    k_cache, v_cache = torch.zeros(1, 16, 1, 64), torch.zeros(1, 16, 1, 64)
    qkv, q = torch.zeros(1, heads.qkv_size), torch.zeros(1, 64)
    fixed = {"cos": torch.ones(1, 32), "sin": torch.zeros(1, 32)}
    # token 2**26 reads its position and its slot from the imagined part of memory, where all is 0
    zero = torch.zeros(1, dtype=torch.int32)
    with watching(rope, imagined=True, first=(token, 0, 0), **fixed) as watch:
        rope.rope_kv_write(q, k_cache, v_cache, qkv, zero, zero, **fixed)
    watch.reaches("store", "q", q, token * 64, 64)
    watch.reaches("load", "qkv", qkv, token * heads.qkv_size, 64 * 3)
    large = torch.tensor([slot], dtype=torch.int32)
    given = fixed | {"slot_mapping": large}
    with watching(rope, imagined=True, **given) as watch:
        rope.rope_kv_write(q, k_cache, v_cache, qkv, zero, large, **fixed)
    watch.reaches("store", "k_cache", k_cache, slot * 64, 64)
    watch.reaches("store", "v_cache", v_cache, slot * 64, 64)


def test_rope_compiles_for_a_gpu() -> None:
    compiles("rope", "rope_without_norms")
