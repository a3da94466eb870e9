"""The products on tensor cores in machine code for sm_90: what they are for, and must not lose.

What they share with all kernels (no spill, the order around the wait, bytes in flight, a ceiling
after the wait) stands in test_ahead_of_time.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from tests.cuda.kernels.test_ahead_of_time import CASES, LOAD, WAIT, compiled, named
from tests.support.kernel_shapes import Case

EXCHANGE = r"\b(SHFL|STS|LDS|LDSM)\b"  # data from one thread to another
ON_TENSOR_CORES = [c for c in CASES if "SLICES" in dict(c.constants) and c.name.endswith("_m1")]


@pytest.mark.parametrize("c", ON_TENSOR_CORES, ids=named)
def test_the_tensor_cores_get_their_weights_without_an_exchange_between_threads(c: Case) -> None:
    """What is exchanged are sums. If a compiler laid the tiles out in another way, each 16 bytes of
    a weight would take several moves more."""
    made = compiled(c, 90, True)
    (wait,) = made.where(WAIT)
    assert not [at for at in made.where(EXCHANGE) if at < wait]
    above = [at for at in made.where(LOAD) if at < wait]  # weights and gains, nothing else
    gains = dict(c.constants)["K"] * 2 if " norm" in c.name else 0
    assert len(above) * 16 * made.threads == c.prefetched + gains
    first_product = min(made.where(r"\bHMMA\.16816\.F32\.BF16"))
    if "norm_lm_head" in c.name:  # it norms x once, before the products of all its tiles
        return
    assert not [at for at in made.where(EXCHANGE) if wait < at < first_product]
    assert len(made.where(EXCHANGE)) <= 25
    assert len(made.where(r"\bBAR\.SYNC")) == 2
