"""The persistent kernel in the interpreter: alone, phase by phase, and programs at once."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import interpreter_builder

from mini_engine.cuda.kernels import launch as kernel_launch
from mini_engine.cuda.kernels import persistent
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.kernels.persistent import Plan, addresses, launch, new_scratch, num_counters
from tests.support.kernel_cases import Paged, assert_close, paged, rotary

EPS = 1e-6
LAYERS = 2
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"


@dataclass(frozen=True)
class Shape:
    """A model: its heads, and whether it has a bias (Qwen2) or norms of q and k (Qwen3)."""

    heads: Heads
    hidden: int
    inner: int
    bias: bool = False
    qk_norm: bool = False


QWEN3 = Shape(Heads(4, 2, 32, 4), hidden=48, inner=40, qk_norm=True)
QWEN2 = Shape(Heads(6, 2, 32, 4), hidden=32, inner=56, bias=True)


@dataclass(frozen=True)
class Step:
    """All that one step reads and writes."""

    residual: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    weights: list[Tensor | None]
    counters: Tensor
    kv: Paged

    def copy(self, *, shared: bool = False) -> Step:
        """With tensors of its own for what the kernel writes; `shared` between processes."""

        def own(tensor: Tensor) -> Tensor:
            return tensor.clone().share_memory_() if shared else tensor.clone()

        keys, values = [own(k) for k in self.keys], [own(v) for v in self.values]
        return replace(
            self, residual=own(self.residual), keys=keys, values=values, counters=own(self.counters)
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The launch's, from the counters on."""
        table = addresses(self.weights, self.keys, self.values)
        turned = rotary(self.keys[0].shape[-1])
        return self.counters, table, self.kv.block_table, self.kv.context_lens, *turned


def random_step(shape: Shape, context: int, dtype: torch.dtype = torch.float32) -> Step:
    torch.manual_seed(context)
    heads, hidden, inner = shape.heads, shape.hidden, shape.inner
    q = heads.num_heads * heads.head_dim
    kv = paged([context], heads.num_kv_heads, heads.head_dim, heads.block_size, dtype)

    def matrix(rows: int, width: int) -> Tensor:
        return (torch.randn(rows, width) / width**0.5).to(dtype)

    def vector(size: int) -> Tensor:
        return (torch.rand(size) + 0.5).to(dtype)

    def layer() -> list[Tensor | None]:
        norm = [vector(heads.head_dim) if shape.qk_norm else None for _ in range(2)]
        bias = vector(heads.qkv_size) if shape.bias else None
        first = [vector(hidden), matrix(heads.qkv_size, hidden), bias, *norm, matrix(hidden, q)]
        return [*first, vector(hidden), matrix(2 * inner, hidden), matrix(hidden, inner)]

    weights = [tensor for _ in range(LAYERS) for tensor in layer()]
    return Step(
        torch.randn(1, hidden).to(dtype),
        [kv.k_cache.clone() for _ in range(LAYERS)],
        [kv.v_cache.clone() for _ in range(LAYERS)],
        weights,
        torch.zeros(num_counters(heads.num_kv_heads), dtype=torch.int32),
        kv,
    )


def plan_for(shape: Shape, step: Step, programs: int) -> Plan:
    context = step.kv.block_table.shape[1] * shape.heads.block_size
    return persistent.persistent_plan(
        shape.heads, shape.hidden, shape.inner, context, programs,
        bias=shape.bias, qk_norm=shape.qk_norm, element_bytes=step.residual.element_size(),
    )  # fmt: skip


def reference(shape: Shape, step: Step) -> Step:
    """Five ops a layer, by their PyTorch references."""
    done = step.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_launch, "INTERPRETED", False)
        for i in range(LAYERS):
            weights = done.weights[i * persistent.WEIGHTS : (i + 1) * persistent.WEIGHTS]
            persistent.layer_reference(
                done.residual, done.keys[i], done.values[i], weights, shape.heads,
                done.kv.block_table, done.kv.context_lens, *rotary(shape.heads.head_dim), EPS,
            )  # fmt: skip
    return done


def by_phases(shape: Shape, step: Step, plan: Plan) -> Step:
    """One launch a phase, in which all programs run: what the barriers of one launch promise."""
    done = step.copy()
    scratch = new_scratch(plan, shape.heads, done.residual)
    for layer in range(LAYERS):
        for phase in range(5):
            launch(plan, done.residual, scratch, *done.inputs, (layer, layer + 1), EPS, phase)
    return done


def assert_same(got: Step, want: Step, terms: int) -> None:
    assert_close(got.residual, want.residual, terms=terms)
    for ours, theirs in zip((*got.keys, *got.values), (*want.keys, *want.values), strict=True):
        assert_close(ours.nan_to_num(), theirs.nan_to_num(), terms=terms)
    assert not got.counters.any(), "the next launch would not find zeros"


@pytest.mark.parametrize(
    ("shape", "context"), [(QWEN3, 9), (QWEN2, 1), *([(QWEN3, 0), (QWEN2, 33)] if SLOW else [])]
)
def test_one_kernel_computes_what_five_a_layer_do(shape: Shape, context: int) -> None:
    """The op: one program, all layers, every barrier."""
    step = random_step(shape, context)
    got, want = step.copy(), reference(shape, step)
    counters, table, *lens = got.inputs
    persistent.persistent_layers(
        got.residual, got.keys, got.values, counters, got.weights, table, *lens, EPS
    )
    assert_same(got, want, terms=64)
    assert not got.residual.equal(step.residual)
    with pytest.raises(ValueError, match="table holds other addresses"):
        persistent.persistent_layers(
            got.residual, got.keys, got.values, counters, got.weights, table + 16, *lens, EPS
        )


def test_in_bf16_it_differs_by_the_roundings_between_its_phases() -> None:
    step = random_step(QWEN3, 9, torch.bfloat16)
    got, want = by_phases(QWEN3, step, plan_for(QWEN3, step, 1)), reference(QWEN3, step)
    # sums below 4 have steps of up to 2^-6, and each rests on inputs rounded the other way
    torch.testing.assert_close(got.residual, want.residual, atol=2**-5, rtol=0)
    torch.testing.assert_close(got.keys, want.keys, atol=2**-5, rtol=0, equal_nan=True)


def test_a_program_with_few_registers_takes_two_tiles_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(persistent, "HELD_BYTES", 3500)
    monkeypatch.setattr(persistent, "TILE_BYTES", 3500)
    step = random_step(QWEN3, 5)
    plan = plan_for(QWEN3, step, 2)
    assert plan.gate_up.more > 0
    assert plan.down.more > 0
    assert_same(by_phases(QWEN3, step, plan), reference(QWEN3, step), terms=64)


class OneProgram:
    """The kernel with a grid of which only program `index` runs: the others are processes too."""

    def __init__(self, index: int) -> None:
        self.index, self.kernel = index, persistent.persistent_kernel

    def __getitem__(self, grid: tuple[int]) -> object:
        place = interpreter_builder.set_grid_idx
        interpreter_builder.set_grid_idx = lambda *_: place(self.index, 0, 0)
        interpreter_builder.set_grid_dim(*grid, 1, 1)
        interpreter_builder.set_grid_dim = lambda *_: None
        return self.kernel[(1,)]


def run_program(index: int, plan: Plan, step: Step, scratch: tuple[Tensor, ...]) -> None:
    """What program `index` does, in a process of its own."""
    torch.set_num_threads(1)
    persistent.persistent_kernel = OneProgram(index)
    launch(plan, step.residual, scratch, *step.inputs, (0, LAYERS), EPS)


def test_programs_that_run_at_once_meet_at_every_barrier() -> None:
    """Processes over one memory stand for programs: the same launch, atomics and polls and all,
    gives bit for bit what phases give that run one after another."""
    step = random_step(QWEN3, 5)
    plan = plan_for(QWEN3, step, 3)
    together = step.copy(shared=True)
    scratch = tuple(s.share_memory_() for s in new_scratch(plan, QWEN3.heads, step.residual))
    fork = multiprocessing.get_context("fork")
    programs = [
        fork.Process(target=run_program, args=(i, plan, together, scratch), daemon=True)
        for i in range(plan.programs)
    ]
    for program in programs:
        program.start()
    for program in programs:
        program.join(30)
    ended = [program.exitcode for program in programs]
    for program in programs:
        program.kill()
    assert ended == [0] * plan.programs, "one failed, or waits at a barrier (None)"
    apart = by_phases(QWEN3, step, plan)
    assert_same(apart, reference(QWEN3, step), terms=64)
    assert together.residual.equal(apart.residual)
    assert not together.counters.any()
