"""The GEMV kernels' alternatives in machine code for sm_90, at the sizes of three models.

What each must not lose of what gemv.py's kernels have (test_ahead_of_time.py), and what it is for:
fewer instructions between the wait and the store. The usual run compiles the few that tell most,
the slow profile all of them.

The table: python -m pytest tests/cuda/kernels/test_gemv_alternatives.py -rP | grep regs
"""

from __future__ import annotations

import os
from functools import cache

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.model.config import named_shape
from tests.cuda.kernels.test_ahead_of_time import (
    IN_FLIGHT,
    LOAD,
    MODELS,
    MULTIPROCESSORS,
    PAST_L1,
    RELEASE,
    SLOW,
    WAIT,
    WIDE_LOAD,
    WRITE,
)
from tests.support.gemv_shapes import PRODUCTS, alternative
from tests.support.kernel_cases import Compiled

EXCHANGE = r"\b(SHFL|STS|LDS|LDSM)\b"  # data from one thread to another
USUAL = [
    ("qwen3-1.7b", "norm_qkv", "dot", 1),
    ("qwen3-1.7b", "norm_gate_up", "dot", 1),
    ("qwen3-1.7b", "down_add", "dot", 1),
    ("qwen3-0.6b", "o_add", "dot", 1),
    ("qwen3-1.7b", "down_add", "pairs", 1),
    ("qwen3-1.7b", "down_add", "x-in-l1", 1),
]
EVERY = [
    (model, product, plan, tokens)
    for model in MODELS
    for product in PRODUCTS
    for plan in ("pairs", "dot", "x-in-l1")
    for tokens in (1, 4)
]

# Instructions after the wait at one token that a first compilation showed, and a tenth more. The
# base kernels have 438 to 443, 487 to 492, 246 to 422, 208 to 350 and 1,823 to 1,988 there.
MOST_AFTER_THE_WAIT = {
    ("norm_qkv", "dot"): 270,  # 243 and 244; Llama's 4 warps do 335 for twice the columns each
    ("norm_gate_up", "dot"): 290,
    ("down_add", "dot"): 160,
    ("o_add", "dot"): 145,
    ("norm_lm_head", "dot"): 810,
    ("down_add", "pairs"): 365,
}

each = pytest.mark.parametrize(
    ("model", "product", "plan", "tokens"), EVERY if SLOW else USUAL, ids=lambda part: str(part)
)


@cache
def compiled(model: str, product: str, plan: str, tokens: int) -> Compiled:
    return alternative(named_shape(model), product, plan, tokens).compile(90, pdl=True)


def after(made: Compiled) -> int:
    """Instructions from the wait to the end."""
    (wait,) = made.where(WAIT)
    return sum(not line.startswith(("NOP", "BRA")) for line in made.sass[wait + 1 :])


@each
def test_an_alternative_keeps_what_the_kernels_for_a_floor_must_have(
    model: str, product: str, plan: str, tokens: int
) -> None:
    """No spill; release, then weights and gains and nothing else, 16 bytes at a time, then the
    wait, then x, residual and every write; enough bytes in flight, and the chain's links in one
    wave."""
    shape = alternative(named_shape(model), product, plan, tokens)
    made = compiled(model, product, plan, tokens)
    (release,), (wait,) = made.where(RELEASE), made.where(WAIT)
    print(
        f"{model} {shape.name:24} {made.registers:3} regs {after(made):4} after the wait "
        f"{made.resident:2} programs a multiprocessor"
    )
    assert made.spilled_bytes == 0
    above = [at for at in made.where(LOAD) if at < wait]
    assert min(above) > release
    wide = [at for at in made.where(WIDE_LOAD) if at < wait]
    gains = dict(shape.constants)["K"] * 2 if product.startswith("norm") else 0
    assert len(wide) * 16 * made.threads == shape.prefetched + gains
    assert len(wide) == len(above)
    assert min([at for at in made.where(LOAD) if at > wait]) < min(made.where(WRITE))
    assert min(made.where(WRITE)) > wait
    if plan != "x-in-l1":
        assert min(made.where(PAST_L1)) > wait
    assert made.resident * shape.prefetched >= IN_FLIGHT
    if tokens == 1:
        assert shape.programs <= made.resident * MULTIPROCESSORS


@pytest.mark.parametrize(
    ("model", "product", "plan", "tokens"),
    [c for c in (EVERY if SLOW else USUAL) if c[2] == "dot" and c[3] == 1],
)
def test_the_tensor_cores_get_their_weights_without_an_exchange_between_threads(
    model: str, product: str, plan: str, tokens: int
) -> None:
    """What is exchanged are sums. If a compiler laid the tiles out in another way, each 16 bytes of
    a weight would take several moves more."""
    made = compiled(model, product, plan, tokens)
    (wait,) = made.where(WAIT)
    assert not [at for at in made.where(EXCHANGE) if at < wait]
    first_product = min(made.where(r"\bHMMA\.16816\.F32\.BF16"))
    assert not [at for at in made.where(EXCHANGE) if wait < at < first_product]
    if product != "norm_lm_head":  # its tiles are summed one after another
        assert len(made.where(EXCHANGE)) <= 25
        assert len(made.where(r"\bBAR\.SYNC")) == 2


@pytest.mark.parametrize(
    ("model", "product", "plan", "tokens"),
    [c for c in (EVERY if SLOW else USUAL) if c[1:3] in MOST_AFTER_THE_WAIT and c[3] == 1],
)
def test_less_is_left_to_do_after_the_wait(
    model: str, product: str, plan: str, tokens: int
) -> None:
    made = compiled(model, product, plan, tokens)
    most = MOST_AFTER_THE_WAIT[product, plan]
    assert after(made) <= (370 if (model, product) == ("llama-3.2-1b", "norm_qkv") else most)
