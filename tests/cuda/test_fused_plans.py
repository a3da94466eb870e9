"""A decode step of five kernels a layer with every plan of its kernels, wired through the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.cuda import fused  # noqa: E402
from mini_engine.cuda.attention import DecodeAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.kernels.plans import BASE, PLANS  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from tests.cuda.test_fused import random_step  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES  # noqa: E402


def logits(weights: Weights, plan: str) -> torch.Tensor:
    """Of one step for three requests, of which the last is padding."""
    inputs, cache = random_step(weights, 3)
    model = FusedModel(weights, cache, kernels_per_layer=5, plan=plan)
    return model.head(model.body(inputs, DecodeAttention(8, 4)), inputs)[0][:2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_computes_the_same_step(plan: str, device: str) -> None:
    config = replace(FAMILIES["qwen3"], head_dim=32)
    with torch.inference_mode():
        weights = random_weights(config, torch.device(device), torch.float32, seed=7)
        got, want = logits(weights, plan), logits(weights, BASE)
    # sums in another order over a few layers of unit-sized values
    torch.testing.assert_close(got, want, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("plan", "later"),
    [(BASE, [None, None]), ("prefetch", ["o", "gate_up"]), ("all", ["o", "gate_up"])],
)
def test_only_a_plan_that_prefetches_hands_later_weights_to_the_kernels(
    plan: str, later: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O to norm and QKV, gate and up to the attention."""
    config = replace(FAMILIES["qwen3"], head_dim=32)
    weights = random_weights(config, torch.device("cpu"), torch.float32, seed=7)
    layer, given = weights.layers[0], []

    def watched(op: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object) -> None:
            names = [n for n in ("o", "gate_up") if any(a is getattr(layer, n) for a in args)]
            given.append(names[0] if names else None)
            op(*args)

        return call

    attention = fused.fused.rope_kv_write_attention
    monkeypatch.setattr(fused, "norm_linear", watched(fused.norm_linear))
    monkeypatch.setattr(fused.fused, "rope_kv_write_attention", watched(attention))
    with torch.inference_mode():
        logits(weights, plan)
    assert given[:2] == later
