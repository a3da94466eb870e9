"""A KV cache in fp8 on the simulated device: e4m3 to the bit, scales, kernels, costs, text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.model.kv_fp8 import HEADROOM, LARGEST, scale_for
from mini_engine.sim.fp8 import NUMBERS, to_e4m3
from mini_engine.sim.generate import open_checkpoint
from mini_engine.sim.model import KVCache, measured_scales
from mini_engine.sim.weights import load_weights
from mini_engine.step.cards import load_spec
from tests.support.model_helpers import LoneModel

F32 = np.float32
floats = st.floats(width=32, allow_nan=False)
H200 = load_spec("h200")


# ---- the numbers


def test_every_code_and_every_tie_is_what_torch_says() -> None:
    """256 codes, what lies halfway between two, one float32 to each side of that, and many more."""
    torch = pytest.importorskip("torch")
    codes = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(NUMBERS, codes.float().numpy())
    every = np.sort(NUMBERS[~np.isnan(NUMBERS)])
    ties = (every[1:] + every[:-1]) / 2
    rng = np.random.default_rng(0)
    wild = rng.standard_normal(100_000) * np.exp(4 * rng.standard_normal(100_000))
    beside = [np.nextafter(ties, F32(limit)) for limit in (-np.inf, np.inf)]
    ends = [448.0, 464.0, 1e30, -np.inf, 0.0, -0.0, 1e-40]
    x = np.concatenate([every, ties, *beside, wild, ends]).astype(F32)
    wanted = torch.from_numpy(x).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(to_e4m3(x), wanted.view(torch.uint8).numpy())


@given(x=floats, largest=st.floats(2.0**-100, 2.0**100))
def test_what_is_read_is_within_a_sixteenth_of_what_was_written(x: float, largest: float) -> None:
    """2^-4 of a normal number, half of a step of 2^-9 below; and never NaN, whatever comes."""
    scale = F32(scale_for(largest))
    with np.errstate(over="ignore"):
        scaled = F32(x) / scale
    read = float(NUMBERS[to_e4m3(np.array([scaled], F32))][0])
    size = abs(float(scaled))
    if size >= LARGEST:
        assert abs(read) == LARGEST
    else:
        assert abs(read - float(scaled)) <= max(2.0**-4 * size, 2.0**-10)
    assert np.sign(read) in (0, np.sign(x))


@given(largest=st.floats(2.0**-100, 2.0**100))
def test_a_scale_is_the_smallest_power_of_two_that_leaves_headroom(largest: float) -> None:
    scale = scale_for(largest)
    assert np.frexp(scale)[0] == 0.5
    assert HEADROOM * largest <= LARGEST * scale < 2 * HEADROOM * largest
    assert scale_for(0.0) == 1.0


# ---- the model


@pytest.fixture(scope="module")
def tiny() -> tuple[ModelConfig, LoneModel, LoneModel]:
    """The shipped checkpoint, twice: with a cache in float32, and in fp8."""
    config = ModelConfig.from_folder(SHIPPED)
    weights = load_weights(config, SHIPPED)
    plain, narrow = LoneModel(config, weights), LoneModel(config, weights)
    scales = measured_scales(H200, config, weights)
    blocks = 1 + -(-config.max_position_embeddings // 4)
    narrow.model.cache = KVCache.allocate(narrow.device, config, blocks, 4, "float32", scales)
    return config, plain, narrow


def text_ids() -> list[int]:
    said = "Return the number of items. If the file does not exist, raise OSError. "
    return list(open_checkpoint(SHIPPED).tokenizer.encode(said * 4))


def test_no_key_or_value_of_a_text_reaches_the_end_of_the_range(
    tiny: tuple[ModelConfig, LoneModel, LoneModel],
) -> None:
    """The scales were measured on other tokens."""
    _, _, narrow = tiny
    narrow.logits(text_ids())
    slots = [narrow.table[p // 4] * 4 + p % 4 for p in range(len(text_ids()))]
    cache = narrow.model.cache
    for buffer in (*cache.keys, *cache.values):
        codes = narrow.device.read(buffer).reshape(-1, *buffer.shape[2:])[slots]
        largest = np.abs(NUMBERS[codes]).max(axis=(0, 2))
        assert (largest < LARGEST).all()
        assert (largest > LARGEST / 16).all()  # and the range is used


def test_what_fp8_costs_the_shipped_checkpoint(
    tiny: tuple[ModelConfig, LoneModel, LoneModel],
) -> None:
    """The chapter prints these: the likelihood of a text hardly changes."""
    _, plain, narrow = tiny
    ids = text_ids()
    logs = []
    for model in (plain, narrow):
        logits = model.logits(ids).astype(np.float64)
        logs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    kl = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean()
    assert 1e-5 < kl < 0.03
    next_ids = np.array(ids[1:])
    nll = [-log[np.arange(len(next_ids)), next_ids].mean() for log in logs]
    assert abs(nll[1] - nll[0]) < 0.02


def test_chunks_and_blocks_change_no_bit(tiny: tuple[ModelConfig, LoneModel, LoneModel]) -> None:
    _, _, narrow = tiny
    ids = text_ids()[:37]
    whole = narrow.logits(ids)
    parts = [narrow.logits(ids[:20]), narrow.logits(ids[20:36], 20), narrow.logits(ids[36:], 36)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
