"""What a GGUF file holds: each tensor has a type of its own, and llama.cpp's rule chooses it.

In:  a model and the name of a mix, such as "q4_k_m". Out: the type of each tensor, and its bytes.

    file_bytes(named_shape("qwen3-8b"), "q4_k_m") / 1e9      # 5.02: the 5.03 GB that people load

A type packs a block of numbers with their scales, so bits a weight are exact: q4_k keeps 256 in
144 bytes, 4.5 bits each (`ggml-common.h` of https://github.com/ggml-org/ggml). A mix is mostly one
type. The rule (`llama_tensor_get_type` in `src/llama-quant.cpp` of llama.cpp, without an importance
matrix) makes exceptions where the error would hurt most: the head is q6_k, and in q4_k_m and q5_k_m
so are v and down of the first and the last eighth of the layers and of every third between.

Vectors are float32. Of a tied table there is one, stored as the head would be. (Some checkpoints,
Qwen3-1.7B among them, hold the head a second time, and so do files that were made from those.)
Names, tokens and merges are left out: 6 MB in a file of Qwen, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator

from mini_engine.model.config import ModelConfig

BLOCKS = {  # of each type: numbers in a block, and its bytes
    "f16": (1, 2), "q4_0": (32, 18), "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
    "q8_0": (32, 34), "iq4_xs": (256, 136), "q4_k": (256, 144), "q5_k": (256, 176),
    "q6_k": (256, 210),
}  # fmt: skip
# What takes their place in rows that are no multiple of 256.
INSTEAD = {"iq4_xs": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
MIXES = {  # what people call a file, and the type of most of its tensors
    "q4_0": "q4_0", "iq4_xs": "iq4_xs", "q4_k_m": "q4_k", "q5_k_m": "q5_k", "q6_k": "q6_k",
    "q8_0": "q8_0",
}  # fmt: skip


def tensor_type(config: ModelConfig, mix: str, place: str, layer: int = 0) -> str:
    """The type of one matrix: "q", "k", "v", "o", "gate", "up", "down", "head" or "table"."""
    mostly, layers = MIXES[mix], config.num_layers
    finer = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if place == "head" or (place == "table" and config.tie_word_embeddings):
        return "q8_0" if mix == "q8_0" else "q6_k"
    if mix in ("q4_k_m", "q5_k_m") and place in ("v", "down") and finer:
        return "q6_k"
    if mix == "iq4_xs" and (
        (place == "v" and config.group_size >= 4) or (place == "down" and layer < layers // 8)
    ):
        return "q5_k"
    return mostly


def matrix_bytes(outputs: int, inputs: int, kind: str) -> int:
    """Bytes of an (outputs, inputs) matrix of this type, or of what takes its place."""
    if inputs % BLOCKS[kind][0]:
        kind = INSTEAD.get(kind, "f16")
    if inputs % BLOCKS[kind][0]:
        kind = "f16"
    numbers, size = BLOCKS[kind]
    return outputs * inputs // numbers * size


def layer_bytes(config: ModelConfig, mix: str, place: str) -> float:
    """Bytes of one layer's matrix at this place, the mean over the layers."""
    c = config
    rows, columns = {
        "q": (c.q_size, c.hidden_size), "k": (c.kv_size, c.hidden_size),
        "v": (c.kv_size, c.hidden_size), "o": (c.hidden_size, c.q_size),
        "gate": (c.intermediate_size, c.hidden_size), "up": (c.intermediate_size, c.hidden_size),
        "down": (c.hidden_size, c.intermediate_size),
    }[place]  # fmt: skip
    kinds = (tensor_type(c, mix, place, layer) for layer in range(c.num_layers))
    return sum(matrix_bytes(rows, columns, kind) for kind in kinds) / c.num_layers


def table_bytes(config: ModelConfig, mix: str, place: str) -> int:
    """Bytes of the head or of the table of embeddings."""
    kind = tensor_type(config, mix, place)
    return matrix_bytes(config.vocab_size, config.hidden_size, kind)


def file_bytes(config: ModelConfig, mix: str) -> int:
    """Bytes of all tensors of such a file."""
    tables = ["head"] if config.tie_word_embeddings else ["head", "table"]
    held = sum(table_bytes(config, mix, place) for place in tables)
    held += round(config.num_layers * sum(layer_bytes(config, mix, place) for place in _PLACES))
    return held + 4 * sum(_vectors(config))


def read_bytes(config: ModelConfig, mix: str) -> int:
    """Of those, the bytes that a step reads: not an embedding that is not the head."""
    unread = 0 if config.tie_word_embeddings else table_bytes(config, mix, "table")
    return file_bytes(config, mix) - unread


# ---------------------------------------------------------------- parts

_PLACES = ("q", "k", "v", "o", "gate", "up", "down")


def _vectors(c: ModelConfig) -> Iterator[int]:
    """Elements of the norms and biases."""
    yield c.hidden_size * (2 * c.num_layers + 1)
    yield c.num_layers * 2 * c.head_dim if c.qk_norm else 0
    yield c.num_layers * (c.q_size + 2 * c.kv_size) if c.qkv_bias else 0
