"""Holds a tensor against what it should be, or was, and says the difference in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def assert_near(
    got: Tensor, wanted: Tensor, what: str, *, rtol: float = 0, atol: float = 0
) -> None:
    """Each number within atol + rtol · |wanted|; NaN equals NaN. Raises AssertionError, which names
    the first number that is not: `out[1, 3] is 0.5, expected 2; 7 of 64 numbers are off`."""
    assert got.shape == wanted.shape, (
        f"{what} is {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    )
    one, other = got.double(), wanted.double()
    off = ~(((one - other).abs() <= atol + rtol * other.abs()) | (one == other))
    off &= ~(one.isnan() & other.isnan())
    if off.any():
        at = tuple(off.nonzero()[0].tolist())
        place = f"{what}{list(at)}" if at else what
        values = f"{place} is {one[at].item():.6g}, expected {other[at].item():.6g}"
        never = ", as if it were never written" if one[at].isnan() else ""
        raise AssertionError(f"{values}{never}; {int(off.sum())} of {off.numel()} numbers are off")


def assert_same(got: Tensor, wanted: Tensor, what: str) -> None:
    """To the last bit."""
    assert_near(got, wanted, what)


def fenced(rows: Tensor, fill: float = float("nan")) -> tuple[Tensor, Tensor]:
    """(a copy of `rows` that lies between two rows full of `fill`, those two rows)."""
    whole = torch.full((len(rows) + 2, *rows.shape[1:]), fill, dtype=rows.dtype)
    whole[1:-1] = rows
    return whole[1:-1], whole[:: len(rows) + 1]


@contextmanager
def unchanged(**tensors: Tensor | None) -> Iterator[None]:
    """What is only read: afterwards each tensor must have the bits that it had before."""
    before = {name: t.clone() for name, t in tensors.items() if t is not None}
    yield
    for name, old in before.items():
        now = tensors[name]
        same = now is not None and torch.equal(_bits(now), _bits(old))
        assert same, f"{name} was changed: the kernel only reads it"


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)
