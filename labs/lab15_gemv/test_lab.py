"""Lab 15: a GEMV at the bandwidth floor. Your kernels run in Triton's interpreter.

They are held to float64 arithmetic, and to a list of everything they read and write: which address,
of which tensor, before or after `pdl_wait`. Then they are compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from labs.support.compared import assert_near, unchanged
from labs.support.compiled import Kernel, must_compile
from labs.support.watched import Watch
from labs.support.watching import shuffled, undefined, watching
from mini_engine.cuda.kernels import gemv
from mini_engine.cuda.kernels.gemv import (
    THREAD_ELEMENTS,
    TILE_ELEMENTS,
    GemvPlan,
    chunk_of,
    enough_programs,
    gemv_plan,
    load_rows,
)
from mini_engine.model.config import named_shape

EPS = 1e-6
NAN = float("nan")
BF16, F32 = torch.bfloat16, torch.float32
UNTOUCHED = 77.0  # what stands around a tensor; a kernel that writes there is seen

# rows of the weight, width, plan: whole tiles; rows beyond the last; columns beyond the last
WHOLE = (8, 64, GemvPlan(rows=4, warps=4, chunk=32, chunks=2))
RAGGED = (7, 100, GemvPlan(rows=4, warps=4, chunk=32, chunks=4))
ONE_CHUNK = (5, 48, GemvPlan(rows=2, warps=4, chunk=64, chunks=1))
SHAPES = [WHOLE, RAGGED, ONE_CHUNK]


def random(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def product(
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
) -> Tensor:
    """RMSNorm(x) · norm_weight Wᵀ + bias, in float64."""
    row = x.double()
    if norm_weight is not None:
        row = row / (row.square().mean(-1, keepdim=True) + eps).sqrt() * norm_weight.double()
    out = row @ weight.double().T
    return out if bias is None else out + bias.double()


def silu_mul(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def assert_close(got: Tensor, expected: Tensor, what: str = "out") -> None:
    """Rounded once: in bf16 to half a unit of its 8 bits, in float32 as far as a sum goes."""
    rtol = 2**-8 if got.dtype == BF16 else 1e-5
    assert_near(got, expected, what, rtol=rtol, atol=1e-5)


@pytest.fixture(autouse=True)
def _a_gpu_promises_less() -> Iterator[None]:
    """No order of programs, and nothing in lanes that a load without `other=` does not read."""
    with undefined(), shuffled(13):
        yield


# ---------------------------------------------------------------- what a launch touched


@dataclass
class Guarded:
    """A tensor in the middle of a larger one, so that a step beside it does no harm and is seen."""

    inside: Tensor
    whole: Tensor

    @classmethod
    def around(cls, tensor: Tensor, border: float, margin: int = 512) -> Guarded:
        whole = torch.full((tensor.numel() + 2 * margin,), border, dtype=tensor.dtype)
        inside = whole[margin : margin + tensor.numel()].view(tensor.shape)
        inside.copy_(tensor)
        return cls(inside, whole)

    @property
    def border(self) -> Tensor:
        margin = (self.whole.numel() - self.inside.numel()) // 2
        return torch.cat([self.whole[:margin], self.whole[-margin:]])

    def give_to(self, out: Tensor, what: str) -> None:
        """The result, if nothing beside it was written."""
        beside = int((self.border != UNTOUCHED).sum())
        assert not beside, f"{what} beyond the last was stored: {beside} numbers beside out changed"
        out.copy_(self.inside)


@contextmanager
def watched(**tensors: Tensor | None) -> Iterator[Watch]:
    """Watches a launch. The tensors, by their names in the kernel, are all that it may touch."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with watching(gemv, imagined=True, **given) as watch:  # so a stray store does no harm
        yield watch
    watch.nothing_outside()


def launch(
    plan: GemvPlan,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    eps: float = EPS,
) -> None:
    """out = ..., by the learner's kernel; fails if it changes an input, or writes beside out."""
    fenced = Guarded.around(out, UNTOUCHED)
    with unchanged(x=x, norm_weight=norm_weight, weight=weight, bias=bias):
        bare(plan, fenced.inside, x, weight, norm_weight, bias, add=add, eps=eps)
    fenced.give_to(out, "a row")


def bare(
    plan: GemvPlan,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    add: bool = False,
    eps: float = EPS,
) -> None:
    """The same for a launch that is watched: its addresses are those of the tensors given."""
    form = {"NORM": norm_weight is not None, "BIAS": bias is not None, "ADD": add}
    gemv.launch(gemv.linear_kernel, plan, out, x, norm_weight, weight, bias, eps, **form)


def launch_pairs(
    plan: GemvPlan, out: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float = EPS
) -> None:
    fenced = Guarded.around(out, UNTOUCHED)
    with unchanged(x=x, norm_weight=norm_weight, weight=weight):
        gemv.launch(gemv.gate_up_kernel, plan, fenced.inside, x, norm_weight, weight, eps)
    fenced.give_to(out, "a pair")


# ---------------------------------------------------------------- the plan

SIZES = [1, 7, 64, 500, 511, 512, 513, 1024, 3072, 4096, 8192, 151_936]
SIZES += [1785, 2045, 4089]  # just enough programs, if the last one, of a row or a pair, counts
WIDTHS = [16, 100, 896, 1024, 1536, 2048, 3072, 4864, 6144, 8192, 18_944]
WIDTHS += [1020, 2040, 4080]  # a tile is just too small for 8 warps, unless zeros beyond K count


@pytest.mark.catches("few-large-programs")
@pytest.mark.parametrize("pairs", [False, True], ids=["rows", "pairs"])
def test_a_program_takes_as_many_rows_as_leave_work_for_all_multiprocessors(pairs: bool) -> None:
    halves = 2 if pairs else 1
    for num_rows, width, sms in itertools.product(SIZES, WIDTHS, (132, 58)):  # H200, L4

        def fits(rows: int, n: int = num_rows, k: int = width, sms: int = sms) -> bool:
            return rows * halves * k <= TILE_ELEMENTS and -(-n // rows) >= enough_programs(sms)

        wanted = next((r for r in (8, 4, 2, 1) if r * halves <= 8 and fits(r)), 1)
        rows = gemv_plan(num_rows, width, pairs=pairs, sm_count=sms).rows
        case = f"{num_rows} rows of {width} on {sms} multiprocessors"
        assert rows == wanted, f"{case}: {rows} a program, expected {wanted}"


def test_a_programs_chunks_cover_the_row_and_its_threads_have_enough_to_do() -> None:
    for num_rows, width, pairs in itertools.product(SIZES, WIDTHS, (False, True)):
        plan = gemv_plan(num_rows, width, pairs=pairs)
        chunk = plan.chunk
        assert chunk == chunk_of(width, 2048), f"chunk of a row of {width}"
        chunks = -(-width // chunk)
        assert plan.chunks == chunks, f"{plan.chunks} chunks of {chunk} for a row of {width}"
        tile = plan.rows * (2 if pairs else 1) * width
        warps = 8 if tile / (8 * 32) >= THREAD_ELEMENTS else 4
        assert plan.warps == warps, f"a tile of {tile} elements: {plan.warps} warps, not {warps}"


@pytest.mark.catches("few-large-programs")
def test_every_product_of_a_layer_keeps_all_132_multiprocessors_of_an_h200_busy() -> None:
    c = named_shape("qwen3-0.6b")
    qkv = c.q_size + 2 * c.kv_size
    for rows, width in ((qkv, c.hidden_size), (c.hidden_size, c.q_size), (c.hidden_size, 3072)):
        plan = gemv_plan(rows, width)
        in_flight = plan.num_programs(rows) / 132 * plan.rows * width * 2
        assert plan.num_programs(rows) >= 3 * 132
        assert in_flight > 22_000  # bytes a multiprocessor: Little's law, 4.8 TB/s and 0.6 µs


# ---------------------------------------------------------------- numbers


@pytest.mark.catches("the-norm-divides-all")
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bf16"])
@pytest.mark.parametrize(("rows", "width", "plan"), SHAPES, ids=["whole", "ragged", "one-chunk"])
def test_a_product_with_any_prologue_and_epilogue_is_the_one_of_float64(
    rows: int, width: int, plan: GemvPlan, dtype: torch.dtype
) -> None:
    weight = random(rows, width, dtype=dtype) / 8
    norm_weight, bias = 1 + random(width, dtype=dtype) / 4, random(rows, dtype=dtype)
    cases = ((1, True, True, False), (3, False, False, True), (2, True, True, True))
    for tokens, with_norm, with_bias, add in cases:
        x, before = random(tokens, width, dtype=dtype), random(tokens, rows, dtype=dtype, seed=1)
        out = before.clone() if add else torch.full_like(before, NAN)
        given = (norm_weight if with_norm else None, bias if with_bias else None)
        launch(plan, out, x, weight, *given, add=add)
        case = f"{tokens} tokens, norm {with_norm}, bias {with_bias}, residual {add}: out"
        assert_close(out, product(x, weight, *given) + (before.double() if add else 0), case)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bf16"])
def test_gate_and_up_come_out_as_one_vector(dtype: torch.dtype) -> None:
    for rows, width, plan in SHAPES[:2]:
        x, weight = random(2, width, dtype=dtype), random(2 * rows, width, dtype=dtype) / 8
        norm_weight, out = (
            1 + random(width, dtype=dtype) / 4,
            torch.full((2, rows), NAN, dtype=dtype),
        )
        launch_pairs(plan, out, x, norm_weight, weight)
        assert_close(out, silu_mul(product(x, weight, norm_weight)))


@pytest.mark.catches("gate-up-swapped")
def test_gate_is_the_first_half_of_the_weight_and_goes_through_silu() -> None:
    rows, width, plan = WHOLE
    weight = torch.zeros(2 * rows, width)
    weight[:rows, 0], weight[rows:, 0] = -3.0, torch.arange(1.0, rows + 1)
    x, norm_weight = torch.ones(1, width), torch.ones(width)
    out = torch.full((1, rows), NAN)
    launch_pairs(plan, out, x, norm_weight, weight)
    gate = torch.full((1, rows), -3.0)
    assert_close(out, (torch.nn.functional.silu(gate) * torch.arange(1.0, rows + 1)).double())


@pytest.mark.catches("sum-in-bf16")
def test_a_sum_of_bf16_numbers_is_not_a_bf16_sum() -> None:
    """256 + 1 - 256 in every column: bf16 has 8 bits, so 257 does not exist there."""
    plan = GemvPlan(rows=2, warps=4, chunk=16, chunks=3)
    weight = torch.tensor([256.0, 1.0, -256.0], dtype=BF16).repeat_interleave(16).repeat(4, 1)
    out = torch.full((1, 4), NAN, dtype=BF16)
    launch(plan, out, torch.ones(1, 48, dtype=BF16), weight)
    assert out.tolist() == [[16.0] * 4]


@pytest.mark.catches("norm-per-chunk", "mean-of-the-padding")
def test_the_norm_is_of_the_whole_row_and_of_nothing_but_the_row() -> None:
    rows, width, plan = RAGGED  # 4 chunks of 32, the last of them 4 columns
    scale = torch.tensor([1.0, 10.0, 100.0, 0.1]).repeat_interleave(32)[:width]
    x, weight, norm_weight = random(1, width) * scale, random(rows, width), torch.ones(width)
    out = torch.full((1, rows), NAN)
    launch(plan, out, x, weight, norm_weight)
    assert_close(out, product(x, weight, norm_weight))


@pytest.mark.catches("mean-of-the-padding")
def test_a_row_of_ones_is_normed_to_ones_whatever_the_chunks() -> None:
    for rows, width, plan in SHAPES:
        out = torch.full((1, rows), NAN)
        ones = torch.ones(width)
        launch(plan, out, ones[None], torch.ones(rows, width), ones)
        assert_close(out, torch.full((1, rows), float(width)).double())


@pytest.mark.catches("norm-per-chunk")
def test_eps_stands_under_the_root_so_that_a_row_of_zeros_stays_zeros() -> None:
    rows, width, plan = RAGGED
    x, out = torch.zeros(2, width), torch.full((2, rows), NAN)
    x[1, 0] = 1e-3  # its mean square is 1e-8, far below eps
    launch(plan, out, x, torch.ones(rows, width), torch.ones(width))
    assert_close(out, product(x, torch.ones(rows, width), torch.ones(width)))


def test_eps_is_the_one_that_the_kernel_is_given() -> None:
    rows, width, plan = RAGGED
    x, weight, both = random(2, width) / 8, random(rows, width), random(2 * rows, width)
    norm_weight = 1 + random(width) / 4
    for eps in (0.01, 1e-5, 0.0):
        out, half = torch.full((2, rows), NAN), torch.full((2, rows), NAN)
        launch(plan, out, x, weight, norm_weight, eps=eps)
        assert_close(out, product(x, weight, norm_weight, eps=eps), f"eps {eps:g}: out")
        launch_pairs(plan, half, x, norm_weight, both, eps)
        wanted = silu_mul(product(x, both, norm_weight, eps=eps))
        assert_close(half, wanted, f"eps {eps:g}: out of gate and up")


def test_a_result_is_rounded_to_the_dtype_of_out_and_not_to_that_of_x() -> None:
    rows, width, plan = RAGGED
    x, norm_weight = random(2, width, dtype=BF16), 1 + random(width, dtype=BF16) / 4
    weight, both = (random(n * rows, width, dtype=BF16) / 8 for n in (1, 2))
    out, half = random(2, rows), torch.full((2, rows), NAN)
    wanted = product(x, weight, norm_weight) + out.double()
    launch(plan, out, x, weight, norm_weight, add=True)
    assert_close(out, wanted, "x in bf16, out in float32: out")
    launch_pairs(plan, half, x, norm_weight, both)
    wanted = silu_mul(product(x, both, norm_weight))
    assert_close(half, wanted, "x in bf16, out in float32: out of gate and up")


@pytest.mark.catches("residual-every-chunk")
def test_the_residual_is_added_once_however_many_chunks_there_are() -> None:
    for rows, width, plan in SHAPES:
        before = random(2, rows)
        out = before.clone()
        launch(plan, out, random(2, width), torch.zeros(rows, width), add=True)
        said = f"{plan.chunks} chunks made {out[0, 0]:g} of a residual of {before[0, 0]:g}"
        assert torch.equal(out, before), said


@pytest.mark.catches("rounded-twice")
def test_product_and_residual_are_rounded_together() -> None:
    """1 + 2⁻⁸ + 2⁻⁸ in bf16: each of the two alone is rounded away, together they are a unit."""
    plan = GemvPlan(rows=2, warps=4, chunk=16, chunks=1)
    weight = torch.zeros(2, 16, dtype=BF16)
    weight[:, 0], weight[:, 1] = 1.0, 2**-8
    x, out = torch.zeros(1, 16, dtype=BF16), torch.full((1, 2), 2**-8, dtype=BF16)
    x[:, :2] = 1.0
    launch(plan, out, x, weight, add=True)
    assert out.tolist() == [[1 + 2**-7] * 2]


@pytest.mark.catches("norm-per-chunk")
def test_a_token_does_not_see_the_tokens_beside_it() -> None:
    rows, width, plan = RAGGED
    x, weight, norm_weight = random(3, width), random(rows, width), 1 + random(width) / 4
    together, alone = torch.full((3, rows), NAN), torch.full((3, rows), NAN)
    launch(plan, together, x, weight, norm_weight)
    x[1:] = NAN
    launch(plan, alone, x, weight, norm_weight)
    assert torch.equal(together[0], alone[0])


# ---------------------------------------------------------------- reads, writes, and the wait


@pytest.mark.catches("rows-always-divide")
@pytest.mark.parametrize("tokens", [1, 2])
def test_nothing_is_written_beyond_the_last_row(tokens: int) -> None:
    """`launch` looks at what stands around `out`."""
    rows, width, plan = RAGGED
    x, weight, norm_weight = random(tokens, width), random(rows, width), torch.ones(width)
    out, both = torch.full((tokens, rows), NAN), random(2 * rows, width)
    launch(plan, out, x, weight)
    assert_close(out, product(x, weight))
    launch_pairs(plan, out, x, norm_weight, both)
    assert_close(out, silu_mul(product(x, both, norm_weight)))


@triton.jit
def rows_kernel(out, weight, count: tl.constexpr, width: tl.constexpr, first: tl.constexpr):
    """Four rows from `first` on, in chunks of 32 columns, of which the first is stored."""
    row = first + tl.arange(0, 4)
    chunks = load_rows(weight, row, count, width, 32, (width + 31) // 32)
    at = tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(out + at, chunks[0].to(tl.float32))


def test_a_chunk_holds_zeros_beyond_the_end_of_the_row() -> None:
    weight, out = random(6, 20), torch.full((4, 32), NAN)
    rows_kernel[(1,)](out, weight, 6, 20, 2)
    assert_close(out[:, :20], weight[2:].double(), "the row")
    assert_close(out[:, 20:], torch.zeros(4, 12).double(), "what the chunk holds beyond it")


@triton.jit
def kinds_kernel(out, weight, count: tl.constexpr, width: tl.constexpr):
    """1 for each of two chunks that has the dtype of the weight, and 0 for another."""
    chunks = load_rows(weight, tl.arange(0, 4), count, width, 16, 2)
    for c in tl.static_range(2):
        tl.store(out + c, 1 if chunks[c].dtype == weight.dtype.element_ty else 0)


@pytest.mark.catches("widened-where-it-is-loaded")
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bf16"])
def test_rows_are_held_in_the_dtype_of_the_weight(dtype: torch.dtype) -> None:
    """Widened before the wait, bf16 rows would take twice the registers."""
    for width in (32, 20):  # chunks that end where the row does, and chunks that do not
        same = torch.full((2,), -1, dtype=torch.int32)
        kinds_kernel[(1,)](same, random(4, width, dtype=dtype), 4, width)
        kept = same.tolist()
        assert kept == [1, 1], f"a chunk of a weight in {dtype} has another dtype"


@pytest.mark.catches("tail-is-never-read")
def test_nothing_is_read_beyond_the_weight_nor_from_the_next_row() -> None:
    """Around the weight stands NaN, and 0 × NaN is NaN."""
    rows, width, plan = RAGGED
    x = random(1, width)
    weight = Guarded.around(random(rows, width), NAN)
    norm_weight, bias = Guarded.around(torch.ones(width), NAN), Guarded.around(random(rows), NAN)
    out = torch.full((1, rows), NAN)
    inside = {"weight": weight.inside, "norm_weight": norm_weight.inside, "bias": bias.inside}
    with watched(out=out, x=x, **inside):
        bare(plan, out, x, **inside)
    assert_close(out, product(x, **inside))
    both = Guarded.around(random(2 * rows, width), NAN)
    half, gains = torch.full((1, rows), NAN), norm_weight.inside
    with watched(out=half, x=x, weight=both.inside, norm_weight=gains):
        gemv.launch(gemv.gate_up_kernel, plan, half, x, gains, both.inside, EPS)
    assert_close(half, silu_mul(product(x, both.inside, gains)))


@pytest.mark.catches("offsets-fit-into-32-bits")
def test_a_weight_may_have_more_than_two_to_the_31_numbers() -> None:
    """As a head of 151,936 rows would have from a width of 14,135 on."""
    out, weight, first, width = torch.zeros(4, 32), torch.zeros(4, 64), 2**26, 64
    with watching(imagined=True, out=out) as watch:
        rows_kernel[(1,)](out, weight, 2**26 + 4, width, first)
    watch.reaches("load", "the weight", weight, first * width, 4 * width)


@pytest.mark.catches("weights-below-the-wait")
@pytest.mark.parametrize("shape", SHAPES, ids=["whole", "ragged", "one-chunk"])
def test_each_weight_is_read_once_and_above_the_wait(shape: tuple[int, int, GemvPlan]) -> None:
    rows, width, plan = shape
    rows = rows // plan.rows * plan.rows  # a row beyond the last may be any row, read again
    for tokens in (1, 3):
        x, weight, out = random(tokens, width), random(rows, width), torch.zeros(tokens, rows)
        with watched(out=out, x=x, weight=weight) as watch:
            bare(plan, out, x, weight)
        watch.reads_above_the_wait("weight")
        watch.read_once("weight")


@pytest.mark.catches("weights-below-the-wait")
def test_gate_up_and_the_norms_weight_are_read_above_the_wait_too() -> None:
    rows, width, plan = WHOLE
    x, weight, norm_weight = random(2, width), random(2 * rows, width), torch.ones(width)
    bias, out = random(rows), torch.zeros(2, rows)
    with watched(out=out, x=x, weight=weight, norm_weight=norm_weight) as watch:
        gemv.launch(gemv.gate_up_kernel, plan, out, x, norm_weight, weight, EPS)
    watch.reads_above_the_wait("weight", "norm_weight")
    watch.read_once("weight")
    watch.read_once("norm_weight", by_each_program=True)
    given = {"weight": weight[:rows], "norm_weight": norm_weight, "bias": bias}
    with watched(out=out, x=x, **given) as watch:
        bare(plan, out, x, **given)
    watch.reads_above_the_wait("weight", "norm_weight", "bias")
    watch.read_once("norm_weight", by_each_program=True)
    watch.read_once("bias")


@pytest.mark.catches("activations-above-the-wait")
@pytest.mark.parametrize("add", [False, True], ids=["plain", "residual"])
def test_what_the_step_wrote_is_read_below_the_wait(add: bool) -> None:
    """x and the residual are the kernel before's: above the wait it may still be writing them."""
    rows, width, plan = WHOLE
    x, weight, out = random(2, width), random(rows, width), random(2, rows)
    with watched(out=out, x=x, weight=weight) as watch:
        bare(plan, out, x, weight, add=add)
    watch.reads_and_writes_below_the_wait("x", "out")
    both, norm_weight = random(2 * rows, width), torch.ones(width)
    with watched(out=out, x=x, weight=both, norm_weight=norm_weight) as watch:
        gemv.launch(gemv.gate_up_kernel, plan, out, x, norm_weight, both, EPS)
    watch.reads_and_writes_below_the_wait("x", "out")


@pytest.mark.catches("what-was-written-is-in-l1")
def test_what_the_step_wrote_is_read_once_by_a_program_and_past_l1() -> None:
    """Below the wait, L1 may still hold what stood there before."""
    rows, width, plan = WHOLE
    x, weight, out = random(2, width), random(rows, width), random(2, rows)
    with watched(out=out, x=x, weight=weight) as watch:
        bare(plan, out, x, weight, add=True)
    watch.reads_past_l1("x", "out")
    watch.read_once("x", by_each_program=True)
    watch.read_once("out")
    watch.written_once("out")
    both, norm_weight = random(2 * rows, width), torch.ones(width)
    with watched(out=out, x=x, weight=both, norm_weight=norm_weight) as watch:
        gemv.launch(gemv.gate_up_kernel, plan, out, x, norm_weight, both, EPS)
    watch.reads_past_l1("x")
    watch.read_once("x", by_each_program=True)
    watch.written_once("out")


@pytest.mark.catches("release-at-the-end", "every-token-waits")
@pytest.mark.parametrize("kernel", ["linear", "gate_up"])
def test_every_program_releases_the_next_kernel_first_and_waits_once(kernel: str) -> None:
    rows, width, plan = WHOLE
    x, weight, out = random(2, width), random(2 * rows, width), torch.zeros(2, rows)
    gains = torch.ones(width)
    with watching(gemv, imagined=True, out=out, x=x, weight=weight, gains=gains) as watch:
        if kernel == "linear":
            bare(plan, out, x, weight[:rows])
        else:
            gemv.launch(gemv.gate_up_kernel, plan, out, x, gains, weight, EPS)
    assert len(watch.programs) == plan.num_programs(rows)
    watch.releases_first_and_waits_once()


# ---------------------------------------------------------------- the compiler

GEMV = "mini_engine.cuda.kernels.gemv"
ONE = {"M": 2, "ROWS": 4, "CHUNK": 512, "CHUNKS": 3}
NORMED = {"N": 1030, "K": 1500, "NORM": True, "BIAS": True, "ADD": False}
ADDED = {"N": 1030, "K": 1500, "NORM": False, "BIAS": False, "ADD": True}
ABSENT = {"norm_weight": None, "bias": None}
COMPILED = {
    "norm and bias": Kernel(GEMV, "linear_kernel", tuple((ONE | NORMED).items())),
    "residual": Kernel(GEMV, "linear_kernel", tuple((ONE | ADDED | ABSENT).items())),
    "gate and up": Kernel(GEMV, "gate_up_kernel", tuple((ONE | {"N": 3000, "K": 1500}).items())),
}


@pytest.mark.catches("range-is-unrolled-too")
@pytest.mark.parametrize("kernel", COMPILED)
def test_the_kernel_compiles_for_a_gpu(kernel: str) -> None:
    must_compile(COMPILED[kernel], tuple(COMPILED.values()))
