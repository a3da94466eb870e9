"""Lab 13: a GEMV at the bandwidth floor. Your kernels run in Triton's interpreter.

They are held to float64 arithmetic, and to a list of everything they read and write: which address,
of which tensor, before or after `pdl_wait`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from mini_engine.cuda.kernels import gemv
from mini_engine.cuda.kernels.gemv import (
    THREAD_ELEMENTS,
    TILE_ELEMENTS,
    GemvPlan,
    enough_programs,
    gemv_plan,
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
    x: Tensor, weight: Tensor, norm_weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """RMSNorm(x) · norm_weight Wᵀ + bias, in float64."""
    row = x.double()
    if norm_weight is not None:
        row = row / (row.square().mean(-1, keepdim=True) + EPS).sqrt() * norm_weight.double()
    out = row @ weight.double().T
    return out if bias is None else out + bias.double()


def silu_mul(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Rounded once: in bf16 to half a unit of its 8 bits, in float32 as far as a sum goes."""
    tolerance = 2**-8 if got.dtype == BF16 else 1e-5
    wrong = ~((got.double() - expected).abs() <= tolerance * expected.abs() + 1e-5)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        said = f"{got[at].item():g}, expected {expected[at].item():g}"
        pytest.fail(f"{int(wrong.sum())} of {wrong.numel()} are wrong; out{list(at)} is {said}")


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


@dataclass(repr=False)
class Watch:
    """Notes what kernels do: ("program", …), ("release", …), ("wait", …), ("load", addresses), …"""

    tensors: dict[str, Tensor]
    events: list[tuple[str, Any]] = field(default_factory=list)

    def elements(self, kind: str, name: str, *, before_wait: bool | None = None) -> list[int]:
        """Elements of a tensor that were loaded or stored, with repeats, in all programs."""
        tensor, found, waited = self.tensors[name], [], False
        for event, addresses in self.events:
            waited = event == "wait" or (waited and event != "program")
            if event != kind or (before_wait is not None and before_wait == waited):
                continue
            at = (addresses - tensor.data_ptr()) // tensor.element_size()
            found += at[(at >= 0) & (at < tensor.numel())].tolist()
        return found

    def read_once_above(self, name: str) -> None:
        """Fails unless each element of the tensor was loaded once, above the wait."""
        size = self.tensors[name].numel()
        above, below = (
            np.bincount(self.elements("load", name, before_wait=before), minlength=size)
            for before in (True, False)
        )
        never, again = int((above == 0).sum()), int((above > 1).sum())
        assert not never, f"above the wait, {never} of {size} elements of {name} are not read"
        assert not again, f"above the wait, {again} of {size} elements of {name} are read again"
        assert not below.any(), f"below the wait, {name} is read (again)"

    def outside(self, kind: str) -> int:
        """How many addresses lie in none of the tensors."""
        count = 0
        for event, addresses in self.events:
            if event == kind:
                inside = np.zeros(addresses.shape, bool)
                for tensor in self.tensors.values():
                    at = (addresses - tensor.data_ptr()) // tensor.element_size()
                    inside |= (at >= 0) & (at < tensor.numel())
                count += int((~inside).sum())
        return count


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watch]:
    """`watch = watching(out=out, x=x, …)`, then launch."""
    watch = Watch({})

    def note(event: str) -> Any:
        return lambda *_, **__: watch.events.append((event, None))

    def noting(event: str, inner: Any, mask_at: int) -> Any:
        def noted(self: Any, pointers: Any, *rest: Any) -> Any:
            addresses = np.asarray(pointers.data).astype(np.int64)
            mask = np.broadcast_to(np.asarray(rest[mask_at].data, bool), addresses.shape)
            watch.events.append((event, addresses[mask]))
            return inner(self, pointers, *rest)

        return noted

    monkeypatch.setattr(gemv, "pdl_release", note("release"))
    monkeypatch.setattr(gemv, "pdl_wait", note("wait"))
    begin = InterpreterBuilder.set_grid_idx

    def begins(self: Any, *at: int) -> None:
        watch.events.append(("program", at))
        begin(self, *at)

    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", begins)
    for event, name, mask_at in (("load", "masked_load", 0), ("store", "masked_store", 1)):
        inner = getattr(InterpreterBuilder, f"create_{name}")
        monkeypatch.setattr(InterpreterBuilder, f"create_{name}", noting(event, inner, mask_at))

    def start(**tensors: Tensor) -> Watch:
        watch.tensors.update(tensors)
        return watch

    return start


def launch(
    plan: GemvPlan,
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    add: bool = False,
) -> None:
    gemv.launch_linear(out, x, norm_weight, weight, bias, EPS, add, False, plan)


# ---------------------------------------------------------------- the plan

SIZES = [1, 7, 64, 500, 511, 512, 513, 1024, 3072, 4096, 8192, 151_936]
WIDTHS = [16, 100, 896, 1024, 1536, 2048, 3072, 4864, 6144, 8192, 18_944]


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
        assert plan.chunk & (plan.chunk - 1) == 0
        assert plan.chunk <= 2048
        assert (plan.chunks - 1) * plan.chunk < width <= plan.chunks * plan.chunk
        tile = plan.rows * (2 if pairs else 1) * width
        assert plan.warps == (8 if tile / (8 * 32) >= THREAD_ELEMENTS else 4), (num_rows, width)


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


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bf16"])
@pytest.mark.parametrize(("rows", "width", "plan"), SHAPES, ids=["whole", "ragged", "one-chunk"])
def test_a_product_with_any_prologue_and_epilogue_is_the_one_of_float64(
    rows: int, width: int, plan: GemvPlan, dtype: torch.dtype
) -> None:
    weight = random(rows, width, dtype=dtype) / 8
    norm_weight, bias = 1 + random(width, dtype=dtype) / 4, random(rows, dtype=dtype)
    for tokens, with_norm, with_bias, add in ((1, True, True, False), (3, False, False, True)):
        x, before = random(tokens, width, dtype=dtype), random(tokens, rows, dtype=dtype, seed=1)
        out = before.clone() if add else torch.full_like(before, NAN)
        given = (norm_weight if with_norm else None, bias if with_bias else None)
        launch(plan, out, x, weight, *given, add=add)
        assert_close(out, product(x, weight, *given) + (before.double() if add else 0))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["float32", "bf16"])
def test_gate_and_up_come_out_as_one_vector(dtype: torch.dtype) -> None:
    for rows, width, plan in SHAPES[:2]:
        x, weight = random(2, width, dtype=dtype), random(2 * rows, width, dtype=dtype) / 8
        norm_weight, out = (
            1 + random(width, dtype=dtype) / 4,
            torch.full((2, rows), NAN, dtype=dtype),
        )
        gemv.launch_gate_up(out, x, norm_weight, weight, EPS, False, plan)
        assert_close(out, silu_mul(product(x, weight, norm_weight)))


@pytest.mark.catches("gate-up-swapped")
def test_gate_is_the_first_half_of_the_weight_and_goes_through_silu() -> None:
    rows, width, plan = WHOLE
    weight = torch.zeros(2 * rows, width)
    weight[:rows, 0], weight[rows:, 0] = -3.0, torch.arange(1.0, rows + 1)
    x, norm_weight = torch.ones(1, width), torch.ones(width)
    out = torch.full((1, rows), NAN)
    gemv.launch_gate_up(out, x, norm_weight, weight, EPS, False, plan)
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
    rows, width, plan = RAGGED
    x, weight, norm_weight = random(tokens, width), random(rows, width), torch.ones(width)
    out = Guarded.around(torch.full((tokens, rows), NAN), UNTOUCHED)
    launch(plan, out.inside, x, weight)
    assert (out.border == UNTOUCHED).all(), "a row beyond the last was stored"
    assert_close(out.inside, product(x, weight))
    half = Guarded.around(torch.full((tokens, rows), NAN), UNTOUCHED)
    both = random(2 * rows, width)
    gemv.launch_gate_up(half.inside, x, norm_weight, both, EPS, False, plan)
    assert (half.border == UNTOUCHED).all(), "a pair beyond the last was stored"
    assert_close(half.inside, silu_mul(product(x, both, norm_weight)))


@pytest.mark.catches("tail-is-never-read")
def test_nothing_is_read_beyond_the_weight_nor_from_the_next_row(
    watching: Callable[..., Watch],
) -> None:
    """Around the weight stands NaN, and 0 × NaN is NaN."""
    rows, width, plan = RAGGED
    x = random(1, width)
    weight = Guarded.around(random(rows, width), NAN)
    norm_weight, bias = Guarded.around(torch.ones(width), NAN), Guarded.around(random(rows), NAN)
    out = torch.full((1, rows), NAN)
    inside = (weight.inside, norm_weight.inside, bias.inside)
    watch = watching(out=out, x=x, weight=inside[0], norm_weight=inside[1], bias=inside[2])
    launch(plan, out, x, *inside)
    beyond = watch.outside("load")
    assert beyond == 0, "addresses beyond the ends of the tensors were read"
    assert_close(out, product(x, *inside))


@pytest.mark.catches("weights-below-the-wait")
@pytest.mark.parametrize("tokens", [1, 3])
def test_each_weight_is_read_once_and_above_the_wait(
    watching: Callable[..., Watch], tokens: int
) -> None:
    rows, width, plan = WHOLE
    x, weight, out = random(tokens, width), random(rows, width), torch.zeros(tokens, rows)
    watch = watching(out=out, x=x, weight=weight)
    launch(plan, out, x, weight)
    watch.read_once_above("weight")


@pytest.mark.catches("weights-below-the-wait")
def test_gate_up_and_the_norms_weight_are_read_above_the_wait_too(
    watching: Callable[..., Watch],
) -> None:
    rows, width, plan = WHOLE
    x, weight, norm_weight = random(2, width), random(2 * rows, width), torch.ones(width)
    bias, out = random(rows), torch.zeros(2, rows)
    watch = watching(out=out, x=x, weight=weight, norm_weight=norm_weight, bias=bias)
    gemv.launch_gate_up(out, x, norm_weight, weight, EPS, False, plan)
    watch.read_once_above("weight")
    watch.events.clear()
    launch(plan, out, x, weight[:rows], norm_weight, bias)
    for name in ("norm_weight", "bias"):
        below = watch.elements("load", name, before_wait=False)
        assert not below, f"{name} is read below the wait"


@pytest.mark.catches("activations-above-the-wait")
@pytest.mark.parametrize("add", [False, True], ids=["plain", "residual"])
def test_what_the_step_wrote_is_read_below_the_wait(
    watching: Callable[..., Watch], add: bool
) -> None:
    """x and the residual are the kernel before's: above the wait it may still be writing them."""
    rows, width, plan = WHOLE
    x, weight, out = random(2, width), random(rows, width), random(2, rows)
    both, norm_weight, half = random(2 * rows, width), torch.ones(width), random(2, rows)
    watch = watching(out=out, x=x, weight=weight, half=half)
    launch(plan, out, x, weight, add=add)
    gemv.launch_gate_up(half, x, norm_weight, both, EPS, False, plan)
    for name in ("x", "out", "half"):
        early = watch.elements("load", name, before_wait=True)
        assert not early, f"{name} is read too early"
        early = watch.elements("store", name, before_wait=True)
        assert not early, f"{name} is written too early"


@pytest.mark.catches("release-at-the-end")
@pytest.mark.parametrize("kernel", ["linear", "gate_up"])
def test_every_program_releases_the_next_kernel_first_and_waits_once(
    watching: Callable[..., Watch], kernel: str
) -> None:
    rows, width, plan = WHOLE
    x, weight, out = random(1, width), random(2 * rows, width), torch.zeros(1, rows)
    watch = watching(out=out, x=x, weight=weight)
    if kernel == "linear":
        launch(plan, out, x, weight[:rows])
    else:
        gemv.launch_gate_up(out, x, torch.ones(width), weight, EPS, False, plan)
    words = " ".join(event for event, _ in watch.events)
    programs = [program.split() for program in words.split("program")[1:]]
    assert len(programs) == plan.num_programs(rows)
    for did in programs:
        assert did[0] == "release", f"a program begins with a {did[0]}"
        assert (did.count("release"), did.count("wait")) == (1, 1)
