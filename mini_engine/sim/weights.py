"""The weights of a model as float32 numpy arrays, (out, in) as the file has them: y = x @ W.T.

q, k, v are stacked into one matrix and gate, up into another."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.checkpoint import StoredTensor, check_numbers, layer_parts, stored_tensors
from mini_engine.model.config import ModelConfig

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Weights:
    """A whole model. Each tensor is read when it is asked for: on the way to a device the host
    holds one matrix, and never all."""

    config: ModelConfig
    read: Callable[[str], Array]  # a tensor, by its name in a Hugging Face checkpoint

    def stacked(self, names: Iterable[str]) -> Array:
        parts = [self.read(name) for name in names]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def layers(self) -> Iterator[dict[str, Array]]:
        """The decoder layers, one after another, each by the names of `layer_parts`."""
        for index in range(self.config.num_layers):
            parts = layer_parts(self.config, index)
            yield {name: self.stacked(tensors) for name, tensors in parts.items()}


def load_weights(config: ModelConfig, folder: str | Path) -> Weights:
    """The weights of a folder. Raises ValueError as `checkpoint.stored_tensors` does; when a tensor
    is read, as `check_numbers` does."""
    stored = stored_tensors(config, folder)
    return Weights(config, lambda name: _read(stored[name]))


def _read(stored: StoredTensor) -> Array:
    """F16 and BF16 are exact in float32. Raises ValueError as `check_numbers` does."""
    raw = stored.raw()
    if stored.dtype == "BF16":  # the upper half of the float32 with the same value
        bits = raw.view("<u2").astype(np.uint32)
        bits <<= 16
        values = bits.view(np.float32)
    else:
        values = np.asarray(raw.view({"F16": "<f2", "F32": "<f4"}[stored.dtype]), np.float32)
    check_numbers(stored, float(values.min()), float(values.max()))
    return values.reshape(stored.shape)
