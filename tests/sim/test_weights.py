"""sim/weights.py: Hugging Face folders in, merged float32 arrays out."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mini_engine.model.config import ModelConfig
from mini_engine.sim.weights import (
    Weights,
    checked_tensors,
    load_weights,
    random_weights,
    read_weights,
)
from tests.support.checkpoint_helpers import FAMILIES, Q0, TINY, random_tensors, write, write_shards


def same(one: Weights, other: Weights) -> bool:
    pairs = [(one.embed, other.embed), (one.final_norm, other.final_norm)]
    pairs.append((one.lm_head, other.lm_head))
    for a, b in zip(one.layers, other.layers, strict=True):
        pairs += [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
    return all(np.array_equal(a, b) if a is not None else b is None for a, b in pairs)


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("family", FAMILIES)
def test_q_k_v_and_gate_up_are_merged_in_this_order(family: str, tmp_path: Path) -> None:
    config, tensors = FAMILIES[family], random_tensors(FAMILIES[family])
    weights = load_weights(config, write(tmp_path, tensors))
    for i, layer in enumerate(weights.layers):
        at = f"model.layers.{i}"
        q, k, v = (tensors[f"{at}.self_attn.{part}_proj.weight"] for part in "qkv")
        assert np.array_equal(layer.qkv[:32], q)
        assert np.array_equal(layer.qkv[32:48], k)
        assert np.array_equal(layer.qkv[48:], v)
        assert np.array_equal(layer.gate_up[:24], tensors[f"{at}.mlp.gate_proj.weight"])
        assert np.array_equal(layer.gate_up[24:], tensors[f"{at}.mlp.up_proj.weight"])
        assert np.array_equal(layer.down, tensors[f"{at}.mlp.down_proj.weight"])
        assert np.array_equal(layer.o, tensors[f"{at}.self_attn.o_proj.weight"])
        assert np.array_equal(layer.input_norm, tensors[f"{at}.input_layernorm.weight"])
        assert np.array_equal(layer.post_norm, tensors[f"{at}.post_attention_layernorm.weight"])
        assert (layer.qkv_bias is None) == (family != "qwen2")
        assert (layer.q_norm is None) == (layer.k_norm is None) == (family != "qwen3")
        if layer.qkv_bias is not None:
            biases = [tensors[f"{at}.self_attn.{part}_proj.bias"] for part in "qkv"]
            assert np.array_equal(layer.qkv_bias, np.concatenate(biases))
        if layer.q_norm is not None and layer.k_norm is not None:
            assert np.array_equal(layer.q_norm, tensors[f"{at}.self_attn.q_norm.weight"])
            assert np.array_equal(layer.k_norm, tensors[f"{at}.self_attn.k_norm.weight"])


def test_tied_head_is_the_embedding_itself_and_an_untied_one_is_not(tmp_path: Path) -> None:
    tied = load_weights(TINY, write(tmp_path, random_tensors(TINY)))
    assert tied.lm_head is tied.embed
    untied_config = replace(TINY, tie_word_embeddings=False)
    tensors = random_tensors(untied_config)
    untied = load_weights(untied_config, write(tmp_path, tensors))
    assert np.array_equal(untied.lm_head, tensors["lm_head.weight"])
    assert np.array_equal(untied.embed, tensors["model.embed_tokens.weight"])


def test_shards_give_what_one_file_gives(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    whole = load_weights(TINY, write(tmp_path / "one", tensors))
    write_shards(tmp_path / "many", tensors)
    assert same(whole, load_weights(TINY, tmp_path / "many"))


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
    read = load_weights(TINY, folder).layers[0].q_norm
    assert read is not None
    assert read.dtype == np.float32
    # Bit for bit, so that denormals and -0.0 count too.
    assert np.array_equal(read.view(np.uint32), stored.float().numpy().view(np.uint32))


def test_float16_is_read_exactly(tmp_path: Path) -> None:
    halves = {name: values.astype(np.float16) for name, values in random_tensors(TINY).items()}
    save_file(halves, tmp_path / "model.safetensors")
    weights = load_weights(TINY, tmp_path)
    assert weights.embed.dtype == np.float32
    assert np.array_equal(weights.embed, halves["model.embed_tokens.weight"].astype(np.float32))


@pytest.mark.parametrize("family", FAMILIES)
def test_folder_written_by_transformers_has_the_tensors_that_are_expected(
    family: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    c = FAMILIES[family]
    theirs = transformers.AutoConfig.for_model(
        family,
        hidden_size=32,  # qwen2 has no head_dim: it shares out the hidden size
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        vocab_size=c.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(theirs)
    model.save_pretrained(tmp_path)
    weights = load_weights(ModelConfig.from_folder(tmp_path), tmp_path)
    assert np.array_equal(weights.lm_head, model.lm_head.weight.detach().numpy())
    assert weights.config.family == family


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
    layers = load_weights(TINY, tmp_path).layers
    with pytest.raises(ValueError, match=rf"{Q0} has numbers from .*{wrong}.*, expected finite"):
        list(layers)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_whose_square_is_none_is_refused_it_would_write_nonsense_without_a_word(
    sign: int, tmp_path: Path
) -> None:
    tensors = random_tensors(TINY)
    tensors[Q0][1, 2] = sign * 1e18
    layer = load_weights(TINY, write(tmp_path, tensors)).layers[0]
    assert layer.qkv[1, 2] == np.float32(sign * 1e18)
    tensors[Q0][1, 2] = sign * 3e38
    with pytest.raises(ValueError, match=rf"{Q0} has numbers from .*3e\+38.*, of 1e\+18 at most"):
        list(load_weights(TINY, write(tmp_path, tensors)).layers)


def test_a_layer_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    asked = list[int]()
    stored = checked_tensors(TINY, write(tmp_path, random_tensors(TINY)))
    layers = read_weights(TINY, stored, asked.append).layers
    assert (len(layers), asked) == (2, [])
    assert np.array_equal(layers[-1].o, layers[1:][0].o)
    assert asked == [1, 1]
    with pytest.raises(IndexError):
        layers[2]


# ---------------------------------------------------------------- random weights


def test_random_weights_depend_on_the_seed_only() -> None:
    assert same(random_weights(TINY, 3), random_weights(TINY, 3))
    assert not same(random_weights(TINY, 3), random_weights(TINY, 4))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_have_as_many_elements_as_the_model(family: str, tied: bool) -> None:
    config = replace(FAMILIES[family], tie_word_embeddings=tied)
    weights = random_weights(config, 0)
    arrays = [weights.embed, weights.final_norm] + ([] if tied else [weights.lm_head])
    for layer in weights.layers:
        arrays += [a for f in fields(layer) if (a := getattr(layer, f.name)) is not None]
    assert sum(a.size for a in arrays) == config.num_parameters
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
