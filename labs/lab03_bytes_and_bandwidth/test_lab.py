"""Lab 3: bytes. What you write is held against the shipped file itself, and against models that are
laid out here tensor by tensor.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import pytest

from labs.lab03_bytes_and_bandwidth.decode_bytes import decode_bytes, tensor_bytes
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.checkpoint import layer_parts, tensor_shapes
from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.capacity import capacity, fit
from mini_engine.step.cards import load_spec
from mini_engine.step.storage import KV_DTYPE_BYTES, QUANTS, stored_as

TINY = ModelConfig.from_folder(SHIPPED)  # what config.json says: 6 query heads, 2 KV heads of 32
QWEN = named_shape("qwen3-0.6b")
FEW_BITS = ["fp8", "int8", "int4"]
Shapes = dict[str, tuple[int, ...]]


def some_models() -> list[ModelConfig]:
    """The named shapes without experts, small ones with every switch both ways, and one whose MLP
    is as wide as its vocabulary, so that gate and up have the shape of the embedding."""
    rng = random.Random(2)
    found = [config for config in map(named_shape, SHAPES) if not config.experts]
    wide = replace(QWEN, name="as wide as its tokens", eos_token_ids=(), tie_word_embeddings=False)
    found.append(replace(wide, vocab_size=wide.intermediate_size))
    for tied, bias, norm in 2 * [(t, b, n) for t in (0, 1) for b in (0, 1) for n in (0, 1)]:
        heads = rng.choice([2, 4, 8])
        found.append(
            replace(
                QWEN,
                name=f"small, tied {tied}, bias {bias}, qk-norm {norm}",
                hidden_size=48 * rng.randint(1, 6),
                intermediate_size=4 * rng.randint(20, 90),
                num_layers=rng.randint(2, 5),
                num_heads=heads,
                num_kv_heads=heads // rng.choice([1, 2]),
                head_dim=rng.choice([32, 64]),
                vocab_size=rng.randint(500, 900),
                eos_token_ids=(),
                tie_word_embeddings=bool(tied),
                qkv_bias=bool(bias),
                qk_norm=bool(norm),
                dtype=rng.choice(["bfloat16", "float32"]),
            )
        )
    return found


# ---------------------------------------------------------------- the oracle


def header() -> tuple[dict[str, dict[str, list[int]]], int]:
    """The tensors that the shipped file lists, and how many bytes come before the first of them.

    A safetensors file is 8 bytes that say how long the list is, the list as JSON, then the numbers.
    """
    content = (SHIPPED / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    listed = json.loads(content[8 : 8 + length])
    listed.pop("__metadata__")
    return listed, 8 + length


def layer_of(c: ModelConfig, i: int) -> dict[str, Shapes]:
    """The tensors of layer i, field by field."""
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    rows = {"q": q, "k": kv, "v": kv}
    at, hidden, inner = f"model.layers.{i}.", c.hidden_size, c.intermediate_size
    fields: dict[str, Shapes] = {
        "input_norm": {f"{at}input_layernorm.weight": (hidden,)},
        "qkv": {f"{at}self_attn.{x}_proj.weight": (n, hidden) for x, n in rows.items()},
        "o": {f"{at}self_attn.o_proj.weight": (hidden, q)},
        "post_norm": {f"{at}post_attention_layernorm.weight": (hidden,)},
        "gate_up": {f"{at}mlp.{x}_proj.weight": (inner, hidden) for x in ("gate", "up")},
        "down": {f"{at}mlp.down_proj.weight": (hidden, inner)},
    }
    if c.qkv_bias:
        fields["qkv_bias"] = {f"{at}self_attn.{x}_proj.bias": (n,) for x, n in rows.items()}
    if c.qk_norm:
        fields["q_norm"] = {f"{at}self_attn.q_norm.weight": (c.head_dim,)}
        fields["k_norm"] = {f"{at}self_attn.k_norm.weight": (c.head_dim,)}
    return fields


def laid_out(c: ModelConfig) -> Shapes:
    """Every tensor of such a checkpoint."""
    table = (c.vocab_size, c.hidden_size)
    shapes: Shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (c.hidden_size,)}
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = table
    for i in range(c.num_layers):
        for tensors in layer_of(c, i).values():
            shapes |= tensors
    return shapes


def on_card(c: ModelConfig, name: str, shape: tuple[int, ...], quant: str) -> float:
    """Bytes of one tensor, counted row by row and group by group."""
    how = QUANTS[quant]
    if how.bits >= 16:
        return math.prod(shape) * how.bits / 8
    if not re.search(r"_proj\.weight$", name):
        return float(math.prod(shape) * (4 if c.dtype == "float32" else 2))
    rows, columns = shape
    scales, left = 0, columns
    while left > 0:
        scales, left = scales + 1, left - (how.group or columns)
    return rows * (columns * how.bits / 8 + scales * how.scale_bytes)


def account(c: ModelConfig, quant: str) -> dict[str, float]:
    return {name: on_card(c, name, shape, quant) for name, shape in laid_out(c).items()}


# ---------------------------------------------------------------- one layer


@pytest.mark.catches("q-is-as-wide-as-hidden")
def test_the_tensors_of_a_layer_have_the_shapes_that_the_shipped_file_lists() -> None:
    listed, _ = header()
    for index in range(TINY.num_layers):
        for tensors in layer_parts(TINY, index).values():
            for name, shape in tensors.items():
                assert name in listed, f"the file has no tensor {name}"
                in_file = tuple(listed[name]["shape"])
                assert tuple(shape) == in_file, name


def test_a_layer_has_all_its_tensors_under_the_fields_that_stack_them() -> None:
    for config in some_models():
        for index in (0, config.num_layers - 1):
            mine, right = layer_parts(config, index), layer_of(config, index)
            assert sorted(mine) == sorted(right), f"fields of a layer of {config.name}"
            for field, tensors in right.items():
                mine_of, right_of = mine[field], tensors
                assert mine_of == right_of, f"{field} of a layer of {config.name}"


def test_rows_are_stacked_as_q_k_v_and_as_gate_up() -> None:
    for config in (TINY, named_shape("qwen2.5-0.5b")):
        parts = layer_parts(config, 1)
        for field in {"qkv", "qkv_bias", "gate_up"} & set(parts):
            stacked = [name.split(".")[-2] for name in parts[field]]
            order = (
                ["gate_proj", "up_proj"] if field == "gate_up" else ["q_proj", "k_proj", "v_proj"]
            )
            assert stacked == order, f"{field} of {config.name}"


# ---------------------------------------------------------------- the checkpoint


def test_the_account_names_every_tensor_of_the_shipped_file_and_no_other() -> None:
    listed, _ = header()
    mine = set(tensor_shapes(TINY))
    missing, invented = sorted(set(listed) - mine), sorted(mine - set(listed))
    assert missing == [], "tensors of the file that the account lacks"
    assert invented == [], "tensors of the account that the file lacks"


@pytest.mark.catches("tied-head-counted-twice")
def test_a_head_of_its_own_is_in_the_checkpoint_and_a_tied_one_is_not() -> None:
    for config in some_models():
        tied, has_head = config.tie_word_embeddings, "lm_head.weight" in tensor_shapes(config)
        assert has_head != tied, config.name


def test_a_checkpoint_is_its_layers_an_embedding_a_norm_and_a_head() -> None:
    for config in some_models():
        mine, right = tensor_shapes(config), laid_out(config)
        missing, invented = sorted(set(right) - set(mine)), sorted(set(mine) - set(right))
        assert (missing, invented) == ([], []), config.name
        for name, shape in right.items():
            mine_shape = tuple(mine[name])
            assert mine_shape == shape, f"{name} of {config.name}"


# ---------------------------------------------------------------- bytes on the card


def test_the_account_is_the_shipped_file_byte_by_byte() -> None:
    listed, before = header()
    taken = tensor_bytes(TINY, "bf16")
    for name, entry in listed.items():
        begin, end = entry["data_offsets"]
        assert taken[name] == end - begin, name
    file_bytes = (SHIPPED / "model.safetensors").stat().st_size
    accounted = before + sum(taken.values())
    assert accounted == file_bytes


@pytest.mark.parametrize("quant", ["bf16", "fp16", "fp32"])
def test_sixteen_and_32_bits_apply_to_every_tensor(quant: str) -> None:
    for config in some_models():
        taken, right = tensor_bytes(config, quant), account(config, quant)
        assert set(taken) == set(right), config.name
        for name in right:
            mine, wanted = taken[name], right[name]
            assert mine == wanted, f"{name} of {config.name} in {quant}"


@pytest.mark.catches("all-is-quantised")
@pytest.mark.parametrize("quant", FEW_BITS)
def test_what_is_not_a_matrix_of_a_layer_stays_as_it_was(quant: str) -> None:
    for config in some_models():
        taken, right = tensor_bytes(config, quant), account(config, quant)
        for name in (n for n in right if not n.endswith("_proj.weight")):
            mine, plain = taken[name], right[name]
            assert mine == plain, f"{name} of {config.name} ({config.dtype}) in {quant}"


@pytest.mark.catches("scales-are-free")
@pytest.mark.parametrize("quant", FEW_BITS)
def test_a_matrix_of_a_layer_is_few_bits_a_number_and_its_scales(quant: str) -> None:
    for config in some_models():
        taken, right = tensor_bytes(config, quant), account(config, quant)
        for name in (n for n in right if n.endswith("_proj.weight")):
            mine, wanted = taken[name], right[name]
            assert mine == pytest.approx(wanted, rel=1e-12), f"{name} of {config.name} in {quant}"


def test_an_unknown_way_to_store_weights_is_refused() -> None:
    for quant in ("int3", "", "BF16"):
        with pytest.raises(ValueError):
            tensor_bytes(QWEN, quant)


# ---------------------------------------------------------------- a decode step


@pytest.mark.catches("tied-table-is-not-read", "embedding-is-read-whole")
def test_a_step_reads_all_weights_but_an_embedding_that_is_not_the_head() -> None:
    for config in some_models():
        for quant in ("bf16", "fp32", "int8"):
            taken = account(config, quant)
            unread = 0 if config.tie_word_embeddings else taken["model.embed_tokens.weight"]
            mine, read = decode_bytes(config, [5], quant).weights, sum(taken.values()) - unread
            assert mine == pytest.approx(read, abs=0.5), f"{config.name} in {quant}"


@pytest.mark.catches("weights-per-request")
def test_a_step_reads_the_weights_once_whatever_its_requests() -> None:
    for config in some_models():
        alone = decode_bytes(config, [700], "int4").weights
        for contexts in ([], [1] * 8, [5000, 3]):
            together = decode_bytes(config, contexts, "int4").weights
            assert together == alone, f"weights that a step reads for contexts {contexts}"


@pytest.mark.catches("query-heads-are-cached")
def test_a_token_is_cached_as_a_key_and_a_value_for_the_kv_heads_of_every_layer() -> None:
    for config in [QWEN, *some_models()]:
        numbers = sum(2 * config.num_kv_heads * config.head_dim for _ in range(config.num_layers))
        mine, right = decode_bytes(config, [1]).cache, 2 * numbers
        assert mine == right, f"a token of {config.name} in bf16"


@pytest.mark.catches("cache-follows-weights")
def test_the_cache_has_a_dtype_of_its_own_whatever_the_weights_are_stored_in() -> None:
    for config in some_models():
        numbers = 2 * config.num_kv_heads * config.head_dim * config.num_layers
        for quant in QUANTS:
            for kv_dtype, size in KV_DTYPE_BYTES.items():
                mine, right = decode_bytes(config, [3], quant, kv_dtype).cache, 3 * numbers * size
                assert mine == right, f"weights {quant}, cache {kv_dtype}"


def test_a_step_reads_the_cache_of_each_request_over_its_own_context() -> None:
    rng = random.Random(4)
    for config in some_models():
        contexts = [rng.randint(1, 5000) for _ in range(rng.randint(1, 30))]
        each = sum(decode_bytes(config, [tokens]).cache for tokens in contexts)
        together = decode_bytes(config, contexts).cache
        assert together == each, f"contexts {contexts}"
    assert decode_bytes(QWEN, []).cache == 0, "no request, no cache"


def test_bytes_that_a_step_reads_are_whole_numbers() -> None:
    for config in some_models():
        read = decode_bytes(config, [7, 9], "int4", "fp8")
        assert all(isinstance(count, int) for count in read), read


def test_what_a_step_reads_is_rounded_once_and_at_the_end() -> None:
    # 75 rows of an odd number of scales of 2.5 bytes: o and down of every layer end on half a byte
    config = replace(QWEN, hidden_size=75, num_heads=2, num_kv_heads=1, intermediate_size=300)
    exact = sum(account(config, "int4").values())
    assert exact == int(exact), "an even number of halves"
    mine = decode_bytes(config, [], "int4").weights
    assert mine == exact


def test_billions_of_bytes_are_counted_to_the_last() -> None:
    odd = replace(QWEN, hidden_size=3583, num_layers=31, intermediate_size=18943)
    wide = replace(QWEN, hidden_size=12288, vocab_size=256_000)  # 3,145,728,000 numbers in one
    for config in (odd, wide):
        for quant in ("bf16", "int8"):
            exact = sum(round(2 * taken) for taken in account(config, quant).values()) / 2
            mine = decode_bytes(config, [], quant).weights
            assert mine == exact, f"{config.num_layers} layers of {config.hidden_size} in {quant}"


def test_an_unknown_way_to_store_a_cache_is_refused() -> None:
    for quant, kv_dtype in (("bf16", "int3"), ("bf16", "int4"), ("int3", "bf16")):
        for contexts in ([1], []):
            with pytest.raises(ValueError):
                decode_bytes(QWEN, contexts, quant, kv_dtype)


# ---------------------------------------------------------------- what fits


def budgets() -> list[tuple[int, int, int, int, int]]:
    """(free, context, batch, per_token, per_request): plenty, below zero, and exactly enough."""
    rng = random.Random(5)
    found = []
    for _ in range(300):
        context, batch = rng.randint(1, 5000), rng.randint(1, 40)
        per_token, per_request = rng.randint(1, 200_000), rng.choice([0, rng.randint(1, 10**6)])
        exact = rng.randint(1, 40) * (context * per_token + per_request)
        tokens = per_request + rng.randint(1, 9000) * per_token
        for free in (rng.randint(-(10**9), 10**9), exact, exact - 1, tokens, tokens - 1):
            found.append((free, context, batch, per_token, per_request))
    return found


def test_what_is_left_is_what_the_requests_of_the_batch_do_not_take() -> None:
    for free, context, batch, per_token, per_request in budgets():
        left = fit(free, context, batch, per_token, per_request).left_bytes
        taken = sum(context * per_token + per_request for _ in range(batch))
        assert left == free - taken


@pytest.mark.catches("it-always-fits", "requests-are-tokens-alone")
def test_the_largest_batch_fits_and_one_request_more_does_not() -> None:
    for free, context, _, per_token, per_request in budgets():
        largest = fit(free, context, 1, per_token, per_request).max_batch
        a_request = context * per_token + per_request
        assert largest >= 0
        assert largest == 0 or largest * a_request <= free, "the largest batch does not fit"
        assert (largest + 1) * a_request > free, "one request more would fit"


@pytest.mark.catches("it-always-fits", "requests-are-tokens-alone")
def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    for free, _, batch, per_token, per_request in budgets():
        longest = fit(free, 1, batch, per_token, per_request).max_context
        assert longest >= 0
        assert longest == 0 or per_request + longest * per_token <= free, "it does not fit"
        assert per_request + (longest + 1) * per_token > free, "one token more would fit"


# ---------------------------------------------------------------- all together


def test_the_shipped_model_on_a_card_of_half_a_gib() -> None:
    """Your account inside `capacity`: its items add up to the card, and its limits are limits."""
    card = replace(load_spec("h200"), vram_bytes=int(0.53 * 2**30))
    for quant in ("bf16", "int8"):
        stored = stored_as(TINY, quant)
        report = capacity(TINY, card, context=512, stored=stored)
        items = [count for label, count, _ in report.rows() if label not in ("card", "left")]
        assert card.vram_bytes - sum(items) == report.left_bytes
        full = capacity(TINY, card, context=512, batch=report.max_batch, stored=stored)
        over = capacity(TINY, card, context=512, batch=report.max_batch + 1, stored=stored)
        assert full.left_bytes >= 0
        assert over.left_bytes < 0


def test_the_floor_of_a_step_is_what_it_reads_over_the_bandwidth() -> None:
    l4 = load_spec("l4")  # GB/s: 1e9 bytes a second
    report = capacity(QWEN, l4, context=2000, batch=3)
    kv = 3 * 2000 * 2 * 28 * 8 * 128 * 2
    read_ms = (sum(account(QWEN, "bf16").values()) + kv) / (l4.bandwidth_gb_s * 1e9) * 1e3
    assert report.floor_ms == pytest.approx(read_ms)
    assert stored_as(QWEN).held == sum(account(QWEN, "bf16").values())
