"""checkpoint.py: what a folder must hold, and one clear line when it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mini_engine.model.checkpoint import layer_parts, stored_tensors, tensor_shapes
from tests.support.checkpoint_helpers import (
    FAMILIES,
    Q0,
    TINY,
    random_tensors,
    write,
    write_index,
    write_shards,
)


@pytest.mark.parametrize("sharded", [False, True])
def test_every_tensor_is_found_with_its_very_bytes(sharded: bool, tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    if sharded:
        write_shards(tmp_path, tensors)
    else:
        write(tmp_path, tensors)
    stored = stored_tensors(TINY, tmp_path)
    assert list(stored) == list(tensor_shapes(TINY))
    for name, tensor in stored.items():
        assert (tensor.shape, tensor.dtype) == (tensors[name].shape, "F32")
        assert tensor.raw().tobytes() == tensors[name].tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_the_layers_are_all_tensors_but_three(family: str) -> None:
    config = replace(FAMILIES[family], tie_word_embeddings=False)
    parts = [layer_parts(config, i) for i in range(config.num_layers)]
    named = [name for layer in parts for names in layer.values() for name in names]
    rest = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert len(named) == len(set(named))
    assert set(named) | rest == set(tensor_shapes(config))


def test_writing_to_mapped_bytes_leaves_the_file_alone(tmp_path: Path) -> None:
    file = write(tmp_path, random_tensors(TINY)) / "model.safetensors"
    before = file.read_bytes()
    raw = stored_tensors(TINY, tmp_path)[Q0].raw()
    raw[:] = 255
    assert (raw == 255).all()
    assert file.read_bytes() == before


def test_missing_folder_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no weights"):
        stored_tensors(TINY, tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"no weights; expected model\.safetensors"):
        stored_tensors(TINY, tmp_path)


def test_any_missing_tensor_is_named(tmp_path: Path) -> None:
    for name in tensor_shapes(TINY):
        tensors = random_tensors(TINY)
        del tensors[name]
        with pytest.raises(ValueError, match=f"tensor {name} is missing; expected shape"):
            stored_tensors(TINY, write(tmp_path, tensors))


def test_any_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    for name, shape in tensor_shapes(TINY).items():
        tensors = random_tensors(TINY)
        given_shape = (shape[0] + 1, *shape[1:])
        tensors[name] = np.zeros(given_shape, np.float32)
        with pytest.raises(ValueError) as caught:
            stored_tensors(TINY, write(tmp_path, tensors))
        for words in (name, str(given_shape), str(shape)):
            assert words in str(caught.value)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_file_cut_anywhere_is_refused(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write(tmp_path_factory.mktemp("cut"), random_tensors(TINY))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(cut * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
        stored_tensors(TINY, folder)


def test_unsupported_dtype_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    tensors[Q0] = tensors[Q0].astype(np.float64)
    with pytest.raises(ValueError, match=f"{Q0} is F64 "):
        stored_tensors(TINY, write(tmp_path, tensors))


def test_tensor_that_no_layer_reads_is_refused(tmp_path: Path) -> None:
    fewer_layers = replace(TINY, num_layers=1)
    with pytest.raises(ValueError, match=r"layers\.1\..*no place in a qwen3 of 1 layers"):
        stored_tensors(fewer_layers, write(tmp_path, random_tensors(TINY)))
    biased = random_tensors(FAMILIES["qwen2"])
    with pytest.raises(ValueError, match=r"_proj\.bias has no place in a llama"):
        stored_tensors(
            replace(FAMILIES["llama"], tie_word_embeddings=True), write(tmp_path, biased)
        )


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, random_tensors(TINY))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(OSError, match="model-00002-of-00003"):
        stored_tensors(TINY, tmp_path)


def test_index_that_promises_what_its_shard_lacks_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    write_shards(tmp_path, tensors)
    shard = tmp_path / "model-00001-of-00003.safetensors"
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, shard)
    with pytest.raises(ValueError, match=r"00001.*: tensor model\..* is missing; the index"):
        stored_tensors(TINY, tmp_path)


def test_of_a_tensor_in_two_shards_the_one_that_the_index_names_is_read(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    write_shards(tmp_path, tensors)
    norm = "model.norm.weight"
    stale = {norm: np.zeros_like(tensors[norm])}
    for shard in tmp_path.glob("model-*.safetensors"):
        held = load_file(shard)
        if norm not in held:
            save_file(held | stale, shard)
    assert stored_tensors(TINY, tmp_path)[norm].raw().tobytes() == tensors[norm].tobytes()
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    (tmp_path / "empty.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    write_index(tmp_path, weight_map | {norm: "empty.safetensors"})
    with pytest.raises(ValueError, match=r"empty\.safetensors: tensor model\.norm\.\w+ is miss"):
        stored_tensors(TINY, tmp_path)


@pytest.mark.parametrize("weight_map", [["a"], "model.safetensors", {"a": 1}, {"a": None}])
def test_malformed_index_is_refused(weight_map: object, tmp_path: Path) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(ValueError, match=r"index\.json: .* (expected|missing)"):
        stored_tensors(TINY, tmp_path)
