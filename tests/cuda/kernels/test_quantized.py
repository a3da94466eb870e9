"""quantized_matrix.py: what a code stands for, where it lies, how far it is from the weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.cuda.kernels import linear
from mini_engine.cuda.kernels.gemv_quantized import quantized_plan
from mini_engine.cuda.quantized_matrix import GROUP, WORDS, QuantizedMatrix, dequantized, quantize
from mini_engine.model.config import named_shape
from mini_engine.step.storage import QUANTS

shapes = {"rows": st.integers(1, 5), "width": st.integers(1, 300), "seed": st.integers(0, 2**31)}


@given(bits=st.sampled_from([4, 8]), size=st.floats(-12, 3), **shapes)
def test_no_number_moves_by_more_than_its_scale(
    bits: int, size: float, rows: int, width: int, seed: int
) -> None:
    """By half of one, where 0 is a code by itself. A float16 scale is rounded, by 2⁻¹¹ of itself,
    and the largest of fifteen codes then misses by fifteen times that; below 2⁻¹⁴ float16 has fewer
    bits, and below 2⁻²⁵ none, so a scale may be off by 2⁻²⁵ whatever it is."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, width, generator=generator) * 2.0**size
    made = quantize(matrix, bits)
    scales = made.scales.float().view(rows, -1).repeat_interleave(GROUP, 1)[:, :width]
    if bits == 8:
        scales = made.scales[:, None]
    steps = 0.5 if bits == 8 else 1.0
    allowed = scales * (steps + 15 * 2**-11) + 15 * 2.0**-24
    assert ((dequantized(made) - matrix).abs() <= allowed).all()


@given(bits=st.sampled_from([4, 8]), **shapes)
def test_a_code_lies_where_the_file_says(bits: int, rows: int, width: int, seed: int) -> None:
    """Column segment · 16 · PER + i · 16 + w is code i of word w of the segment."""
    per = 32 // bits
    made = quantize(torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)), bits)
    column = torch.randint(width, (), generator=torch.Generator().manual_seed(seed)).item()
    segment, rest = divmod(int(column), WORDS * per)
    place, word = divmod(rest, WORDS)
    words = made.packed[:, segment * WORDS + word].long()
    codes = (words >> (bits * place)) & (2**bits - 1)
    zeros = torch.full((rows,), 128.0)
    scales = made.scales.float()
    if bits == 4:
        assert made.zeros is not None
        zeros = ((made.zeros[:, segment // 2] >> (segment % 2 * 4)) & 15).float()
        scales = scales[:, segment]
    assert torch.equal((codes - zeros) * scales, dequantized(made)[:, int(column)])


@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_all_zeros_stays_zeros_and_so_does_what_no_scale_can_hold(bits: int) -> None:
    tiny = torch.full((1, 200), 1e-9) if bits == 4 else torch.zeros(1, 200)
    for matrix in (torch.zeros(2, 200), tiny):
        assert not dequantized(quantize(matrix, bits)).any()


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_the_bytes_are_those_that_capacity_counts(quant: str) -> None:
    for outputs, inputs in ((6, 1024), (3, 256)):
        made = quantize(torch.randn(outputs, inputs), QUANTS[quant].bits)
        tensors = [t for t in made.parts[:3] if t is not None]
        assert sum(t.nbytes for t in tensors) == QUANTS[quant].matrix_bytes(outputs, inputs)


def test_a_large_matrix_is_quantised_in_slabs_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(7, 130)
    whole = dequantized(quantize(matrix, 4))
    monkeypatch.setattr("mini_engine.cuda.quantized_matrix.SLAB", 300)
    assert torch.equal(dequantized(quantize(matrix, 4)), whole)


# ---------------------------------------------------------------- ops and plans


def int4(rows: int = 6, width: int = 64) -> QuantizedMatrix:
    return quantize(torch.randn(rows, width), 4)


def test_what_does_not_fit_is_refused_in_words() -> None:
    x, weight = torch.randn(1, 64), int4()
    with pytest.raises(ValueError, match="17 tokens > 16: use library_linear"):
        linear.linear(torch.empty(17, 6), torch.randn(17, 64), weight)
    with pytest.raises(ValueError, match=r"out is \(1, 5\), expected \(1, 6\)"):
        linear.linear_add(torch.empty(1, 5), x, weight)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_warp_loads_sixteen_bytes_a_thread_of_a_real_models_rows(bits: int) -> None:
    """A chunk is 128 words for each warp, so every thread has columns of its own in all rows."""
    for model in ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "llama-3.2-1b"):
        c = named_shape(model)
        for width in (c.hidden_size, c.q_size, c.intermediate_size):
            for tokens in (1, 4):
                plan = quantized_plan(4096, width, bits, tokens=tokens)
                assert plan.chunk * WORDS == 128 * plan.warps
                per_row = 16 * 32 * plan.warps * plan.chunks
                assert width * bits // 8 <= per_row <= 1.15 * width * bits / 8
