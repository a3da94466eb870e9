"""Lab 2: bytes. What you write is held against a model that is laid out tensor by tensor."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.predict.capacity import (
    KV_DTYPE_BYTES,
    QUANTS,
    Quant,
    floor_ms,
    kv_bytes_per_token,
    largest_batch,
    longest_context,
    read_bytes,
    step_read_bytes,
    weight_bytes,
)

QWEN = named_shape("qwen3-0.6b")


def some_models() -> list[ModelConfig]:
    """The named shapes, and small ones with every switch both ways."""
    rng = random.Random(2)
    found = [named_shape(name) for name in SHAPES]
    for _ in range(12):
        found.append(
            replace(
                QWEN,
                hidden_size=64 * rng.randint(1, 6),
                intermediate_size=4 * rng.randint(20, 90),
                num_layers=rng.randint(1, 5),
                num_heads=(heads := rng.choice([2, 4, 8])),
                num_kv_heads=heads // rng.choice([1, 2]),
                head_dim=rng.choice([32, 64]),
                vocab_size=rng.randint(500, 900),
                eos_token_ids=(),
                tie_word_embeddings=rng.random() < 0.5,
                qkv_bias=rng.random() < 0.5,
                qk_norm=rng.random() < 0.5,
            )
        )
    return found


def tensors(c: ModelConfig) -> list[tuple[str, int, int]]:
    """(kind, rows, columns) of every tensor that the checkpoint of such a model holds."""
    laid_out = [("table", c.vocab_size, c.hidden_size), ("vector", 1, c.hidden_size)]
    if not c.tie_word_embeddings:
        laid_out.append(("table", c.vocab_size, c.hidden_size))
    for _ in range(c.num_layers):
        for rows in (c.num_heads * c.head_dim, *2 * [c.num_kv_heads * c.head_dim]):
            laid_out.append(("matrix", rows, c.hidden_size))
            laid_out += [("vector", 1, rows)] if c.qkv_bias else []
        laid_out.append(("matrix", c.hidden_size, c.num_heads * c.head_dim))
        laid_out += [("matrix", c.intermediate_size, c.hidden_size)] * 2
        laid_out.append(("matrix", c.hidden_size, c.intermediate_size))
        laid_out += [("vector", 1, c.hidden_size)] * 2
        laid_out += [("vector", 1, c.head_dim)] * (2 if c.qk_norm else 0)
    return laid_out


def stored(kind: str, rows: int, columns: int, quant: str) -> float:
    """Bytes of one tensor, counted group by group."""
    how = QUANTS[quant]
    if how.bits >= 16:
        return rows * columns * how.bits / 8
    if kind != "matrix":
        return rows * columns * 2.0
    scales, left = 0, columns
    while left > 0:
        scales, left = scales + 1, left - (how.group or columns)
    return rows * (columns * how.bits / 8 + scales * how.scale_bytes)


@pytest.mark.catches("tied-head-counted-twice")
@pytest.mark.parametrize("quant", ["bf16", "fp32"])
def test_all_weights_are_those_of_the_checkpoint_each_of_them_once(quant: str) -> None:
    for config in some_models():
        wanted = sum(stored(*tensor, quant) for tensor in tensors(config))
        assert weight_bytes(config, quant) == wanted, config


@pytest.mark.catches("all-is-quantised")
@pytest.mark.parametrize("quant", ["fp8", "int8", "int4"])
def test_a_quant_stores_the_matrices_in_few_bits_and_all_else_as_it_was(quant: str) -> None:
    for config in some_models():
        wanted = sum(stored(*tensor, quant) for tensor in tensors(config))
        assert weight_bytes(config, quant) == pytest.approx(wanted, abs=1), config


@pytest.mark.catches("scales-are-free")
def test_a_matrix_is_its_numbers_and_a_scale_for_every_group_of_every_row() -> None:
    assert Quant(4, 128, 2.5).matrix_bytes(10, 300) == 10 * (150 + 3 * 2.5)
    assert Quant(8, 0, 4).matrix_bytes(10, 300) == 10 * (300 + 4)
    assert Quant(16, 0, 0).matrix_bytes(10, 300) == 10 * 600
    rng = random.Random(3)
    for _ in range(100):
        rows, columns, group = rng.randint(1, 99), rng.randint(1, 999), rng.randint(1, 200)
        scales = math.ceil(columns / group)
        assert Quant(4, group, 2).matrix_bytes(rows, columns) == rows * (columns / 2 + 2 * scales)


def test_an_unknown_way_to_store_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="int3"):
        weight_bytes(QWEN, "int3")
    with pytest.raises(ValueError, match="int3"):
        kv_bytes_per_token(QWEN, "int3")


@pytest.mark.catches("tied-head-counted-twice")
def test_a_step_reads_all_weights_but_an_embedding_that_is_not_the_head() -> None:
    for config in some_models():
        table = config.vocab_size * config.hidden_size * 2
        unread = 0 if config.tie_word_embeddings else table
        assert read_bytes(config) == weight_bytes(config) - unread
        assert read_bytes(config, "int8") == weight_bytes(config, "int8") - unread
        assert read_bytes(config, "fp32") == weight_bytes(config, "fp32") - 2 * unread


@pytest.mark.catches("query-heads-are-cached")
def test_a_token_is_cached_for_the_kv_heads_of_every_layer() -> None:
    assert kv_bytes_per_token(QWEN) == 112 * 1024
    for config in some_models():
        numbers = sum(2 * config.num_kv_heads * config.head_dim for _ in range(config.num_layers))
        for dtype, size in KV_DTYPE_BYTES.items():
            assert kv_bytes_per_token(config, dtype) == numbers * size


@pytest.mark.catches("weights-per-request")
def test_a_step_reads_the_weights_once_and_the_cache_of_each_request() -> None:
    rng = random.Random(4)
    for config in some_models():
        contexts = [rng.randint(1, 5000) for _ in range(rng.randint(1, 40))]
        kv = sum(tokens * kv_bytes_per_token(config, "fp8") for tokens in contexts)
        assert step_read_bytes(config, contexts, "int8", "fp8") == read_bytes(config, "int8") + kv


@pytest.mark.catches("giga-is-gibi")
def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert floor_ms(4.8e9, 4800) == pytest.approx(1.0)
    assert floor_ms(read_bytes(QWEN), 4300) == pytest.approx(0.277, abs=5e-4)


@pytest.mark.catches("it-always-fits")
def test_the_largest_batch_fits_and_one_request_more_does_not() -> None:
    rng = random.Random(5)
    for _ in range(300):
        free, context = rng.randint(-(10**9), 10**9), rng.randint(1, 5000)
        per_token, per_request = rng.randint(1, 200_000), rng.randint(0, 10**6)
        batch = largest_batch(free, context, per_token, per_request)

        def takes(n: int, c: int = context, t: int = per_token, r: int = per_request) -> int:
            return n * (c * t + r)

        assert batch == 0 if free < takes(1) else takes(batch) <= free < takes(batch + 1)


@pytest.mark.catches("it-always-fits")
def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    rng = random.Random(6)
    for _ in range(300):
        free, per_token = rng.randint(-(10**8), 10**8), rng.randint(1, 200_000)
        per_request = rng.randint(0, 10**6)
        tokens = longest_context(free, per_token, per_request)
        if free < per_request + per_token:
            assert tokens == 0
        else:
            assert per_request + tokens * per_token <= free < per_request + (tokens + 1) * per_token
