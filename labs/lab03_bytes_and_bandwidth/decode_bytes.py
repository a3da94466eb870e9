"""Bytes tensor by tensor, from a config alone: what a card holds, and what a decode step reads.

`mini_engine/step/storage.py` says the same by matrix, for more formats (`stored_as`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mini_engine.model.checkpoint import EMBED, FINAL_NORM, LM_HEAD, tensor_shapes
from mini_engine.model.config import ModelConfig
from mini_engine.step.storage import KV_DTYPE_BYTES, QUANTS


class DecodeBytes(NamedTuple):
    """What a decode step must read."""

    weights: int  # once, for all requests
    cache: int  # keys and values of all requests


def tensor_bytes(config: ModelConfig, quant: str = "bf16") -> dict[str, float]:
    """What each tensor of the checkpoint takes on the card, its scales included: name -> bytes.

    The tensors are those of `tensor_shapes`. The layers' matrices, and nothing else, are stored as
    the quant says (`QUANTS`). The rest is plain: as wide as the quant for "bf16", "fp16" and
    "fp32", which apply to everything, and `config.dtype_bytes` a number for the others. Raises
    ValueError for an unknown quant.
    """
    if quant not in QUANTS:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join(QUANTS)}")
    kind = QUANTS[quant]
    plain = kind.bits // 8 if kind.bits >= 16 else config.dtype_bytes
    taken: dict[str, float] = {}
    for name, shape in tensor_shapes(config).items():
        in_a_layer = name not in (EMBED, FINAL_NORM, LM_HEAD)
        if in_a_layer and len(shape) == 2:
            taken[name] = kind.matrix_bytes(*shape)
        else:
            taken[name] = math.prod(shape) * plain
    return taken


def decode_bytes(
    config: ModelConfig, contexts: Sequence[int], quant: str = "bf16", kv_dtype: str = "bf16"
) -> DecodeBytes:
    """What a decode step of these requests must read, whatever the engine.

    `contexts`: how many tokens of each request are in the cache. `weights`: the tensors that are
    multiplied or added, each read once. Of an embedding that is not also the head a step reads a
    few rows, which count as nothing. `cache`: the keys and the values of every token, in all
    layers, in `kv_dtype` (`KV_DTYPE_BYTES`), which has nothing to do with the weights' quant.
    Contexts may be empty: then no cache is read. Both are whole numbers of bytes, rounded at the
    end. Raises ValueError for an unknown quant or kv_dtype.
    """
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}: expected one of {', '.join(KV_DTYPE_BYTES)}")
    tensors = tensor_bytes(config, quant)
    if not config.tie_word_embeddings:
        del tensors[EMBED]
    a_token = 2 * config.num_layers * config.kv_size * KV_DTYPE_BYTES[kv_dtype]
    return DecodeBytes(round(sum(tensors.values())), sum(contexts) * a_token)
