"""ahead.py: a kernel that asks for later weights computes the same bits."""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels import linear
from mini_engine.cuda.kernels.paged import Heads
from tests.support.attention_cases import FusedBatch


@pytest.mark.parametrize("bias", [None, torch.ones(24)])
def test_a_product_that_reads_ahead_changes_no_bit(bias: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    x, weight, norm_weight = torch.randn(2, 100), torch.randn(24, 100), torch.rand(100)
    plain, ahead, later = torch.empty(2, 24), torch.empty(2, 24), torch.randn(64, 24)
    linear.norm_linear(plain, x, norm_weight, weight, 1e-6, bias)
    linear.norm_linear(ahead, x, norm_weight, weight, 1e-6, bias, plan="prefetch", ahead=later)
    torch.testing.assert_close(ahead, plain, rtol=0, atol=0)
    with pytest.raises(ValueError, match="ahead is not contiguous"):
        linear.norm_linear(plain, x, norm_weight, weight, 1e-6, plan="prefetch", ahead=later.T)


def test_attention_that_reads_ahead_changes_no_bit() -> None:
    batch = FusedBatch.random(Heads(2, 1, 32, 4), [18], torch.bfloat16, qk_norm=False)
    plain, ahead = batch.run(3), torch.randn(64, 32).bfloat16()
    torch.testing.assert_close(batch.run(3, "prefetch", ahead), plain, rtol=0, atol=0)
    with pytest.raises(ValueError, match="ahead is not contiguous"):
        batch.run(3, "prefetch", ahead.T)
