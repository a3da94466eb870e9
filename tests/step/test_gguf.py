"""GGUF files: sizes held against files that people load, to the byte where those are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.gguf import (
    MIXES,
    file_bytes,
    layer_bytes,
    matrix_bytes,
    read_bytes,
    table_bytes,
    tensor_type,
)

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
    assert file_bytes(config, mix) * 8 / config.num_parameters == pytest.approx(bits, abs=5e-5)


@pytest.mark.parametrize(
    ("mix", "published"), [("q4_k_m", 397_808_160), ("q5_k_m", 420_086_304), ("q6_k", 505_736_736)]
)
def test_three_files_of_one_model_differ_from_ours_by_the_same_names_and_tokens(
    mix: str, published: int
) -> None:
    """huggingface.co/ThomasBaruzier/Qwen2.5-0.5B-Instruct-GGUF, bytes of the LFS pointers. Rows of
    896 numbers are no multiple of 256, so the types that take the place of others are tried too."""
    assert published - file_bytes(named_shape("qwen2.5-0.5b"), mix) == 5_948_448


@pytest.mark.parametrize(
    ("shape", "mix", "gb"),
    [
        ("qwen3-8b", "q4_0", 4.77),  # huggingface.co/codebasic/Qwen3-8B-GGUF
        ("qwen3-8b", "q6_k", 6.73),
        ("qwen3-8b", "q8_0", 8.71),
        ("llama-3-8b", "iq4_xs", 4.45),  # huggingface.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF
        ("llama-3-8b", "q4_k_m", 4.92),
        ("llama-3-8b", "q5_k_m", 5.73),
        ("llama-3-8b", "q6_k", 6.60),
        ("llama-3-8b", "q8_0", 8.54),
    ],
)
def test_files_that_people_load_have_the_size_that_we_say(shape: str, mix: str, gb: float) -> None:
    """1%: up to 8 MB of names, tokens and merges, two decimals, and, in the iq4_xs file, an
    importance matrix, with which llama.cpp makes no exception for the first down matrices."""
    assert file_bytes(named_shape(shape), mix) / 1e9 == pytest.approx(gb, rel=0.01)


def test_half_of_the_v_and_down_matrices_of_a_4_k_m_file_have_six_bits() -> None:
    kinds = [tensor_type(QWEN_8B, "q4_k_m", "down", layer) for layer in range(36)]
    assert kinds.count("q6_k") == 18
    assert kinds[:4] == ["q6_k"] * 4  # the first eighth
    assert kinds[31:] == ["q6_k"] * 5  # the last one, rounded up
    assert kinds == [tensor_type(QWEN_8B, "q4_k_m", "v", layer) for layer in range(36)]
    assert tensor_type(QWEN_8B, "q4_k_m", "gate", 0) == "q4_k"


def test_a_tied_table_is_stored_once_and_as_the_head() -> None:
    tied = replace(QWEN_8B, tie_word_embeddings=True)
    for mix in MIXES:
        assert table_bytes(tied, mix, "table") == table_bytes(tied, mix, "head")
        assert file_bytes(tied, mix) == read_bytes(tied, mix) == read_bytes(QWEN_8B, mix)
        assert file_bytes(QWEN_8B, mix) - file_bytes(tied, mix) == table_bytes(
            QWEN_8B, mix, "table"
        )


@given(st.sampled_from(sorted(SHAPES)).map(named_shape), st.sampled_from(sorted(MIXES)))
def test_every_file_is_smaller_than_half_of_16_bits_and_a_bit_and_its_parts_add_up(
    config: ModelConfig, mix: str
) -> None:
    places = ("q", "k", "v", "o", "gate", "up", "down")
    matrices = config.num_layers * sum(layer_bytes(config, mix, place) for place in places)
    head = table_bytes(config, mix, "head")
    assert 0 < read_bytes(config, mix) - matrices - head < 0.01 * file_bytes(config, mix)
    assert file_bytes(config, mix) < 8.6 / 16 * 2 * config.num_parameters


def test_rows_that_no_block_divides_stay_in_16_bits() -> None:
    assert matrix_bytes(10, 256, "q4_k") == 10 * 144
    assert matrix_bytes(10, 96, "q4_k") == 10 * 3 * 22  # q5_0, in blocks of 32
    assert matrix_bytes(10, 100, "q4_k") == matrix_bytes(10, 100, "q8_0") == 10 * 200
