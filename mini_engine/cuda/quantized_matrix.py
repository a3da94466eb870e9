"""A weight of 8 or 4 bits a number, as kernels/gemv_quantized.py reads it.

    quantize(matrix, bits)  ->  QuantizedMatrix      load time: from a plain weight
    dequantized(matrix)     ->  (N, K) float32       (code - zero) · scale: the reference

int8: a float32 scale a row, zero 128. int4: for each 128 columns of a row a float16 scale, and a
zero of 4 bits. A thread gets 16 bytes of a row in a load and unpacks them without a shuffle: a
*segment* is 16 words of int32, code i of word w is of column

    segment · 16 · PER + i · 16 + w          PER: codes of a word, 8 (int4) or 4 (int8)

so codes of one place of neighbouring words belong to neighbouring columns, and x is read as it
lies. A segment of int4 is a group. Beyond K a segment is filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORDS = 16  # of a segment
GROUP = 128  # columns of an int4 scale: a segment
SLAB = 1 << 24  # numbers that `quantize` holds in float32 at a time


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A weight (N, K)."""

    packed: Tensor  # (N, segments · WORDS) int32
    scales: Tensor  # int8: (N,) float32; int4: (N, segments) float16
    zeros: Tensor | None  # int4: (N, segments / 2, rounded up) uint8, the even one low
    bits: int
    width: int  # K

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.packed), self.width

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor | None, int]:
        """What an op takes: its schema knows no dataclass."""
        return self.packed, self.scales, self.zeros, self.bits


Matrix = Tensor | QuantizedMatrix  # of a layer


def quantize(matrix: Tensor, bits: int) -> QuantizedMatrix:
    """Round each number to the nearest code. int8: scale = max|row| / 127. int4: scale = (max -
    min) / 15 of a group, and a zero, so that 0 stays 0. An error is at most a scale."""
    slabs = torch.split(matrix, max(1, SLAB // matrix.shape[1]))
    parts = [_quantize_8(slab) if bits == 8 else _quantize_4(slab) for slab in slabs]
    packed, scales, zeros = (torch.cat([part[i] for part in parts]) for i in range(3))
    return QuantizedMatrix(packed, scales, None if bits == 8 else zeros, bits, matrix.shape[1])


def dequantized(matrix: QuantizedMatrix) -> Tensor:
    """(N, K) float32, exactly what the codes stand for."""
    per, (rows, width) = 32 // matrix.bits, matrix.shape
    words = matrix.packed.view(rows, -1, 1, WORDS)
    shifts = torch.arange(per, device=words.device, dtype=torch.int32)[:, None] * matrix.bits
    codes = ((words >> shifts) & (2**matrix.bits - 1)).float()  # (N, segments, per, WORDS)
    if matrix.zeros is None:
        codes -= 2 ** (matrix.bits - 1)
    else:
        both = torch.stack([matrix.zeros & 15, matrix.zeros >> 4], -1).flatten(1)
        codes -= both[:, : codes.shape[1], None, None]
    numbers: Tensor = codes * matrix.scales.float().view(rows, -1, 1, 1)
    return numbers.view(rows, -1)[:, :width].contiguous()


def _quantize_8(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    wide = rows.float()
    scale = wide.abs().amax(1) / 127
    codes = (wide / _divisor(scale)[:, None]).round().clamp(-127, 127) + 128
    return _pack(codes.to(torch.uint8), 8), scale, scale  # zeros: all 128, so nobody reads them


def _quantize_4(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    groups = _in_groups(rows.float(), GROUP)  # zeros beyond K change no scale
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((high - low) / 15).half()
    divisor = _divisor(scale.float())
    zero = (-low / divisor).round().clamp(0, 15)
    codes = ((groups / divisor[..., None]).round() + zero[..., None]).clamp(0, 15)
    packed = _pack(codes.flatten(1).to(torch.uint8), 4)
    return packed, scale, _pack_zeros(zero.to(torch.uint8))


def _divisor(scale: Tensor) -> Tensor:
    """What to divide by: 1 where all numbers are zeros, or too small for a scale."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _in_groups(rows: Tensor, size: int) -> Tensor:
    """(N, K) as (N, groups, size), filled up with zeros."""
    missing = -rows.shape[1] % size
    return torch.nn.functional.pad(rows, (0, missing)).view(len(rows), -1, size)


def _pack(codes: Tensor, bits: int) -> Tensor:
    per = 32 // bits
    by_place = _in_groups(codes, per * WORDS).view(len(codes), -1, per, WORDS)
    words = torch.zeros_like(by_place[:, :, 0], dtype=torch.int32)
    for i in range(per):
        words |= by_place[:, :, i].int() << (bits * i)
    return words.flatten(1)


def _pack_zeros(zeros: Tensor) -> Tensor:
    pairs = _in_groups(zeros, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4)
