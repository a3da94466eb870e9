"""cuda/model.py: the logits of transformers and of the simulator, and tokens fed back on the
device as the host would feed them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.attention import Attention, DecodeAttention, RaggedAttention  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StaticInputs  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import load_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import (  # noqa: E402
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.blocks import BlockPool  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.generation import SHIPPED as CHECKPOINT  # noqa: E402
from mini_engine.engine.step_arrays import step_arrays  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.sim.test_model import reference  # noqa: E402
from tests.support.torch_helpers import (  # noqa: E402
    CPU,
    DEVICES,
    FAMILIES,
    LIMITS,
    MAX_BLOCKS,
    TOLERANCE,
    LoneTorchModel,
    batch_of,
    random_folder,
    step,
    tiny_weights,
    torch_model,
    warm_model,
)

# ---------------------------------------------------------------- against others


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_moe"])
def test_logits_equal_transformers_in_prefill_chunks_and_decode(
    family: str, seed: int, device: str, tmp_path: Path
) -> None:
    theirs = reference(family, seed)
    theirs.save_pretrained(tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    weights = load_weights(config, tmp_path, torch.device(device), torch.float32)
    ours = LoneTorchModel(weights, seed=seed)
    ids = np.random.default_rng(seed).integers(0, config.vocab_size, 40).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0].numpy()
    parts = [ours.logits(ids[:11]), ours.logits(ids[11:12], 11), ours.logits(ids[12:30], 12)]
    for i in range(30, 40):
        attention = [DecodeAttention(16, 4), RaggedAttention(10, 4), None][i % 3]
        parts.append(ours.logits([ids[i]], i, attention))
    assert np.abs(expected).max() > 0.5  # not a comparison of zeros
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_the_engine_writes_the_shipped_checkpoints_greedy_text(device: str) -> None:
    config = ModelConfig.from_folder(CHECKPOINT)
    weights = load_weights(config, CHECKPOINT, torch.device(device), torch.float32)
    golden = json.loads((CHECKPOINT / "greedy.json").read_text())["prompts"]
    assert len(golden) >= 6
    limits = SchedulerLimits(4, 24, 200, 16, config.max_position_embeddings)
    requests = [
        Request(str(i), prompt["prompt_ids"], len(prompt["ids"]))
        for i, prompt in enumerate(golden)
    ]  # fmt: skip
    none = GraphDispatcher("NONE", (), 4)
    model = torch_model(weights, limits.num_blocks, limits.block_size)
    engine = Engine(TorchRunner(model, limits, none, graphs_for(device)), limits, none)
    written = {c.request_id: list(c.tokens) for c in engine.run(requests)}
    assert written == {str(i): prompt["ids"] for i, prompt in enumerate(golden)}


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_near_float32(family: str, tmp_path: Path) -> None:
    config = FAMILIES[family]
    folder = random_folder(config, tmp_path)
    ids = list(range(20))
    exact = LoneTorchModel(load_weights(config, folder, CPU, torch.float32)).logits(ids)
    rounded = LoneTorchModel(load_weights(config, folder, CPU, torch.bfloat16)).logits(ids)
    # bfloat16 keeps 8 bits: each of the dozen roundings a layer errs by up to 2^-9 of its size.
    error = np.abs(rounded - exact)
    assert 0 < error.max() < 0.15
    assert error.mean() < 0.03


# ---------------------------------------------------------------- feeding back on the device


def with_room(batch: ScheduledBatch, steps: int) -> ScheduledBatch:
    """The same requests with blocks for `steps` tokens more, as a host that runs k steps in one
    replay hands them out."""
    pool = BlockPool(LIMITS.num_blocks, LIMITS.block_size)
    return ScheduledBatch(
        tuple(
            e._replace(block_table=pool.allocate(e.request.request_id, e.context_len + steps))
            for e in batch.entries
        )
    )


def grown(batch: ScheduledBatch, tokens: Sequence[int]) -> ScheduledBatch:
    """The decode batch after this one, as the host would schedule it."""
    for entry, token in zip(batch.entries, tokens, strict=True):
        entry.state.output.append(token)
    return ScheduledBatch(tuple(e._replace(start=e.context_len) for e in batch.entries))


@pytest.mark.parametrize("device", DEVICES)
@given(
    starts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    steps=st.integers(1, 7),
    padding=st.integers(0, 3),
)
def test_advancing_on_the_device_equals_driving_from_the_host(
    device: str, starts: list[int], steps: int, padding: int
) -> None:
    batch = with_room(batch_of([(start, 1) for start in starts]), steps)
    rows = min(LIMITS.max_num_seqs, batch.num_reqs + padding)
    attention = DecodeAttention(MAX_BLOCKS, 4)
    weights = tiny_weights(device)
    on_device, on_host = warm_model(weights), warm_model(weights)
    inputs = StaticInputs(LIMITS, LIMITS.max_num_batched_tokens, torch.device(device))
    fed_back = inputs.fill(batch, rows, rows)
    written = on_device.decode(fed_back, attention, steps)[:, : batch.num_reqs]
    for sampled in written:
        _, tokens = step(on_host, batch, attention, rows, rows)
        assert torch.equal(tokens, sampled)
        batch = grown(batch, tokens.tolist())
    for name, array in step_arrays(batch, LIMITS).items():
        buffer = getattr(fed_back, name).cpu().numpy()
        assert np.array_equal(buffer[: len(array)], array), name
        assert name == "last_rows" or not buffer[len(array) :].any(), name  # padding stays null
    for ours, theirs in zip(on_device.cache.keys, on_host.cache.keys, strict=True):
        # not the null block: on a GPU nobody says which of several padded rows writes it last
        assert torch.equal(ours[1:], theirs[1:])


def test_running_on_over_the_end_harms_nobody_else() -> None:
    """The first request runs on over the model's context, the second over its blocks, the third
    has room for all its steps."""
    first, second, third = batch_of([(29, 1), (3, 1), (6, 1)]).entries
    attention = DecodeAttention(MAX_BLOCKS, 4)
    model, lone = warm_model(tiny_weights()), warm_model(tiny_weights())
    third = third._replace(block_table=(30, 31, 32, 33))  # nobody else's
    batch = ScheduledBatch((first, second, third))
    inputs = StaticInputs(LIMITS, 24, CPU).fill(batch, 3, 3)
    together = model.decode(inputs, attention, 6)
    alone_inputs = StaticInputs(LIMITS, 24, CPU).fill(ScheduledBatch((third,)), 1, 1)
    assert together[:, 2].tolist() == lone.decode(alone_inputs, attention, 6)[:, 0].tolist()
    assert inputs.positions.tolist() == [31, 9, 12]  # 32 positions are all there are
    assert inputs.context_lens.tolist() == [32, 10, 13]
    assert inputs.slot_mapping.tolist()[1] == 9 % 4  # in the null block


def test_a_block_table_wider_than_the_context_does_not_lead_beyond_it() -> None:
    """Blocks of 5 do not divide a context of 32: slots of the last block have no position."""
    limits = replace(LIMITS, block_size=5)
    model = torch_model(tiny_weights(), limits.num_blocks, 5)
    state = RequestState(Request("a", range(31), 9))
    entry = ScheduledRequest(state, 30, 1, (1, 2, 3, 4, 5, 6, 7), False, samples=True)
    inputs = StaticInputs(limits, 24, CPU).fill(ScheduledBatch((entry,)), 1, 1)
    model.decode(inputs, DecodeAttention(7, 5), 4)
    assert inputs.positions.tolist() == [31]
    assert inputs.context_lens.tolist() == [32]
    assert inputs.slot_mapping.tolist() == [7 * 5 + 1]


def test_a_step_with_prefill_in_it_cannot_be_advanced() -> None:
    model = torch_model(tiny_weights(), LIMITS.num_blocks, LIMITS.block_size)
    batch = batch_of([(4, 1), (0, 3)])
    inputs = StaticInputs(LIMITS, 24, CPU).fill(batch, 4, 2)
    with pytest.raises(ValueError, match="2 sampled tokens for a step of 4 tokens of 2 requests"):
        model.advance(inputs, torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="4 tokens of 2 requests: expected one each"):
        model.body(inputs, DecodeAttention(MAX_BLOCKS, 4))


@pytest.mark.parametrize("attention", [DecodeAttention(8, 4), RaggedAttention(8, 4)])
def test_k_decode_steps_trace_into_one_graph_without_the_host(attention: Attention) -> None:
    """fullgraph refuses what a capture cannot hold: host reads, shapes that hang on data."""
    batch = batch_of([(5, 1), (9, 1)])
    eager, traced = warm_model(tiny_weights()), warm_model(tiny_weights())
    inputs = StaticInputs(LIMITS, 24, CPU).fill(batch, 3, 3)
    expected = eager.decode(inputs, attention, 2)
    again = StaticInputs(LIMITS, 24, CPU).fill(batch, 3, 3)
    compiled = torch.compile(traced.decode, fullgraph=True, backend="eager")
    assert torch.equal(compiled(again, attention, 2), expected)
    assert torch.equal(again.slot_mapping, inputs.slot_mapping)
