"""The layer at nine kernels and at five gives what the plain model gives.

On a CPU every kernel's PyTorch reference stands in for it (its own tests compare the two in
Triton's interpreter): what is proven here is that the kernels are wired up as the model says.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mini_engine.bench import gate  # noqa: E402
from mini_engine.bench.variants import FusedGraph, OursEager  # noqa: E402
from mini_engine.cuda.attention import DecodeAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from mini_engine.step.kernels import StepShape, step_ops  # noqa: E402
from tests.support.gate_helpers import setup_of  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)
PER_LAYER: list[Literal[9, 5]] = [9, 5]
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"


def weights_of(family: str, device: str) -> Weights:
    config: ModelConfig = replace(FAMILIES[family], head_dim=32)
    if family == "qwen2":
        config = replace(config, hidden_size=64)
    return random_weights(config, torch.device(device), torch.float32, seed=7)


def random_step(weights: Weights, rows: int) -> tuple[StepInputs, KVCache]:
    """A decode step over contexts of several lengths, one row of it padding, and a full cache."""
    config, device = weights.config, weights.embed.device
    g = torch.Generator().manual_seed(1)
    contexts = torch.randint(1, 30, (rows,), generator=g)
    contexts[-1] = 0 if rows > 1 else contexts[-1]
    table = 1 + torch.randperm(8 * rows, generator=g).view(rows, 8)
    positions = (contexts - 1).clamp(min=0)
    slots = table.gather(1, (positions // 4)[:, None])[:, 0] * 4 + positions % 4
    slots = torch.where(contexts > 0, slots, 0)
    ids = torch.randint(0, config.vocab_size, (rows,), generator=g)
    arrays = (ids, positions, slots, contexts.clamp(max=1), contexts, torch.arange(rows), table)
    inputs = StepInputs(*[a.to(device=device, dtype=torch.int32) for a in arrays])
    shape = (8 * rows + 1, 4, config.num_kv_heads, config.head_dim)
    layers = range(config.num_layers)
    keys, values = (
        tuple(torch.randn(shape, generator=g).to(device) for _ in layers) for _ in range(2)
    )
    return inputs, KVCache(keys, values)


def copy_of(cache: KVCache) -> KVCache:
    return KVCache(*(tuple(t.clone() for t in ts) for ts in (cache.keys, cache.values)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_layer", PER_LAYER)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decode_step_of_any_batch_equals_the_plain_one(
    family: str, per_layer: Literal[9, 5], device: str
) -> None:
    """On either side of the limit: 4 and 5."""
    weights = weights_of(family, device)
    for rows in range(1, 41) if (family, per_layer) == ("qwen3", 5) else (1, 3, 4, 5, 17):
        inputs, cache = random_step(weights, rows)
        theirs = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
        copied = copy_of(cache)
        attention = DecodeAttention(8, 4)
        plain = Model(weights, copied)
        fused = FusedModel(weights, cache, kernels_per_layer=per_layer)
        live = inputs.context_lens > 0
        want, want_tokens = plain.next_step(plain.body(theirs, attention), theirs)
        got, got_tokens = fused.next_step(fused.body(inputs, attention), inputs)
        # float32 sums in another order over a few layers of unit-sized values
        torch.testing.assert_close(got[live], want[live], atol=2e-4, rtol=0)
        assert torch.equal(got_tokens[live], want_tokens[live])
        for name, mine in vars(inputs).items():
            assert torch.equal(mine[live], getattr(theirs, name)[live]), name
        for ours, other in zip(
            (*cache.keys, *cache.values), (*copied.keys, *copied.values), strict=True
        ):
            # block 0 is the null block: what padding leaves there is nobody's business
            torch.testing.assert_close(ours[1:], other[1:], atol=2e-4, rtol=0)
        assert not fused.counters.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_layer", PER_LAYER if SLOW else [5])
@pytest.mark.parametrize("batch", [17, 40] if SLOW else [17])
def test_a_wide_step_is_one_graph_around_the_products_of_a_library(
    batch: int, per_layer: Literal[9, 5], device: str
) -> None:
    """Replays decode what the plain model decodes; no op of the step gathers the cache."""
    setup = setup_of("qwen2", batch=batch, device=device, hidden_size=64)
    plain, variant = OursEager(setup), FusedGraph(setup, per_layer, False, 1)
    variant.prepare()
    wanted, tokens = gate.walk(plain, setup.first_tokens, 2)
    logits, sampled = gate.walk(variant, setup.first_tokens, 2)
    torch.testing.assert_close(logits, wanted, atol=2e-4, rtol=0)
    assert torch.equal(sampled, tokens)
    layers, listed = setup.model.config.num_layers, [op.name for op in variant.ops()]
    assert listed.count("gate_up_proj") == listed.count("silu_mul") == layers
    if device == "cpu":  # the emulator tells what it recorded
        (graph,) = variant.graphs.captured[batch].graphs
        ran = [op.split(".")[1] for op in graph.ops]  # type: ignore[union-attr]
        assert "index_select" not in ran
        assert ran.count("mm") + ran.count("addmm") == 4 * layers + 1
        # the sum after the last layer, and the cast of the argmax, are kernels that are not listed
        assert len(ran) == len(listed) + 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_layer", PER_LAYER)
def test_steps_that_feed_themselves_equal_the_plain_ones(
    per_layer: Literal[9, 5], device: str
) -> None:
    """Tokens and all that the next step reads, until requests stand at the end of their room."""
    weights = weights_of("qwen3", device)
    inputs, cache = random_step(weights, 3)
    theirs = StepInputs(**{name: t.clone() for name, t in vars(inputs).items()})
    copied = copy_of(cache)
    attention = DecodeAttention(8, 4)
    plain, fused = Model(weights, cache), FusedModel(weights, copied, kernels_per_layer=per_layer)
    live = inputs.context_lens > 0
    for _ in range(36):
        _, want = plain.next_step(plain.body(theirs, attention), theirs)
        _, got = fused.next_step(fused.body(inputs, attention), inputs)
        assert torch.equal(got[live], want[live])
        for name, mine in vars(inputs).items():
            assert torch.equal(mine[live], getattr(theirs, name)[live]), name
    padded = StepInputs(**{name: t[2:] for name, t in vars(random_step(weights, 3)[0]).items()})
    for name, was in vars(padded).items():
        assert torch.equal(vars(inputs)[name][2:], was), f"{name} of the padded row has changed"
    assert int(inputs.context_lens.max()) == 32


def test_a_layer_has_nine_kernels_or_five() -> None:
    weights = weights_of("qwen3", "cpu")
    inputs, cache = random_step(weights, 1)
    for per_layer in PER_LAYER:
        model = FusedModel(weights, cache, kernels_per_layer=per_layer)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model.next_step(model.body(inputs, DecodeAttention(8, 4)), inputs)
        ours = sum(e.count for e in profile.key_averages() if e.key.startswith("launch_bound::"))
        assert ours == per_layer * weights.config.num_layers + 2, "the head, and what picks from it"
        listed = step_ops(weights.config, StepShape.decode(1, 30), f"fused{per_layer}")
        assert per_layer == 9 or ours + 1 == len(listed), "and the embedding: the list, no more"
