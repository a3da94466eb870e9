"""The persistent kernel compiled without a GPU: what it holds in registers at its barriers.

The table: python -m pytest tests/cuda/kernels/test_persistent_ahead_of_time.py -rP | grep phase
"""

from __future__ import annotations

import os
from functools import cache

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.kernels.persistent import WARPS, Plan, persistent_plan
from mini_engine.cuda.kernels.persistent_kernel import persistent_kernel
from mini_engine.model.config import named_shape
from tests.support.grid_barriers import GridBarrier, grid_barriers
from tests.support.kernel_cases import BF16, F32, I64, POINTERS, SCALARS, Compiled, compile_for
from tests.support.kernel_shapes import BLOCK_SIZE, MULTIPROCESSORS, ROOM
from tests.support.machine_code import places

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
MODELS = ["qwen3-0.6b", *(["qwen3-1.7b", "llama-3.2-1b", "qwen2.5-0.5b"] if SLOW else [])]
IN_FLIGHT = 22_000  # bytes a multiprocessor: 4.8 TB/s ÷ 132 × 0.6 µs (Little's law)
KINDS = {**POINTERS, "attended": BF16, "activated": BF16, "table": I64}
NUMBERS = {**SCALARS, "first_layer": "i32", "last_layer": "i32", "blocks": "i32"}
PRODUCTS = (0, 2, 3, 4)  # phases; 1 is attention


def plan_of_model(name: str) -> Plan:
    c = named_shape(name)
    heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK_SIZE)
    return persistent_plan(
        heads, c.hidden_size, c.intermediate_size, ROOM, MULTIPROCESSORS,
        bias=c.qkv_bias, qk_norm=c.qk_norm,
    )  # fmt: skip


def compiled_for(plan: Plan, capability: int, kinds: dict[str, str]) -> Compiled:
    return compile_for(
        persistent_kernel, kinds, plan.constants(),
        capability=capability, num_warps=WARPS, num_stages=1, scalars=NUMBERS,
    )  # fmt: skip


@cache
def compiled(name: str) -> Compiled:
    return compiled_for(plan_of_model(name), 90, KINDS)


@cache
def barriers(name: str) -> list[GridBarrier]:
    return grid_barriers(compiled(name))


@pytest.mark.parametrize("name", MODELS)
def test_nothing_spills_and_all_programs_are_resident(name: str) -> None:
    """A cooperative launch wants room for all of them, and a barrier would hang without it."""
    made = compiled(name)
    print(
        f"{name}: {made.registers} registers, {made.shared_bytes} B shared, {len(made.sass)} lines"
    )
    assert made.spilled_bytes == 0
    assert made.resident * MULTIPROCESSORS >= plan_of_model(name).programs


@pytest.mark.parametrize("name", MODELS)
def test_the_next_weights_are_loaded_between_the_add_and_the_polls(name: str) -> None:
    """All that a program holds, sixteen bytes at a time, and enough to keep the memory busy."""
    found, plan = barriers(name), plan_of_model(name)
    assert len(found) == 5
    for phase, barrier in enumerate(found):
        print(
            f"{name} phase {phase}: {barrier.bytes_held:6} B a program in flight at the barrier, "
            f"{barrier.instructions:4} lines and {barrier.block_barriers:2} barriers after it"
        )
    for phase, share in zip(PRODUCTS, (plan.qkv, plan.o, plan.gate_up, plan.down), strict=True):
        pairs = 2 if share is plan.gate_up else 1
        held = share.held * share.tile_rows * pairs * share.width * 2
        loaded = 16 * len(found[phase].weights) * WARPS * 32
        if share.chunk * share.chunks == share.width:
            assert loaded == held
        if name == "qwen3-0.6b":
            assert share.more == 0, "of this model a program holds every share whole"
            assert loaded >= IN_FLIGHT


@pytest.mark.parametrize("name", MODELS)
def test_nothing_waits_for_the_weights_before_the_barrier_is_passed(name: str) -> None:
    """By the scoreboards: the loads are still in flight while the program polls."""
    for barrier in barriers(name):
        assert barrier.waits_for_its_loads == []


@pytest.mark.parametrize("name", MODELS)
def test_stores_are_published_before_the_add_and_data_is_read_after_the_acquire(name: str) -> None:
    """store, barrier, fence, add; poll, invalidate L1, barrier, load past L1."""
    made = compiled(name)
    blocks, fences = places(made.sass, r"\bBAR\.SYNC"), places(made.sass, r"\bMEMBAR\.\S*GPU")
    stores = places(made.sass, r"\bSTG\.")
    reads = places(made.sass, r"\bLDG\.\S*STRONG\.GPU")
    found = barriers(name)
    for before, barrier in zip([None, *found], found, strict=False):
        begin = before.passed if before else 0
        last = max([at for at in stores if begin < at < barrier.add], default=begin)
        assert any(last < at < barrier.add for at in blocks)
        assert any(last < at < barrier.add for at in fences)
        first = min(at for at in reads if at > barrier.passed)
        assert any(barrier.passed < at < first for at in blocks)


@pytest.mark.skipif(not SLOW, reason="minutes: HYPOTHESIS_PROFILE=slow")
@pytest.mark.parametrize("name", MODELS)
def test_nothing_spills_on_sm_80(name: str) -> None:
    assert compiled_for(plan_of_model(name), 80, KINDS).spilled_bytes == 0


@pytest.mark.skipif(not SLOW, reason="minutes: HYPOTHESIS_PROFILE=slow")
@pytest.mark.parametrize("capability", [80, 90])
def test_the_shape_of_the_tests_on_a_gpu_compiles(capability: int) -> None:
    """tests/cuda/test_persistent.py, in float32, which also doubles the bytes of a tile."""
    plan = persistent_plan(
        Heads(4, 2, 32, 4), 64, 24, 32, MULTIPROCESSORS, bias=False, qk_norm=True, element_bytes=4
    )
    kinds = {name: F32 if kind == BF16 else kind for name, kind in KINDS.items()}
    assert compiled_for(plan, capability, kinds).resident >= 1
