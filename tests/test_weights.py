"""checkpoint.py and sim/weights.py: Hugging Face folders in, float32 arrays out, and one clear line
when not."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mini_engine.checkpoint import stored_tensors, tensor_shapes
from mini_engine.config import ModelConfig, named_shape
from mini_engine.sim.weights import Weights, load_weights, random_weights

TINY = replace(
    named_shape("qwen3-0.6b"),
    name="tiny",
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    eos_token_ids=(),
)
FAMILIES = {
    "qwen3": TINY,
    "qwen2": replace(TINY, family="qwen2", qkv_bias=True, qk_norm=False),
    "llama": replace(TINY, family="llama", qk_norm=False),
}
Q0 = "model.layers.0.self_attn.q_proj.weight"
Tensors = dict[str, NDArray[np.float32]]


def random_tensors(config: ModelConfig, seed: int = 0) -> Tensors:
    """Tensors under Hugging Face's names."""
    rng = np.random.default_rng(seed)
    shapes = tensor_shapes(config).items()
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes}


def write(folder: Path, tensors: Tensors) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_shards(folder: Path, tensors: Tensors, num_shards: int = 3) -> dict[str, str]:
    """Every third tensor to the same shard; returns the weight_map."""
    weight_map = {
        name: f"model-{i % num_shards + 1:05}-of-{num_shards:05}.safetensors"
        for i, name in enumerate(tensors)
    }
    for shard in set(weight_map.values()):
        inside = {name: tensors[name] for name in tensors if weight_map[name] == shard}
        save_file(inside, folder / shard)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text, "utf-8")


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
        assert np.array_equal(layer.gate_up[:40], tensors[f"{at}.mlp.gate_proj.weight"])
        assert np.array_equal(layer.gate_up[40:], tensors[f"{at}.mlp.up_proj.weight"])
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


@given(bits=st.lists(st.integers(0, 2**16 - 1), min_size=8, max_size=8))
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
    # Bit for bit, so that NaN payloads, infinities, denormals and -0.0 count too.
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
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["lm_head.weight"] = np.ones((50, 24), np.float32)  # of a tied head: not used
    assert same(expected, load_weights(TINY, write(tmp_path, tensors)))


def test_writing_to_mapped_bytes_leaves_the_file_alone(tmp_path: Path) -> None:
    file = write(tmp_path, random_tensors(TINY)) / "model.safetensors"
    before = file.read_bytes()
    raw = stored_tensors(TINY, tmp_path)[Q0].raw()
    raw[:] = 255
    assert (raw == 255).all()
    assert file.read_bytes() == before


# ---------------------------------------------------------------- what is refused


def test_missing_folder_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        load_weights(TINY, tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"no weights; expected model\.safetensors"):
        load_weights(TINY, tmp_path)


def test_any_missing_tensor_is_named(tmp_path: Path) -> None:
    for name in tensor_shapes(TINY):
        tensors = random_tensors(TINY)
        del tensors[name]
        with pytest.raises(ValueError, match=f"tensor {name} is missing; expected shape"):
            load_weights(TINY, write(tmp_path, tensors))


def test_any_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    for name, shape in tensor_shapes(TINY).items():
        tensors = random_tensors(TINY)
        given_shape = (shape[0] + 1, *shape[1:])
        tensors[name] = np.zeros(given_shape, np.float32)
        with pytest.raises(ValueError) as caught:
            load_weights(TINY, write(tmp_path, tensors))
        assert f"tensor {name} has shape {given_shape}, expected {shape}" in str(caught.value)


def test_transposed_tensor_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    tensors[Q0] = np.ascontiguousarray(tensors[Q0].T)
    with pytest.raises(ValueError, match=r"has shape \(24, 32\), expected \(32, 24\)"):
        load_weights(TINY, write(tmp_path, tensors))


@given(cut=st.floats(0, 1, exclude_max=True))
def test_file_cut_anywhere_is_refused(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write(tmp_path_factory.mktemp("cut"), random_tensors(TINY))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
        load_weights(TINY, folder)


def test_unsupported_dtype_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    tensors[Q0] = tensors[Q0].astype(np.float64)
    with pytest.raises(ValueError, match=f"{Q0} has dtype F64, expected F32, F16 or BF16"):
        load_weights(TINY, write(tmp_path, tensors))


def test_tensor_that_no_layer_reads_is_refused(tmp_path: Path) -> None:
    fewer_layers = replace(TINY, num_layers=1)
    with pytest.raises(ValueError, match=r"layers\.1\..*no place in a qwen3 of 1 layers"):
        load_weights(fewer_layers, write(tmp_path, random_tensors(TINY)))
    biased = random_tensors(FAMILIES["qwen2"])
    with pytest.raises(ValueError, match=r"_proj\.bias has no place in a llama"):
        load_weights(FAMILIES["llama"], write(tmp_path, biased))


def test_untied_model_without_a_head_is_refused(tmp_path: Path) -> None:
    write(tmp_path, random_tensors(TINY))
    with pytest.raises(ValueError, match=r"tensor lm_head\.weight is missing"):
        load_weights(replace(TINY, tie_word_embeddings=False), tmp_path)


def test_missing_shard_is_named_with_a_tensor_it_should_hold(tmp_path: Path) -> None:
    write_shards(tmp_path, random_tensors(TINY))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json: shard 'model-00002.*should hold model"):
        load_weights(TINY, tmp_path)


def test_index_that_promises_what_its_shard_lacks_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    write_shards(tmp_path, tensors)
    shard = tmp_path / "model-00001-of-00003.safetensors"
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, shard)
    with pytest.raises(ValueError, match=r"tensor model\..* is missing; the index has it"):
        load_weights(TINY, tmp_path)


def test_index_must_not_reach_outside_of_its_folder(tmp_path: Path) -> None:
    outside = write(tmp_path, random_tensors(TINY)) / "model.safetensors"
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in ("../model.safetensors", str(outside)):
        write_index(inner, dict.fromkeys(tensor_shapes(TINY), path))
        with pytest.raises(ValueError, match="is missing; it should hold"):
            load_weights(TINY, inner)


@pytest.mark.parametrize("weight_map", [["a"], "model.safetensors", {"a": 1}, {"a": None}])
def test_malformed_index_is_refused(weight_map: object, tmp_path: Path) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ValueError, match=r"index\.json: .* (expected|missing)"):
        load_weights(TINY, tmp_path)


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
