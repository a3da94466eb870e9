"""How a model's matrices and its cache lie in memory: every format by its name, and its bytes.

In:  a model, the name of a format ("int4", "q4_k_m", ...), the name of a cache dtype.
Out: `Stored`: the bytes of each matrix, for lists of kernels, the floor, and what fits on a card.

    stored_as(named_shape("qwen3-8b"), "q4_k_m", "fp8").down     # bytes of one layer's down_proj

Norms, biases and the vectors between two kernels keep the model's own dtype. Widening small numbers
again is taken to be free: it hides behind the bytes while a step waits for memory.

Two kinds of formats. `QUANTS` store the layers' matrices in one way and leave embedding and head
alone. A GGUF file is a mix: each tensor has a type of its own, and llama.cpp's rule chooses it.

    mix_bytes(named_shape("qwen3-8b"), "q4_k_m")[0] / 1e9      # 5.02: the 5.03 GB that people load

A type packs a block of numbers with their scales, so bits a weight are exact: q4_k keeps 256 in
144 bytes, 4.5 bits each (`ggml-common.h` of https://github.com/ggml-org/ggml). A mix is mostly one
type. The rule (`llama_tensor_get_type` in `src/llama-quant.cpp` of llama.cpp, without an importance
matrix) makes exceptions where the error would hurt most: the head is q6_k, and in q4_k_m and q5_k_m
so are v and down of the first and the last eighth of the layers and of every third between. Vectors
are float32. Of a tied table there is one, stored as the head would be. (Some checkpoints, that of
Qwen3-1.7B among them, hold the head a second time, and so do files that were made from those.)
Names, tokens and merges are left out: 6 MB in a file of Qwen, whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from mini_engine.model.config import ModelConfig

STORED_AS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # names of `QUANTS`


@dataclass(frozen=True)
class Quant:
    """How the matrices of the layers are stored, scales included.

    Embedding, head, norms and biases stay in the model's own dtype, as in the checkpoints of AWQ
    (arXiv:2306.00978), GPTQ (arXiv:2210.17323) and vLLM's fp8 by default.
    """

    bits: int
    group: int  # inputs that share a scale; 0: all inputs of an output row
    scale_bytes: float  # of each group: the scale, and the zero point where there is one
    head: bool = False  # is the head stored so, too

    def matrix_bytes(self, outputs: int, inputs: int) -> float:
        """Bytes of one (outputs, inputs) matrix: its numbers, and a scale for each group of
        inputs in each output row. The last group of a row may be smaller, but has a scale."""
        groups = -(-inputs // self.group) if self.group else 1
        return outputs * (inputs * self.bits / 8 + groups * self.scale_bytes)


QUANTS = {
    "fp32": Quant(32, 0, 0),
    "bf16": Quant(16, 0, 0),
    "fp16": Quant(16, 0, 0),
    "fp8": Quant(8, 0, 4),  # a float32 scale for each output row
    "int8": Quant(8, 0, 4),
    "int4": Quant(4, 128, 2.5),  # a float16 scale and a 4-bit zero point for every 128 inputs
}
# Formats that published points alone have.
PUBLISHED = {
    "gptq-int8": Quant(8, 128, 3),  # a float16 scale and an 8-bit zero point
    "gpt-fast-int8": Quant(8, 0, 2, head=True),  # a bf16 scale for each row
    "gpt-fast-int4": Quant(4, 32, 4, head=True),  # a bf16 scale and zero for every 32 inputs
}
KV_DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
BLOCKS = {  # of each type of a GGUF file: numbers in a block, and its bytes
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
FORMATS = (*QUANTS, *MIXES)


@dataclass(frozen=True)
class Stored:
    """Bytes. Of the matrices of one layer, the mean over all layers where they differ."""

    quant: str  # what people call it
    kv_dtype: str
    q: float
    k: float
    v: float
    o: float
    gate_up: float
    down: float
    head: float
    kv_number: int  # one number of the KV cache
    held: int  # all weights
    read: int  # those that a step reads

    @property
    def qkv(self) -> float:
        return self.q + self.k + self.v

    def kv_bytes_per_token(self, config: ModelConfig) -> int:
        """A key and a value, of all KV heads, in every layer."""
        return 2 * config.num_layers * config.kv_size * self.kv_number


@cache
def as_it_is(c: ModelConfig) -> Stored:
    """Everything in the model's own dtype."""
    return _everywhere(c, STORED_AS[c.dtype], c.dtype_bytes)


@cache
def stored_as(
    config: ModelConfig, quant: str | None = None, kv_dtype: str | None = None, file_bytes: int = 0
) -> Stored:
    """The model in these formats; as it is where none is given.

    `file_bytes`: the weights are a file of this size, all of them in equally many bits. Raises
    ValueError for an unknown name.
    """
    c, stored = config, as_it_is(config)
    if kv_dtype and kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}: expected one of {', '.join(KV_DTYPE_BYTES)}")
    known = QUANTS | PUBLISHED
    if file_bytes:
        plain, factor = stored, file_bytes / stored.held
        stored = _with_matrices(
            stored,
            f"a file of {file_bytes / 1e9:g} GB",
            lambda place: getattr(plain, place) * factor,
        )
        stored = replace(stored, held=file_bytes, read=round(plain.read * factor))
    elif quant in MIXES:
        held, read = mix_bytes(c, quant)
        stored = _with_matrices(stored, quant, lambda place: layer_bytes(c, quant, place))
        stored = replace(stored, held=held, read=read)
    elif quant and quant not in known:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join([*QUANTS, *MIXES])}")
    elif quant and known[quant].bits >= 16:  # what has 16 bits or more is stored so everywhere
        stored = replace(_everywhere(c, quant, known[quant].bits // 8), kv_number=stored.kv_number,
                         kv_dtype=stored.kv_dtype)  # fmt: skip
    elif quant:
        kind, plain = known[quant], stored
        stored = _with_matrices(
            plain, quant,
            lambda place: kind.matrix_bytes(*matrix_shape(c, place))
            if place != "head" or kind.head else plain.head,
        )  # fmt: skip
        saved = round(_matrices(c, plain) - _matrices(c, stored))
        stored = replace(stored, held=plain.held - saved, read=plain.read - saved)
    if kv_dtype:
        stored = replace(stored, kv_dtype=kv_dtype, kv_number=KV_DTYPE_BYTES[kv_dtype])
    return stored


# ---------------------------------------------------------------- a GGUF file


def tensor_type(config: ModelConfig, mix: str, place: str, layer: int = 0) -> str:
    """The type of one matrix: "q", "k", "v", "o", "gate_up", "down", "head" or "table"."""
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


def block_bytes(outputs: int, inputs: int, kind: str) -> int:
    """Bytes of an (outputs, inputs) matrix of this type, or of what takes its place."""
    if inputs % BLOCKS[kind][0]:
        kind = INSTEAD.get(kind, "f16")
    if inputs % BLOCKS[kind][0]:
        kind = "f16"
    numbers, size = BLOCKS[kind]
    return outputs * inputs // numbers * size


def layer_bytes(config: ModelConfig, mix: str, place: str) -> float:
    """Bytes of the matrix at this place, the mean over the layers."""
    kinds = [tensor_type(config, mix, place, layer) for layer in range(config.num_layers)]
    return sum(block_bytes(*matrix_shape(config, place), kind) for kind in kinds) / len(kinds)


def mix_bytes(config: ModelConfig, mix: str) -> tuple[int, int]:
    """Bytes of all tensors of such a file, and those that a step reads: not an embedding that is
    not the head."""
    c = config
    vectors = c.hidden_size * (2 * c.num_layers + 1)
    vectors += c.num_layers * 2 * c.head_dim if c.qk_norm else 0
    vectors += c.num_layers * (c.q_size + 2 * c.kv_size) if c.qkv_bias else 0
    a_layer = sum(layer_bytes(c, mix, place) for place in ("q", "k", "v", "o", "gate_up", "down"))
    read = round(c.num_layers * a_layer) + int(layer_bytes(c, mix, "head")) + 4 * vectors
    unread = 0 if c.tie_word_embeddings else int(layer_bytes(c, mix, "table"))
    return read + unread, read


# ---------------------------------------------------------------- parts


def matrix_shape(c: ModelConfig, place: str) -> tuple[int, int]:
    """(outputs, inputs) of a layer's matrix, of the head, or of the table of embeddings."""
    h, i = c.hidden_size, c.intermediate_size
    return {
        "q": (c.q_size, h), "k": (c.kv_size, h), "v": (c.kv_size, h), "o": (h, c.q_size),
        "gate_up": (2 * i, h), "down": (h, i),
        "head": (c.vocab_size, h), "table": (c.vocab_size, h),
    }[place]  # fmt: skip


def _everywhere(c: ModelConfig, name: str, size: int) -> Stored:
    """Every number of the model in `size` bytes."""

    def of(place: str) -> int:
        outputs, inputs = matrix_shape(c, place)
        return outputs * inputs * size

    held = c.num_parameters * size
    return Stored(
        name, name, of("q"), of("k"), of("v"), of("o"), of("gate_up"), of("down"), of("head"),
        kv_number=size, held=held, read=held if c.tie_word_embeddings else held - of("head"),
    )  # fmt: skip


def _with_matrices(stored: Stored, quant: str, of: Callable[[str], float]) -> Stored:
    """The same model with other bytes for every matrix."""
    return replace(
        stored, quant=quant, q=of("q"), k=of("k"), v=of("v"), o=of("o"), gate_up=of("gate_up"),
        down=of("down"), head=of("head"),
    )  # fmt: skip


def _matrices(c: ModelConfig, stored: Stored) -> float:
    """Bytes of the matrices of all layers, and of the head."""
    one = stored
    return c.num_layers * (one.qkv + one.o + one.gate_up + one.down) + one.head
