"""The kernels that bring weights of later ones to L2, compiled ahead of time: no GPU is needed."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.cuda.kernels.plans import BASE, plan_of
from mini_engine.model.config import ModelConfig, named_shape
from tests.support.gemv_shapes import alternative
from tests.support.kernel_shapes import Case, fused_attention_case

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
MODELS = ("qwen3-1.7b", *(("qwen3-0.6b", "llama-3.2-1b") if SLOW else ()))
KERNELS = [("norm_qkv", "all"), ("fused_attention", BASE)]
if SLOW:
    KERNELS += [("norm_qkv", "prefetch"), ("fused_attention", "attention-apart")]
WAIT, WIDE_LOAD, REQUEST = r"\bACQBULK\b", r"\bLDG\.\S*128", r"\bUBLKPF"
FLOATS = r"\b(FADD|FFMA|HMMA|MUFU|SHFL|LDG|STG)\b"  # no FMUL: Triton 3.6 computes one twice


def pair(c: ModelConfig, kernel: str, plan: str) -> tuple[Case, Case, int]:
    """A kernel that reads ahead, the same without, and how many bytes all its programs want."""
    if kernel == "norm_qkv":
        size = c.q_size * c.hidden_size * c.dtype_bytes  # all of O
        return alternative(c, kernel, plan, ahead=size), alternative(c, kernel, plan), size
    limit = plan_of("prefetch").prefetch  # of gate and up
    ahead = fused_attention_case(c, kernel, plan, ahead=limit)
    return ahead, fused_attention_case(c, kernel, plan), limit


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("kernel", "plan"), KERNELS)
def test_reading_ahead_comes_after_the_programs_own_loads_and_computes_nothing(
    model: str, kernel: str, plan: str
) -> None:
    """Between the last wide load and the wait; the arithmetic is the same without it; and all that
    is wanted is asked for, but for the lines that programs cannot share."""
    case, without, wanted = pair(named_shape(model), kernel, plan)
    made, plain = case.compile(90, pdl=True), without.compile(90, pdl=True)
    share, spans = (dict(case.constants)[name] for name in ("SHARE", "SPANS"))
    requests, (wait,) = made.where(REQUEST), made.where(WAIT)
    above = [at for at in made.where(WIDE_LOAD) if at < wait]
    assert len(requests) == spans
    assert len(above) * 16 * made.threads >= case.prefetched
    assert max(above) < min(requests) <= max(requests) < wait
    assert made.spilled_bytes == 0
    assert not plain.where(REQUEST)
    counts = [Counter(re.findall(FLOATS, "\n".join(m.sass))) for m in (made, plain)]
    assert counts[0] == counts[1]
    assert 0 <= wanted - case.programs * share * spans < case.programs * 128 * spans


def test_below_sm_90_every_thread_asks_for_lines() -> None:
    case, _, _ = pair(named_shape(MODELS[0]), "norm_qkv", "prefetch")
    assert case.compile(80, pdl=False).where(r"\bCCTL\.\S*PF2")
