"""Does a tensor fit? A ValueError that names it, what it is and what was expected."""

from __future__ import annotations

from torch import Tensor


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raises ValueError unless `tensor` has this shape and is contiguous."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {expected}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: kernels address rows by width; copy it first")


def check_vectors(size: int, **vectors: Tensor | None) -> None:
    """Raises ValueError unless each of them that is there is (size,) and contiguous."""
    for name, vector in vectors.items():
        if vector is not None:
            check_shape(name, vector, (size,))


def check_table(block_table: Tensor, num_reqs: int) -> None:
    """Raises ValueError unless it is (num_reqs, max_blocks). It may be the left part of a wider
    table: rows are found by their stride, so a graph need not copy the columns that it uses."""
    if block_table.dim() != 2 or block_table.shape[0] != num_reqs or block_table.stride(1) != 1:
        raise ValueError(
            f"block_table is {tuple(block_table.shape)}, expected ({num_reqs}, max_blocks), by rows"
        )
