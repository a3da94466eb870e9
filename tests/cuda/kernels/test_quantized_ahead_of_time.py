"""The kernels of quantised weights, compiled for sm_90 and sm_80 at the sizes of three models.

A second or two a kernel: the default profile compiles a few, `make slow` each product of each model
in each form, for one token and for four.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from mini_engine.model.config import named_shape
from tests.cuda.kernels.test_ahead_of_time import IN_FLIGHT, PAST_L1, WAIT, WIDE_LOAD, WRITE
from tests.support.kernel_cases import Compiled
from tests.support.kernel_shapes import Case
from tests.support.quantized_shapes import FORMS, PRODUCTS, quantized

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b")
# Instructions after the wait, a warp: the larger of Triton 3.6.0's and 3.7.1's; with a little room.
CEILINGS = {
    ("qwen3-1.7b", "norm_qkv", "int8", 1): 838,
    ("qwen3-1.7b", "norm_qkv", "int4", 1): 1611,
    ("qwen3-1.7b", "down_add", "int4", 1): 1251,
}
ROOM = 1.1
ALL = [(m, p, f, t) for m in MODELS for p in PRODUCTS for f in FORMS for t in (1, 4)]
CASES = ALL if SLOW else list(CEILINGS)
each = pytest.mark.parametrize("which", CASES, ids=lambda which: "-".join(map(str, which)))


def case_of(which: tuple[str, str, str, int]) -> Case:
    model, product, form, tokens = which
    return quantized(named_shape(model), product, form, tokens)


@cache
def compiled(which: tuple[str, str, str, int]) -> Compiled:
    return case_of(which).compile(90, pdl=True)


@each
def test_nothing_spills_and_enough_bytes_are_in_flight(which: tuple[str, str, str, int]) -> None:
    """With several tokens registers hold unpacked codes, and half of the bytes have to do."""
    made, c = compiled(which), case_of(which)
    assert made.spilled_bytes == 0
    assert made.resident * c.prefetched >= IN_FLIGHT / (1 if which[3] == 1 else 2)


@each
def test_words_are_loaded_above_the_wait_sixteen_bytes_at_a_time(
    which: tuple[str, str, str, int],
) -> None:
    made, c = compiled(which), case_of(which)
    (wait,) = made.where(WAIT)
    above = [at for at in made.where(WIDE_LOAD) if at < wait]
    assert len(above) * 16 * made.threads >= c.prefetched
    assert min(made.where(WRITE)) > wait
    assert min(made.where(PAST_L1)) > wait
    # what is loaded below it is past L1: x and the residual, and never a weight or a scale
    assert not [at for at in made.where(r"\bLDG\.") if at > wait and at not in made.where(PAST_L1)]


@pytest.mark.parametrize("which", CEILINGS, ids=lambda which: "-".join(map(str, which)))
def test_what_is_left_after_the_wait_stays_below_its_ceiling(
    which: tuple[str, str, str, int],
) -> None:
    assert compiled(which).instructions_after_wait <= CEILINGS[which] * ROOM


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_code_is_unpacked_by_one_and_or(form: str) -> None:
    """`LOP3` for each weight and no more than a fifth beside, which split words and addresses; no
    conversion from an integer but those of zeros, one for each word."""
    which = ("qwen3-1.7b", "norm_qkv", form, 1)
    made, c = compiled(which), case_of(which)
    bits = FORMS[form]
    a_thread = c.prefetched * 8 // bits // made.threads
    assert len(made.where(r"\bLOP3")) <= 1.2 * a_thread
    assert len(made.where(r"\bI2F")) <= a_thread * bits // 32


@pytest.mark.parametrize("which", ALL if SLOW else CASES[2:3])
def test_nothing_spills_on_sm_80_without_dependent_launch(which: tuple[str, str, str, int]) -> None:
    made = case_of(which).compile(80, pdl=False)
    assert made.spilled_bytes == 0
    assert not made.where(WAIT)
