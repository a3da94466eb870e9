"""A KV cache in fp8 in the CUDA wing: plain and fused write the same, and memory counts its bytes.

On a CPU the kernels' references run; tests/cuda/kernels/interpreted/test_e4m3.py has the kernels.
"""

from __future__ import annotations

from dataclasses import replace
from math import frexp
from typing import Literal
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


from mini_engine.cuda import generate as writing  # noqa: E402
from mini_engine.cuda.attention import DecodeAttention, HostAttention  # noqa: E402
from mini_engine.cuda.fp8 import FP8, HEADROOM, LARGEST, scale_for, to_e4m3  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model, measured_scales  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, load_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.generation import SHIPPED, limits_for  # noqa: E402
from mini_engine.model.config import ModelConfig, named_shape  # noqa: E402
from mini_engine.sim.generate import open_checkpoint  # noqa: E402
from tests.cuda.test_fused import random_step, weights_of  # noqa: E402
from tests.support.torch_helpers import DEVICES, LIMITS, batch_of, inference, step, tiny_weights  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)

CPU = torch.device("cpu")
PROMPTS = ["Return the", "Raises an exception if", "This class"]
POISON = 0x7F  # the code of NaN


@pytest.fixture(scope="module")
def shipped() -> tuple[Weights, tuple[torch.Tensor, ...]]:
    with torch.inference_mode():
        weights = load_weights(ModelConfig.from_folder(SHIPPED), SHIPPED, CPU, torch.float32)
        return weights, measured_scales(weights)


@given(largest=st.floats(2.0**-100, 2.0**100))
def test_a_scale_is_the_smallest_power_of_two_that_leaves_headroom(largest: float) -> None:
    mantissa, _ = frexp(scale_for(largest))
    assert mantissa == 0.5
    assert HEADROOM * largest <= LARGEST * scale_for(largest) < 2 * HEADROOM * largest
    assert scale_for(0.0) == 1.0


def test_the_likelihood_of_a_text_hardly_changes(
    shipped: tuple[Weights, tuple[torch.Tensor, ...]],
) -> None:
    """The scales were measured on other tokens, and still no key or value reaches the end."""
    weights, scales = shipped
    said = "Return the number of items. If the file does not exist, raise OSError. "
    ids = torch.tensor(open_checkpoint(SHIPPED).tokenizer.encode(said * 4), dtype=torch.int32)
    n, places = len(ids), torch.arange(len(ids), dtype=torch.int32)
    blocks, length = 1 + -(-n // 16), torch.tensor([n], dtype=torch.int32)
    table = torch.arange(1, blocks, dtype=torch.int32)[None]
    inputs = StepInputs(ids, places, places + 16, length, length, places, table)
    logs = []
    for chosen in ((), scales):
        cache = KVCache.allocate(weights.config, blocks, 16, CPU, torch.float32, chosen)
        model = Model(weights, cache)
        logits, _ = model.head(model.body(inputs, HostAttention((n,), (n,), 16)), inputs)
        logs.append(logits.double().log_softmax(-1))
    kl = (logs[0].exp() * (logs[0] - logs[1])).sum(-1).mean()
    assert 1e-5 < kl < 0.03
    nll = [-log[places[:-1], ids[1:]].mean() for log in logs]
    assert abs(nll[1] - nll[0]) < 0.02
    for one in (*cache.keys, *cache.values):
        largest = one.float().abs().amax(dim=(0, 1, 3))  # of each head
        assert (largest < LARGEST).all()
        assert (largest > LARGEST / 16).all()  # and the range is used


# ---- text


def written(model: Model, limits: SchedulerLimits, mode: str) -> list[tuple[int, ...]]:
    tokenizer = open_checkpoint(SHIPPED).tokenizer
    eos = tokenizer.eos_token_ids
    requests = [Request(p, tokenizer.encode(p), 10, eos_ids=eos) for p in PROMPTS]
    dispatcher = GraphDispatcher(mode, [1, 4], limits.max_num_seqs)
    runner = TorchRunner(model, limits, dispatcher, graphs_for("cpu"))
    runner.capture()
    done = {c.request_id: c.tokens for c in Engine(runner, limits, dispatcher).run(requests)}
    return [done[p] for p in PROMPTS]


def test_plain_and_fused_write_the_same(shipped: tuple[Weights, tuple[torch.Tensor, ...]]) -> None:
    """In float32, live and in graphs of either kind: what is stored is the same to the bit unless a
    number lies at a tie, and these tokens are no near ties."""
    weights, scales = shipped
    limits = replace(limits_for(weights.config, 3), num_blocks=40)

    def cache() -> KVCache:
        made = KVCache.allocate(weights.config, 40, 16, CPU, torch.float32, scales)
        for one in (*made.keys, *made.values):
            assert one.dtype == FP8
            one.view(torch.uint8).fill_(POISON)
        return made

    plain = written(Model(weights, cache()), limits, "NONE")
    assert written(Model(weights, cache()), limits, "PIECEWISE") == plain
    nine = FusedModel(weights, cache(), kernels_per_layer=9)
    assert written(nine, limits, "NONE") == plain
    five = FusedModel(weights, cache(), kernels_per_layer=5)
    assert written(five, limits, "FULL_AND_PIECEWISE") == plain


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("per_layer", [9, 5])
def test_a_decode_step_over_a_cache_in_fp8_equals_the_plain_one(
    per_layer: Literal[9, 5], device: str
) -> None:
    weights = weights_of("qwen3", device)
    inputs, wide = random_step(weights, 3)
    scales = torch.tensor([[0.25, 0.125], [0.5, 0.0625]], device=device)
    caches = []
    for _ in range(2):
        keys = tuple(to_e4m3(k, scales[0]) for k in wide.keys)
        values = tuple(to_e4m3(v, scales[1]) for v in wide.values)
        caches.append(KVCache(keys, values, (scales,) * len(keys)))
    attention, live = DecodeAttention(8, 4), inputs.context_lens > 0
    plain = Model(weights, caches[0])
    fused = FusedModel(weights, caches[1], kernels_per_layer=per_layer)
    want, _ = plain.head(plain.body(inputs, attention), inputs)
    got, _ = fused.head(fused.body(inputs, attention), inputs)
    # as in test_fused.py; a GPU's float32 may lie on the other side of a tie, one code further on
    atol = 2e-4 if device == "cpu" else 5e-2
    torch.testing.assert_close(got[live], want[live], atol=atol, rtol=0)
    for ours, theirs in zip(caches[1].keys, caches[0].keys, strict=True):
        off = ours[1:].view(torch.int8).int() - theirs[1:].view(torch.int8).int()
        assert off.abs().max() <= (0 if device == "cpu" else 1)


# ---- what is stored and read


@pytest.mark.parametrize("live", [True, False])
def test_nan_beyond_the_contexts_is_harmless_in_a_cache_of_fp8(live: bool) -> None:
    weights = tiny_weights()
    batch = batch_of([(6, 1), (13, 1), (0, 1)] if not live else [(6, 1), (4, 5), (0, 3)])
    attention = (
        HostAttention(batch.query_lens, batch.context_lens, LIMITS.block_size)
        if live
        else DecodeAttention(8, LIMITS.block_size)
    )
    logits = []
    for rest in (0, POISON):
        scales = tuple(torch.full((2, weights.config.num_kv_heads), 0.25) for _ in weights.layers)
        cache = KVCache.allocate(
            weights.config, LIMITS.num_blocks, LIMITS.block_size, CPU, torch.float32, scales
        )
        for one in (*cache.keys, *cache.values):
            rows = one.view(torch.uint8).flatten(0, 1).fill_(rest)
            for entry in batch.entries:
                for position in range(entry.start):
                    block = entry.block_table[position // LIMITS.block_size]
                    rows[block * LIMITS.block_size + position % LIMITS.block_size] = position + 32
        requests = batch.num_reqs
        logits.append(step(Model(weights, cache), batch, attention, batch.num_tokens, requests)[0])
    assert not logits[1].isnan().any()
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=0)


# ---- what is refused, and what fits


def test_twice_as_many_blocks_fit_where_a_number_takes_a_byte() -> None:
    config, backend = named_shape("qwen3-0.6b"), graphs_for("cpu")
    wanted = replace(limits_for(config, 16), num_blocks=100_000)
    fitting = {}
    with (
        patch.object(writing, "free_bytes", return_value=20 * 2**30),
        patch.object(writing, "no_room", return_value=None),
    ):
        for kind in ("auto", "fp8"):
            limits = writing.limits_that_fit(
                config, wanted, backend, torch.bfloat16, lambda _: None, kind
            )
            fitting[kind] = limits.num_blocks
    assert fitting["fp8"] - 2 * fitting["auto"] in (0, 1)
