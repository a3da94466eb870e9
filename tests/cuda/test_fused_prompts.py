"""Prompts, chunks and mixed batches in kernels: what `FusedModel` gives is what `Model` gives.

On a CPU the kernels' references stand in for them; tests/cuda/kernels/interpreted/test_prefill.py
holds the attention kernel against its own, and test_layer.py runs a whole mixed step in kernels.
"""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.attention import Attention, HostAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel, PagedAttention  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StaticInputs, StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, load_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import ScheduledBatch, SchedulerLimits  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.support.torch_helpers import DEVICES, batch_of, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)

# float32 on both sides, other orders of summation over four layers; trained logits reach 20
TOLERANCE = 1e-3
CHUNKS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4)
PROMPTS = ((3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46), (26, 43), (38, 32, 79, 50, 28, 84, 19))


@cache
def trained(device: str) -> Weights:
    config = ModelConfig.from_folder(SHIPPED)
    return load_weights(config, SHIPPED, torch.device(device), torch.float32)


def limits_with(block_size: int) -> SchedulerLimits:
    blocks = 1 + 4 * -(-60 // block_size)
    return SchedulerLimits(
        max_num_seqs=6, max_num_batched_tokens=96, num_blocks=blocks, block_size=block_size,
        max_model_len=64,
    )  # fmt: skip


def warm_cache(weights: Weights, limits: SchedulerLimits) -> KVCache:
    """The same numbers at every call."""
    device = weights.embed.device
    made = KVCache.allocate(
        weights.config, limits.num_blocks, limits.block_size, device, torch.float32
    )
    generator = torch.Generator(device).manual_seed(5)
    for one in (*made.keys, *made.values):
        one.normal_(generator=generator)
    return made


def run(
    model: Model, attention: Attention, batch: ScheduledBatch, inputs: StepInputs
) -> tuple[torch.Tensor, torch.Tensor]:
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    return logits[: batch.num_reqs], tokens[: batch.num_reqs]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=settings.default.max_examples // 4)
@given(
    chunks=CHUNKS,
    block_size=st.sampled_from([1, 3, 4, 16]),
    padding=st.tuples(st.integers(0, 12), st.integers(0, 2)),
    sdpa=st.booleans(),
)
def test_a_mixed_step_equals_the_plain_one(
    device: str,
    chunks: list[tuple[int, int]],
    block_size: int,
    padding: tuple[int, int],
    sdpa: bool,
) -> None:
    """Logits, tokens and the cache: with FlashAttention, and with SDPA between the same kernels."""
    weights, limits = trained(device), limits_with(block_size)
    batch = batch_of(chunks, limits=limits)
    inputs = StaticInputs(limits, 96, torch.device(device)).fill(
        batch, batch.num_tokens + padding[0], batch.num_reqs + padding[1]
    )
    host = HostAttention(batch.query_lens, batch.context_lens, block_size)
    plain = Model(weights, warm_cache(weights, limits))
    fused = FusedModel(weights, warm_cache(weights, limits), kernels_per_layer=5)
    wanted, tokens = run(plain, host, batch, inputs)
    got, ours = run(fused, host if sdpa else fused.live_attention(batch), batch, inputs)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
    assert ours.tolist() == tokens.tolist()
    for mine, theirs in zip(
        (*fused.cache.keys, *fused.cache.values), (*plain.cache.keys, *plain.cache.values),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(mine[1:], theirs[1:], atol=TOLERANCE, rtol=0)


def test_a_layer_of_a_mixed_step_is_nine_ops_five_of_them_kernels_of_ours() -> None:
    """The four others are a library's products."""
    weights, limits = trained("cpu"), limits_with(4)
    batch = batch_of([(5, 1), (7, 6)], limits=limits)
    inputs = StaticInputs(limits, 96, torch.device("cpu")).fill(batch, 7, 2)
    model = FusedModel(weights, warm_cache(weights, limits), kernels_per_layer=5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model.body(inputs, PagedAttention())
    counts = {e.key: e.count for e in profile.key_averages()}
    layers = weights.config.num_layers
    assert sum(n for key, n in counts.items() if key.startswith("launch_bound::")) == 5 * layers
    assert counts["launch_bound::prefill_attention"] == layers
    assert counts["aten::mm"] == 4 * layers


def test_pieces_hold_our_kernels_and_attention_runs_between_them() -> None:
    weights, limits = trained("cpu"), limits_with(4)
    dispatcher = GraphDispatcher("PIECEWISE", [8], limits.max_num_seqs)
    model = FusedModel(weights, warm_cache(weights, limits), kernels_per_layer=5)
    runner = TorchRunner(model, limits, dispatcher, graphs_for("cpu"))
    runner.capture()
    layers, graphs = weights.config.num_layers, runner.piecewise.captured[8].graphs
    names = [op for graph in graphs for op in graph.ops]  # type: ignore[attr-defined]
    assert len(graphs) == layers + 1
    for kernel in ("rope_kv_write", "silu_mul"):
        assert sum(kernel in name for name in names) == layers
    assert sum("rms_norm" in name for name in names) == 2 * layers
    assert not [name for name in names if "attention" in name]
