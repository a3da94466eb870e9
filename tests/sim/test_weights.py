"""sim/weights.py: Hugging Face folders in, merged float32 arrays out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mini_engine.model.checkpoint import EMBED, tensor_shapes
from mini_engine.sim.weights import Weights, load_weights
from tests.support.checkpoint_helpers import FAMILIES, Q0, TINY, random_tensors, write


def same(one: Weights, other: Weights) -> bool:
    return all(np.array_equal(one.read(n), other.read(n)) for n in tensor_shapes(one.config))


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("family", FAMILIES)
def test_q_k_v_and_gate_up_are_merged_in_this_order(family: str, tmp_path: Path) -> None:
    config, tensors = FAMILIES[family], random_tensors(FAMILIES[family])
    weights = load_weights(config, write(tmp_path, tensors))
    for i, layer in enumerate(weights.layers):
        at = f"model.layers.{i}"
        q, k, v = (tensors[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv")
        assert np.array_equal(layer["qkv"][:32], q)
        assert np.array_equal(layer["qkv"][32:48], k)
        assert np.array_equal(layer["qkv"][48:], v)
        assert np.array_equal(layer["gate_up"][:24], tensors[f"{at}.mlp.gate_proj.weight"])
        assert np.array_equal(layer["gate_up"][24:], tensors[f"{at}.mlp.up_proj.weight"])
        assert np.array_equal(layer["down"], tensors[f"{at}.mlp.down_proj.weight"])
        assert ("qkv_bias" in layer) == (family == "qwen2")
        assert ("q_norm" in layer) == (family == "qwen3")
        if family == "qwen2":
            biases = [tensors[f"{at}.self_attn.{part}_proj.bias"] for part in "qkv"]
            assert np.array_equal(layer["qkv_bias"], np.concatenate(biases))


# The bits of every bfloat16 that a weight may be: of 1e18 at most, without the sign.
ACCEPTED = st.integers(0, 2**16 - 1).filter(lambda bits: bits & 0x7FFF <= 0x5D5E)


@given(bits=st.lists(ACCEPTED, min_size=8, max_size=8))
def test_every_bfloat16_is_read_as_torch_reads_it(
    bits: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = pytest.importorskip("torch")
    save_torch = pytest.importorskip("safetensors.torch").save_file
    stored = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    tensors = {name: torch.from_numpy(values) for name, values in random_tensors(TINY).items()}
    tensors["model.layers.0.self_attn.q_norm.weight"] = stored
    folder = tmp_path_factory.mktemp("bf16")
    save_torch(tensors, str(folder / "model.safetensors"))
    read = load_weights(TINY, folder).read("model.layers.0.self_attn.q_norm.weight")
    assert read.dtype == np.float32
    # Bit for bit, so that denormals and -0.0 count too.
    assert np.array_equal(read.view(np.uint32), stored.float().numpy().view(np.uint32))


def test_float16_is_read_exactly(tmp_path: Path) -> None:
    halves = {name: values.astype(np.float16) for name, values in random_tensors(TINY).items()}
    save_file(halves, tmp_path / "model.safetensors")
    weights = load_weights(TINY, tmp_path)
    embed = weights.read(EMBED)
    assert embed.dtype == np.float32
    assert np.array_equal(embed, halves["model.embed_tokens.weight"].astype(np.float32))


def test_harmless_extra_tensors_are_ignored(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    expected = load_weights(TINY, write(tmp_path, tensors))
    with_more = tmp_path / "more"
    with_more.mkdir()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["lm_head.weight"] = np.ones((37, 16), np.float32)  # of a tied head: not used
    assert same(expected, load_weights(TINY, write(with_more, tensors)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_by_its_tensor(
    dtype: type, wrong: float, tmp_path: Path
) -> None:
    tensors = {name: values.astype(dtype) for name, values in random_tensors(TINY).items()}
    tensors[Q0][1, 2] = wrong
    save_file(tensors, tmp_path / "model.safetensors")
    weights = load_weights(TINY, tmp_path)
    with pytest.raises(ValueError, match=rf"{Q0} .*{wrong}"):
        weights.read(Q0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_whose_square_is_none_is_refused_it_would_write_nonsense_without_a_word(
    sign: int, tmp_path: Path
) -> None:
    tensors = random_tensors(TINY)
    tensors[Q0][1, 2] = sign * 1e18
    assert load_weights(TINY, write(tmp_path, tensors)).read(Q0)[1, 2] == np.float32(sign * 1e18)
    tensors[Q0][1, 2] = sign * 3e38
    with pytest.raises(ValueError, match=rf"{Q0} .*3e\+38"):
        load_weights(TINY, write(tmp_path, tensors)).read(Q0)
