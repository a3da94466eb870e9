"""What the tests of several labs give to a learner's code, and how they look at what comes back."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mini_engine.model.checkpoint import random_law, tensor_shapes
from mini_engine.model.config import ModelConfig
from mini_engine.sim.weights import Weights

Array = TypeVar("Array", bound=npt.NDArray[np.generic])


def frozen(array: Array) -> Array:
    """The same array, read-only: code that writes into it fails on the line that does."""
    array.flags.writeable = False
    return array


def agree(
    mine: npt.ArrayLike, right: npt.ArrayLike, what: str, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Raise AssertionError, in one line, unless both have one shape and the same numbers.

    `rtol` and `atol` as in numpy's `isclose`. Equal infinities are the same; NaN never is.
    """
    a, b = np.asarray(mine), np.asarray(right)
    if a.shape != b.shape:
        raise AssertionError(f"{what}: the shape is {a.shape}, expected {b.shape}")
    wrong = np.argwhere(~np.isclose(a, b, rtol=rtol, atol=atol))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        at = f"at {list(place)} of {list(a.shape)} " if place else ""
        many = f"{len(wrong)} of {a.size} numbers are wrong: " if a.size > 1 else ""
        raise AssertionError(f"{what}: {many}{at}it is {a[place]:g}, expected {b[place]:g}")


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights of the right shapes that keep activations near 1, for tests."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in tensor_shapes(config).items():
        mean, deviation = random_law(name, shape)
        values = rng.standard_normal(shape, dtype=np.float32)
        tensors[name] = np.float32(mean) + np.float32(deviation) * values
    return Weights(config, tensors.__getitem__)
