"""How a model's matrices and its cache lie in memory: every format by its name, and its bytes.

    stored_as(named_shape("qwen3-8b"), "q4_k_m").held / 1e9      # 5.02: people load 5.03 GB

Norms, biases and the vectors between two kernels keep the model's own dtype. Widening small numbers
again is taken to be free: it hides behind the bytes while a step waits for memory.

`QUANTS` store the layers' matrices in one way and leave embedding and head alone. A GGUF file is a
mix: each tensor has a type of its own, which packs a block of numbers with their scales
(`ggml-common.h` of https://github.com/ggml-org/ggml). Which one, llama.cpp's rule says
(`llama_tensor_get_type` in `src/llama-quant.cpp`, without an importance matrix): finer where an
error would hurt most. Vectors are float32. Of a tied table there is one, stored as the head would
be. Names, tokens and merges are left out: 6 MB in a file of Qwen, whatever its size."""

import math
from dataclasses import dataclass
from functools import cache

from mini_engine.model.checkpoint import tensor_shapes
from mini_engine.model.config import ModelConfig

STORED_AS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # names of `QUANTS`
PLACES = {  # a matrix in a checkpoint, and what it is a part of in a step
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "gate_proj": "gate_up",
    "up_proj": "gate_up", "down_proj": "down", "lm_head": "head", "gate": "router",
}  # fmt: skip


@dataclass(frozen=True)
class Quant:
    """How the matrices of the layers are stored. All else stays in the model's own dtype, as in the
    checkpoints of AWQ (arXiv:2306.00978), GPTQ (arXiv:2210.17323) and vLLM's fp8 by default."""

    bits: int
    group: int  # inputs that share a scale; 0: all inputs of an output row
    scale_bytes: float  # of each group: the scale, and the zero point where there is one
    head: bool = False  # is the head stored so, too
    experts: bool = False  # are only the experts stored so

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
    "mxfp4": Quant(4, 32, 1, experts=True),  # an exponent of 8 bits for every 32 inputs
}
KV_DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
BLOCKS = {  # of each type of a GGUF file: numbers in a block, and its bytes
    "f16": (1, 2), "q4_0": (32, 18), "iq4_nl": (32, 18), "q5_0": (32, 22), "q5_1": (32, 24),
    "q8_0": (32, 34), "iq4_xs": (256, 136), "q4_k": (256, 144), "q5_k": (256, 176),
    "q6_k": (256, 210),
}  # fmt: skip
# What takes their place in rows that are no multiple of 256.
INSTEAD = {"iq4_xs": "iq4_nl", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# What people call a file, and the type of most of its tensors.
MIXES = {n: n.removesuffix("_m") for n in ("q4_0", "iq4_xs", "q4_k_m", "q5_k_m", "q6_k", "q8_0")}
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
    gate_up: float  # of a mixture, those of all experts
    down: float
    router: float  # 0 for a dense decoder
    head: float
    kv_number: int  # one number of the KV cache
    kv_bytes_per_token: int  # a key and a value, of all KV heads, in every layer
    held: int  # all weights
    read: int  # those that a step reads: not an embedding that is not the head
    experts: int  # of them, those of experts; 0 for a dense decoder

    def must_read(self, kv_tokens: int, touched_share: float = 1.0) -> int:
        """What no decode step can do without: weights once, of the experts' this share, and so many
        tokens of the cache."""
        left_alone = round(self.experts * (1 - touched_share))
        return self.read - left_alone + kv_tokens * self.kv_bytes_per_token


@cache
def stored_as(
    config: ModelConfig, quant: str | None = None, kv_dtype: str | None = None, file_bytes: int = 0
) -> Stored:
    """The model in these formats; as its checkpoint is where none is given. `file_bytes`: the
    weights are a file of this size, all in equally many bits. ValueError for an unknown name."""
    c, own = config, STORED_AS[config.dtype]
    # AWQ and GPTQ keep a scale and a zero for each group as int4 does, usually of as many inputs
    name, kv_dtype = quant or c.packed or own, kv_dtype or own
    kind = (QUANTS | PUBLISHED).get(name)
    if kind is None and name not in MIXES:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join(FORMATS)}")
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}: expected one of {', '.join(KV_DTYPE_BYTES)}")
    # A quant of 16 bits or more is how everything is stored, others leave the rest as it is.
    plain = 4 if kind is None else kind.bits // 8 if kind.bits >= 16 else c.dtype_bytes
    places = PLACES | {"embed_tokens": "head" if c.tie_word_embeddings else "table"}
    taken, experts = dict.fromkeys([*places.values(), "table", "vectors"], 0.0), 0.0
    for tensor, shape in tensor_shapes(c).items():  # model.layers.LAYER.mlp.gate_proj.weight
        *path, stem, _ = tensor.split(".")
        place, layer = places.get(stem, "vectors"), int(path[2]) if path[2:] else 0
        expert, place = "experts" in path, place if len(shape) > 1 else "vectors"
        if place in ("vectors", "router"):
            size = float(math.prod(shape) * plain)
        elif kind is None:
            size = block_bytes(shape[0], shape[1], tensor_type(c, name, place, layer))
        elif place == "table" or (place == "head" and not kind.head) or kind.experts > expert:
            size = math.prod(shape) * plain
        else:
            size = kind.matrix_bytes(shape[0], shape[1])
        taken[place] += size
        experts += size * expert
    table = int(taken.pop("table"))
    if c.tie_word_embeddings and c.vocab_rows < c.vocab_size:  # a rank looks up in all its rows
        rows = taken["head"] * c.vocab_rows / c.vocab_size
        table, taken["head"] = table + round(taken["head"] - rows), rows
    read = round(sum(taken.values()))
    held = file_bytes or read + table
    share = held / (read + table)
    each = {p: size * share / (1 if p == "head" else c.num_layers) for p, size in taken.items()}
    del each["vectors"]
    number = KV_DTYPE_BYTES[kv_dtype]
    return Stored(
        f"a file of {file_bytes / 1e9:g} GB" if file_bytes else name, kv_dtype, **each,
        kv_number=number, kv_bytes_per_token=2 * c.num_layers * c.kv_size * number,
        held=held, read=round(read * share), experts=round(experts * share),
    )  # fmt: skip


def tensor_type(config: ModelConfig, mix: str, place: str, layer: int = 0) -> str:
    """The type of one matrix: "q", "k", "v", "o", "gate_up", "down", "head" or "table"."""
    layers, first = config.num_layers, layer < config.num_layers // 8
    finer = first or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if place == "head" or (place == "table" and config.tie_word_embeddings):
        return "q8_0" if mix == "q8_0" else "q6_k"
    if mix in ("q4_k_m", "q5_k_m") and place in ("v", "down") and finer:
        return "q6_k"
    grouped = place == "v" and config.group_size >= 4
    return "q5_k" if mix == "iq4_xs" and (grouped or (place == "down" and first)) else MIXES[mix]


def block_bytes(outputs: int, inputs: int, kind: str) -> int:
    """Bytes of an (outputs, inputs) matrix of this type, or of what takes its place."""
    kinds = kind, INSTEAD.get(kind, "f16"), "f16"
    numbers, size = next(BLOCKS[kind] for kind in kinds if inputs % BLOCKS[kind][0] == 0)
    return outputs * inputs // numbers * size
