"""Weights and cache in few bits: steps in every format, and GGUF files held against files that
people load, to the byte where those are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.lab03_bytes_and_bandwidth.decode_bytes import decode_bytes, tensor_bytes
from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import STYLES, StepShape, step_ops
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import (
    FORMATS,
    MIXES,
    PUBLISHED,
    QUANTS,
    Stored,
    block_bytes,
    stored_as,
    tensor_type,
)
from mini_engine.validate.points import IN_NO_FIT, Sheets, read_points, rows_of, summary
from tests.support.checkpoint_helpers import num_parameters

ONE = StepShape.decode(1, 512)
OURS = load_spec("h200", engine="launch-bound")

dense = [name for name, config in SHAPES.items() if not config.experts]
shapes = st.sampled_from(sorted(dense)).map(named_shape)
formats = st.sampled_from(FORMATS)


def moved(stored: Stored | None, style: str, name: str = "qwen3-1.7b") -> float:
    return sum(op.bytes for op in step_ops(named_shape(name), ONE, style, stored))


@given(st.sampled_from(sorted(SHAPES)), formats, st.sampled_from(list(STYLES)))
def test_a_step_moves_as_many_bytes_less_as_fewer_are_read(
    name: str, quant: str, style: str
) -> None:
    """In every op list: the vectors between kernels, and the number of kernels, stay."""
    config = named_shape(name)
    plain, few = stored_as(config), stored_as(config, quant)
    saved = moved(None, style, name) - moved(few, style, name)
    # a GGUF file keeps its norms and biases in float32; our ops read them as the model has them
    share = config.touched_share(ONE.num_tokens)
    read, less = plain.must_read(0, share), few.must_read(0, share)
    assert saved == pytest.approx(read - less, abs=2e-3 * read)
    assert len(step_ops(config, ONE, style, few)) == len(step_ops(config, ONE, style))


@given(shapes, st.sampled_from(sorted(QUANTS)))
def test_what_is_held_and_read_is_the_account_of_lab_3_tensor_by_tensor(
    config: ModelConfig, quant: str
) -> None:
    stored, read = stored_as(config, quant, "fp8"), decode_bytes(config, [700, 5], quant, "fp8")
    assert stored.held == round(sum(tensor_bytes(config, quant).values()))
    assert (stored.read, stored.must_read(705)) == (read.weights, sum(read))
    assert stored.kv_bytes_per_token == decode_bytes(config, [1], kv_dtype="fp8").cache


def test_the_head_stays_in_16_bits_in_a_quant_and_not_in_a_file_or_in_gpt_fast() -> None:
    config = named_shape("qwen3-8b")
    plain = stored_as(config).head
    heads = {q: stored_as(config, q).head / plain for q in ("int4", "q4_k_m", "gpt-fast-int8")}
    assert heads == {
        "int4": 1,
        "q4_k_m": pytest.approx(210 / 512),
        "gpt-fast-int8": pytest.approx(0.5, rel=1e-3),  # and a scale a row
    }


def test_the_token_that_a_kernel_has_itself_is_not_read_back_from_a_cache_in_fp8() -> None:
    """`rope_kv_write_attention` reads the new key and value from qkv, and writes them narrow."""
    config, attention = named_shape("qwen3-0.6b"), "rope_kv_write_attention"
    plain, fp8 = (
        next(op for op in step_ops(config, ONE, "fused5", stored) if op.name == attention)
        for stored in (None, stored_as(config, None, "fp8"))
    )
    keys = 2 * config.kv_size * (ONE.kv_tokens - 1)  # those of earlier steps
    written = 2 * config.kv_size
    assert plain.bytes - fp8.bytes == keys + written


@pytest.mark.parametrize("style", STYLES)
def test_an_8_bit_cache_halves_the_bytes_of_keys_and_of_nothing_else(style: str) -> None:
    config = named_shape("qwen3-1.7b")
    eight = stored_as(config, None, "fp8")
    far = StepShape.decode(1, 10_512)
    kv = [
        sum(op.bytes for op in step_ops(config, far, style, stored)) - moved(stored, style)
        for stored in (None, eight)
    ]
    assert kv[1] == kv[0] / 2
    assert eight.read == stored_as(config).read


def test_a_file_of_a_given_size_is_spread_evenly() -> None:
    config = named_shape("qwen3-8b")
    stored = stored_as(config, file_bytes=5_500_000_000)
    assert stored.held == 5_500_000_000
    assert stored.read == pytest.approx(5.5e9 * stored_as(config).read / stored_as(config).held)
    assert stored.down / stored_as(config).down == pytest.approx(5.5e9 / stored_as(config).held)


@pytest.mark.parametrize(
    ("asked", "says"),
    [(("int3",), "quant 'int3': expected one of fp32, bf16.*q4_k_m"), (("int4", "q1"), "'q1'")],
)
def test_an_unknown_name_is_refused_with_the_known_ones(asked: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stored_as(named_shape("qwen3-8b"), *asked)


# ---- GGUF files

QWEN_8B = named_shape("qwen3-8b")


@pytest.mark.parametrize(
    ("mix", "bits"),
    [
        ("iq4_xs", 4.4597),
        ("q4_k_m", 4.8944),
        ("q5_k_m", 5.7036),
        ("q6_k", 6.5633),
        ("q8_0", 8.5008),
    ],
)
def test_llama_31_8b_takes_the_bits_a_weight_of_llama_cpps_own_table(mix: str, bits: float) -> None:
    """llama.cpp's README of quantize, commit 311c2c9f; its four decimals are the tolerance.
    Llama 3.1 8B has the shape of Llama 3 8B."""
    config = named_shape("llama-3-8b")
    assert stored_as(config, mix).held * 8 / num_parameters(config) == pytest.approx(bits, abs=5e-5)


@pytest.mark.parametrize(
    ("mix", "published"), [("q4_k_m", 397_808_160), ("q5_k_m", 420_086_304), ("q6_k", 505_736_736)]
)
def test_three_files_of_one_model_differ_from_ours_by_the_same_names_and_tokens(
    mix: str, published: int
) -> None:
    """huggingface.co/ThomasBaruzier/Qwen2.5-0.5B-Instruct-GGUF, bytes of the LFS pointers. Rows of
    896 numbers are no multiple of 256, so the types that take the place of others are tried too."""
    assert published - stored_as(named_shape("qwen2.5-0.5b"), mix).held == 5_948_448


def test_a_tied_table_is_stored_once_and_as_the_head() -> None:
    tied = replace(QWEN_8B, tie_word_embeddings=True)
    for mix in MIXES:
        one, two = stored_as(tied, mix), stored_as(QWEN_8B, mix)
        assert one.held == one.read == two.read < two.held
        assert tensor_type(tied, mix, "table") == tensor_type(tied, mix, "head")


def test_rows_that_no_block_divides_stay_in_16_bits() -> None:
    assert block_bytes(10, 256, "q4_k") == 10 * 144
    assert block_bytes(10, 96, "q4_k") == 10 * 3 * 22  # q5_0, in blocks of 32
    assert block_bytes(10, 100, "q4_k") == block_bytes(10, 100, "q8_0") == 10 * 200


# ---- held against others


def test_quantised_points_are_known_have_sources_and_are_in_no_fit() -> None:
    points, unknown = read_points(IN_NO_FIT["quantised"], Sheets.shipped())
    assert unknown == []
    assert len(points) == len({point.id for point in points}) == 71
    assert {point.quant for point in points} == {"int4", "fp16", "q4_k_m", *PUBLISHED} - {"mxfp4"}
    assert all(point.source for point in points)


def test_the_model_is_a_fifth_too_fast_for_weights_in_few_bits() -> None:
    """Widening is not free: an error on one side, and it is told. A tenth of it is there in 16 bits
    already."""
    sheets = Sheets.shipped()
    rows = rows_of(read_points(IN_NO_FIT["quantised"], sheets)[0], sheets)
    few = summary("few bits", [row for row in rows if row.point.quant != "fp16"])
    plain = summary("16 bits", [row for row in rows if row.point.quant == "fp16"])
    assert few.points == 63
    assert -0.25 < few.bias < -0.15
    assert -0.12 < plain.bias < -0.08
    assert few.p90_error < 0.33
    inside = [row.inside for row in rows if row.inside is not None]
    assert sum(inside) / len(inside) > 0.75  # nearly what an interval promises


# ---- a checkpoint that is quantised already


def test_a_checkpoint_in_four_bits_is_predicted_in_them() -> None:
    """Every command asks `stored_as` without a format: what a folder holds is what it takes."""
    plain = named_shape("qwen3-8b")
    config = replace(plain, packed="int4")
    assert stored_as(config) == stored_as(plain, "int4")
    assert stored_as(config, "bf16") == stored_as(plain, "bf16")
    spec = load_spec("rtx4090")
    steps = {
        c: StepModel(c, spec).itl_us("full", StepShape.decode(1, 1024)) for c in (plain, config)
    }
    assert steps[config] < 0.5 * steps[plain]


def test_an_fp8_checkpoint_is_predicted_in_fp8() -> None:
    plain = named_shape("qwen3-8b")
    assert stored_as(replace(plain, packed="fp8")) == stored_as(plain, "fp8")
