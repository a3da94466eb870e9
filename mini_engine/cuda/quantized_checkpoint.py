"""AWQ and GPTQ checkpoints, unpacked into our own layout: the codes are theirs, none is rounded.

In:  the stored tensors of one or more matrices (names, shapes: `model/quantization.py`).
Out: a `QuantizedMatrix` of 4 bits, on the device.

An int32 holds eight codes. GPTQ packs eight neighbouring inputs, the lowest bits first, and AWQ
eight outputs in the order 0, 2, 4, 6, 1, 3, 5, 7. Zeros are packed along the outputs, in the same
order each. GPTQ's first format stores zero - 1, added here over the whole word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mini_engine.cuda.quantized_matrix import GROUP, QuantizedMatrix, quantized
from mini_engine.model.quantization import StoredQuantization

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that code i of a word belongs to
SYMMETRIC = 8  # the zero of a symmetric weight


def quantized_rows(
    kind: StoredQuantization,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    names: Sequence[str],
) -> QuantizedMatrix:
    """The matrices of these names ("….weight"), row under row; zeros that are all 8 are left out.
    Raises ValueError for inputs that are not in order (act-order)."""
    parts = [_unpacked(kind, tensors, name.removesuffix("weight"), device) for name in names]
    codes, scales, zeros = (torch.cat(some) for some in zip(*parts, strict=True))
    symmetric = bool((zeros == SYMMETRIC).all())
    return quantized(codes, scales, None if symmetric else zeros)


def _unpacked(
    kind: StoredQuantization, tensors: Mapping[str, Tensor], base: str, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """codes (N, K) uint8; scales and zeros (N, groups of GROUP)."""
    parts = ("qweight", "qzeros", "scales")
    words, zeros, scales = (tensors[base + part].to(device) for part in parts)
    if kind.quant_method == "awq":
        codes, zeros = _outputs(words)[..., _AWQ_PLACES], _outputs(zeros)[..., _AWQ_PLACES]
        codes = codes.flatten(1)
    else:
        _check_order(kind, tensors, base, len(words) * 8)
        codes = _outputs(words).transpose(1, 2).flatten(0, 1)
        zeros = _outputs(zeros + 0x11111111 * kind.zeros_are_less_by)
    width = len(codes)
    spread = [_spread(t, kind.group_size, width) for t in (scales, zeros.flatten(1))]
    return codes.T, spread[0], spread[1]


def _outputs(words: Tensor) -> Tensor:
    """(n, words) -> (n, words, 8): the codes of each word, the lowest bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & 15).to(torch.uint8)


_AWQ_PLACES = [AWQ_ORDER.index(output) for output in range(8)]


def _spread(groups: Tensor, size: int, width: int) -> Tensor:
    """(groups, N) for groups of `size` inputs as (N, groups of GROUP)."""
    wanted = -(-width // GROUP)
    each = wanted if size < 0 else size // GROUP
    return groups.repeat_interleave(each, 0)[:wanted].T


def _check_order(
    kind: StoredQuantization, tensors: Mapping[str, Tensor], base: str, width: int
) -> None:
    groups = tensors.get(f"{base}g_idx")
    size = width if kind.group_size < 0 else kind.group_size
    if groups is not None and not torch.equal(groups.cpu(), torch.arange(width).int() // size):
        raise ValueError(f"{base}g_idx is not in order: desc_act (act-order) is not read")
