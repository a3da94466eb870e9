"""Does what a kernel will write have room?"""

from __future__ import annotations

from torch import Tensor


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raises ValueError unless `tensor` has this shape and is contiguous."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {expected}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: kernels address rows by width; copy it first")
