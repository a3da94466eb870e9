"""Every kernel compiled for sm_80 and sm_90 at the sizes of two models, in `make slow` of three.
No GPU is needed.

What only a GPU can tell is its speed. What the compiler already tells: that nothing spills, that
enough programs fit on a multiprocessor to keep its bytes in flight, and that in the forms for
programmatic dependent launch the weights are loaded above the wait and what depends on the kernel
before is loaded below it.

Instructions after the wait are those of the listing: what one warp issues that runs straight
through. The ceilings are what Triton 3.6 and 3.7 make of the kernels of a step of one token, so
that a change that costs something shows. Where a change gains, lower them.

The table: python -m pytest tests/cuda/kernels/test_ahead_of_time.py -rP | grep regs
"""

from __future__ import annotations

import os
from functools import cache

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.cuda.kernels import norm
from mini_engine.model.config import named_shape
from tests.support.kernel_cases import Compiled, disassembled
from tests.support.kernel_shapes import MULTIPROCESSORS, Case, case, cases

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
MODELS = ("qwen3-0.6b", "qwen3-1.7b", *(("llama-3.2-1b",) if SLOW else ()))
WIDEST = "qwen3-1.7b"
NO_PRODUCTS = ("rms_norm", "silu_mul", "rope_kv_write", "decode_attention", "prefill")
ONCE = ("_m4", "_m256", *NO_PRODUCTS)
IN_FLIGHT = 22_000  # bytes a multiprocessor: 4.8 TB/s ÷ 132 × 0.6 µs (Little's law)
ROOM = 1.1  # a compiler's next version may take a few instructions more
CEILINGS = {
    "qwen3-0.6b norm_qkv_m1": 245, "qwen3-0.6b fused_attention": 905,
    "qwen3-0.6b o_add_m1": 102, "qwen3-0.6b norm_gate_up_m1": 264,
    "qwen3-0.6b down_add_m1": 113, "qwen3-0.6b norm_lm_head_m1": 793,
    "qwen3-0.6b pick_and_advance": 373, "qwen3-1.7b norm_qkv_m1": 246,
    "qwen3-1.7b o_add_m1": 132, "qwen3-1.7b norm_gate_up_m1": 267,
    "qwen3-1.7b down_add_m1": 151, "qwen3-1.7b norm_lm_head_m1": 799,
    "llama-3.2-1b norm_qkv_m1": 333, "llama-3.2-1b fused_attention": 951,
    "llama-3.2-1b norm_gate_up_m1": 267, "llama-3.2-1b down_add_m1": 132,
    "llama-3.2-1b norm_lm_head_m1": 799, "llama-3.2-1b pick_and_advance": 328,
}  # fmt: skip

WAIT, RELEASE = r"\bACQBULK\b", r"\bPREEXIT\b"
LOAD, WIDE_LOAD = r"\bLDG\.", r"\bLDG\.\S*128"
PAST_L1 = r"\bLD(G|GSTS)\.\S*(STRONG\.GPU|BYPASS)"  # .cg: what the step wrote
WRITE = r"\b(STG|ATOMG|RED)\b"


def all_cases() -> list[Case]:
    """Of all models, each kernel of a shape once; its name begins with the first model's.

    A second a kernel adds up, so what is not part of a step of one token, or of nine kernels, is
    compiled for one model only; `make slow` compiles it for all.
    """
    found: dict[tuple[object, ...], Case] = {}
    for model in MODELS:
        for c in cases(named_shape(model)):
            if SLOW or model == WIDEST or not c.name.endswith(ONCE):
                key = (c.kernel, c.constants, c.warps, c.stages, c.pointers)
                found.setdefault(key, Case(**{**vars(c), "name": f"{model} {c.name}"}))
    return list(found.values())


CASES = all_cases()
ON_SM_80 = [
    c for c in CASES if SLOW or not c.name.startswith(WIDEST) or c.name.endswith(NO_PRODUCTS)
]
PREFETCHING = [c for c in CASES if c.prefetched]


@cache
def compiled(c: Case, capability: int, pdl: bool) -> Compiled:
    return together(capability, pdl).get(c) or c.compile(capability, pdl=pdl)


@cache
def together(capability: int, pdl: bool) -> dict[Case, Compiled]:
    """All that is asked about here, taken apart in one go."""
    made = {c: c.compile(capability, pdl=pdl) for c in (CASES if pdl else ON_SM_80)}
    listings = disassembled([one.code for one in made.values()], capability)
    for one, listing in zip(made.values(), listings, strict=True):
        vars(one)["sass"] = listing
    return made


def named(c: Case) -> str:
    return c.name.replace(" ", "-")


@pytest.mark.parametrize("c", CASES, ids=named)
def test_nothing_spills_on_sm_90_with_dependent_launch(c: Case) -> None:
    made = compiled(c, 90, True)
    flying = made.resident * c.prefetched // 1024
    print(
        f"{c.name:30} {made.registers:3} regs {made.shared_bytes:6} B shared "
        f"{made.resident:2} programs a multiprocessor with {flying:3} KiB above the wait"
    )
    assert made.spilled_bytes == 0
    assert made.shared_bytes <= 227 * 1024
    assert made.resident >= 1


@pytest.mark.parametrize("name", [name for name in CEILINGS if name.startswith(MODELS)])
def test_what_a_kernel_does_after_the_wait_stays_below_its_ceiling(name: str) -> None:
    (c,) = (c for c in CASES if c.name == name)
    assert compiled(c, 90, True).instructions_after_wait <= CEILINGS[name] * ROOM


@pytest.mark.parametrize("c", ON_SM_80, ids=named)
def test_nothing_spills_on_sm_80_without_it(c: Case) -> None:
    made = compiled(c, 80, False)
    assert made.spilled_bytes == 0
    assert made.shared_bytes <= 163 * 1024
    assert not made.where(WAIT)


@pytest.mark.parametrize("c", PREFETCHING, ids=named)
def test_the_programs_of_a_multiprocessor_keep_enough_bytes_in_flight(c: Case) -> None:
    if "fused_attention" in c.name:
        pytest.skip("attention reads little: what counts for it is the wave, below")
    made = compiled(c, 90, True)
    assert made.resident * c.prefetched >= IN_FLIGHT


@pytest.mark.parametrize("c", [c for c in CASES if c.programs], ids=named)
def test_attention_and_o_are_one_wave(c: Case) -> None:
    """The kernel after them starts when their last program has started."""
    made = compiled(c, 90, True)
    assert c.programs <= made.resident * MULTIPROCESSORS


# ---------------------------------------------------------------- order in the machine code


@pytest.mark.parametrize("c", CASES, ids=named)
def test_release_comes_first_and_every_kernel_waits_before_it_reads_or_writes_the_steps_data(
    c: Case,
) -> None:
    made = compiled(c, 90, True)
    (release,), (wait,) = made.where(RELEASE), made.where(WAIT)
    assert release < wait
    assert not [at for at in made.where(LOAD) if at < release]
    assert min(made.where(WRITE)) > wait
    assert min(made.where(PAST_L1)) > wait


@pytest.mark.parametrize("c", PREFETCHING, ids=named)
def test_weights_are_loaded_above_the_wait_sixteen_bytes_at_a_time(c: Case) -> None:
    made = compiled(c, 90, True)
    (wait,) = made.where(WAIT)
    above = [at for at in made.where(WIDE_LOAD) if at < wait]
    assert len(above) * 16 * made.threads >= c.prefetched
    (release,) = made.where(RELEASE)
    assert all(at > release for at in above)


@pytest.mark.parametrize("c", [c for c in CASES if "_attention" in c.name], ids=named)
def test_parts_are_published_before_the_count_and_read_after_it(c: Case) -> None:
    """store, barrier, fence, atomic add, barrier, load past L1: see `combine_if_last`. In the fused
    attention splits are of two kinds, and the parts of both stand before the count."""
    made = compiled(c, 90, True)
    (count,) = made.where(r"\bATOMG\.\S*ADD\S*STRONG\.GPU")
    barriers, fences = made.where(r"\bBAR\.SYNC"), made.where(r"\bMEMBAR\.\S*GPU")
    parts = [at for at in made.where(r"\bSTG\.") if at < count]
    reads = [at for at in made.where(PAST_L1) if at > count]
    assert parts
    assert reads
    assert any(max(parts) < at < count for at in barriers)
    assert any(max(parts) < at < count for at in fences)
    assert any(count < at < min(reads) for at in barriers)


def test_dependent_launch_does_not_exist_below_sm_90() -> None:
    """A hard error of the assembler; the ops refuse it before that, in one line."""
    tiny = case("tiny", norm.rms_norm_kernel, 1, {"WIDTH": 64, "BLOCK": 64})
    with pytest.raises(Exception, match=r"sm_90|griddepcontrol"):
        tiny.compile(80, pdl=True)
