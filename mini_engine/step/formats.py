"""Every format by its name: what a model takes when its weights and its cache are stored so.

In:  a model, the name of a format ("int4", "q4_k_m", ...), the name of a cache dtype.
Out: `Stored`, for the op lists, the floor, and what fits on a card.

    eight = stored_as(named_shape("qwen3-8b"), "q4_k_m", "fp8")
    step_ops(named_shape("qwen3-8b"), shape, "fused9", eight)

`QUANTS` (see `capacity`) leave embedding and head alone; a GGUF mix (see `gguf`) stores them too.
A few more formats are known to published measurements only.
"""

from __future__ import annotations

from dataclasses import replace

from mini_engine.model.config import ModelConfig
from mini_engine.step.capacity import KV_DTYPE_BYTES, QUANTS, Quant, stored_bytes
from mini_engine.step.gguf import MIXES, layer_bytes, table_bytes
from mini_engine.step.stored import Stored, as_it_is

FORMATS = (*QUANTS, *MIXES)
# Names of published points: how the matrices are stored, and whether the head is among them.
PUBLISHED = {
    "gptq-int8": (Quant(8, 128, 3), False),  # a float16 scale and an 8-bit zero point
    "gpt-fast-int8": (Quant(8, 0, 2), True),  # a bf16 scale for each row, of the head too
    "gpt-fast-int4": (Quant(4, 32, 4), True),  # a bf16 scale and zero for every 32 inputs
}


def stored_as(
    config: ModelConfig, quant: str | None = None, kv_dtype: str | None = None, file_bytes: int = 0
) -> Stored:
    """The model in these formats; as it is where none is given.

    `file_bytes`: the weights are a file of this size, all of them in equally many bits. Raises
    ValueError for an unknown name.
    """
    stored = as_it_is(config)
    if kv_dtype and kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}: expected one of {', '.join(KV_DTYPE_BYTES)}")
    if kv_dtype:
        stored = replace(stored, kv_dtype=kv_dtype, kv_number=KV_DTYPE_BYTES[kv_dtype])
    if file_bytes:
        return _scaled(stored, file_bytes / stored.held)
    if quant in PUBLISHED:
        return _quantised(config, stored, quant, *PUBLISHED[quant])
    if quant in MIXES:
        return _mixed(config, stored, quant)
    if not quant:
        return stored
    held, read = stored_bytes(config, quant)
    kind = QUANTS[quant]
    # what has 16 bits or more is stored so everywhere
    quantised = _quantised(config, stored, quant, kind, kind.bits >= 16)
    return replace(quantised, held=held, read=read)


# ---------------------------------------------------------------- parts


def _quantised(config: ModelConfig, plain: Stored, quant: str, kind: Quant, head: bool) -> Stored:
    """The matrices of the layers, and perhaps the head, by one rule."""
    c, h = config, config.hidden_size
    stored = replace(
        plain,
        quant=quant,
        q=kind.matrix_bytes(c.q_size, h),
        k=kind.matrix_bytes(c.kv_size, h),
        v=kind.matrix_bytes(c.kv_size, h),
        o=kind.matrix_bytes(h, c.q_size),
        gate_up=kind.matrix_bytes(2 * c.intermediate_size, h),
        down=kind.matrix_bytes(h, c.intermediate_size),
        head=kind.matrix_bytes(c.vocab_size, h) if head else plain.head,
    )
    return _counted(c, plain, stored)


def _mixed(config: ModelConfig, plain: Stored, mix: str) -> Stored:
    """A GGUF file: the mean of a place over the layers."""
    held, read = stored_bytes(config, mix)

    def at(place: str) -> float:
        return layer_bytes(config, mix, place)

    return replace(
        plain, quant=mix, held=held, read=read, q=at("q"), k=at("k"), v=at("v"), o=at("o"),
        gate_up=at("gate") + at("up"), down=at("down"), head=table_bytes(config, mix, "head"),
    )  # fmt: skip


def _scaled(plain: Stored, factor: float) -> Stored:
    """All weights in equally many bits."""
    held, p, f = round(plain.held * factor), plain, factor
    return replace(
        plain, quant=f"a file of {held / 1e9:g} GB", held=held, read=round(plain.read * factor),
        q=p.q * f, k=p.k * f, v=p.v * f, o=p.o * f, gate_up=p.gate_up * f, down=p.down * f,
        head=p.head * f,
    )  # fmt: skip


def _counted(config: ModelConfig, plain: Stored, stored: Stored) -> Stored:
    """With all bytes counted: what the matrices save, of those that are held and read."""

    def matrices(one: Stored) -> float:
        return config.num_layers * (one.qkv + one.o + one.gate_up + one.down) + one.head

    saved = round(matrices(plain) - matrices(stored))
    return replace(stored, held=plain.held - saved, read=plain.read - saved)
