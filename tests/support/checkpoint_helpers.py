"""Tiny models, and checkpoint folders of them, written as Hugging Face writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mini_engine.engine.generation import SHIPPED
from mini_engine.model.checkpoint import random_law, tensor_shapes
from mini_engine.model.config import Experts, ModelConfig, named_shape

TINY = replace(
    named_shape("qwen3-0.6b"),
    name="tiny",
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=37,
    max_position_embeddings=32,
    eos_token_ids=(),
)
FAMILIES = {
    "qwen3": TINY,
    "qwen2": replace(TINY, family="qwen2", qkv_bias=True, qk_norm=False),
    "llama": replace(TINY, family="llama", qk_norm=False, tie_word_embeddings=False),
}
MIXTURE = replace(TINY, name="tiny-moe", experts=Experts(5, 2, 12, normalized=True))
Q0 = "model.layers.0.self_attn.q_proj.weight"
Tensors = dict[str, NDArray[np.float32]]


def num_parameters(config: ModelConfig) -> int:
    """Numbers of all weights; a tied head is counted once."""
    return sum(math.prod(shape) for shape in tensor_shapes(config).values())


def random_tensors(config: ModelConfig, seed: int = 0) -> Tensors:
    """Tensors of plausible sizes under Hugging Face's names."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(*random_law(name, shape), shape).astype(np.float32)
        for name, shape in tensor_shapes(config).items()
    }


def lone_inputs(
    table: NDArray[np.int64], block_size: int, token_ids: Sequence[int], start: int
) -> dict[str, NDArray[np.int32]]:
    """A step of one request, by the names of `StepInputs`: `token_ids` stand at start, start + 1, …
    in the blocks of this table, and logits of all of them are wanted."""
    count = len(token_ids)
    positions = np.arange(start, start + count)
    slots = table[positions // block_size] * block_size + positions % block_size
    arrays = {
        "input_ids": token_ids, "positions": positions, "slot_mapping": slots,
        "query_lens": [count], "context_lens": [start + count], "block_table": table[None],
        "last_rows": np.arange(count),
    }  # fmt: skip
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()}


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


def write_smallest(folder: Path) -> Path:
    """A whole folder, config and tokenizer too, of the smallest model that all kernels take: its
    words are "w0" to "w31", its one layer has 32 columns."""
    config = json.loads((SHIPPED / "config.json").read_text("utf-8")) | {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "max_position_embeddings": 64,
        "eos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return write(folder, random_tensors(ModelConfig.from_folder(folder), seed=5))
