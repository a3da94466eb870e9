"""The weights of a model as float32 numpy arrays: read from a Hugging Face folder, or random.

In:  a `ModelConfig`, and a folder that `mini_engine/model/checkpoint.py` can read: F32, F16 and
     BF16 tensors; no torch, and never a pickle.
Out: `Weights`: q, k, v merged into one matrix and gate, up into another.

Matrices are kept as the file has them, (out, in): y = x @ W.T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.checkpoint import (
    EMBED,
    FINAL_NORM,
    LM_HEAD,
    StoredTensor,
    check_numbers,
    layer_parts,
    random_law,
    stored_tensors,
    tensor_shapes,
)
from mini_engine.model.config import ModelConfig

Array = NDArray[np.float32]
T = TypeVar("T")  # an array on the host, or a buffer on the device
OnLayer = Callable[[int], None]
Fill = Callable[[str, Array], None]  # (name of a tensor, its rows, to be written)


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerWeights(Generic[T]):
    """One decoder layer; q = num_heads * head_dim and kv = num_kv_heads * head_dim."""

    input_norm: T  # (hidden,)
    qkv: T  # (q + 2 kv, hidden): rows of q, then of k, then of v
    qkv_bias: T | None = None  # (q + 2 kv,), qwen2 only
    q_norm: T | None = None  # (head_dim,), qwen3 only: RMSNorm weights, the same for every head
    k_norm: T | None = None  # (head_dim,), qwen3 only
    o: T  # (hidden, q)
    post_norm: T  # (hidden,)
    gate_up: T  # (2 intermediate, hidden): rows of gate, then of up
    down: T  # (hidden, intermediate)


@dataclass(frozen=True, eq=False)
class Weights:
    """A whole model. With a tied head, `lm_head` and `embed` are one array."""

    config: ModelConfig
    embed: Array  # (vocab, hidden)
    layers: Sequence[LayerWeights[Array]]
    final_norm: Array  # (hidden,)
    lm_head: Array  # (vocab, hidden)


class StoredLayers(Sequence[LayerWeights[Array]]):
    """The layers of a checkpoint, each read anew whenever it is asked for: on the way to a device
    there are two of them on the host, and not all."""

    def __init__(
        self, num_layers: int, read: Callable[[int], LayerWeights[Array]], on_layer: OnLayer | None
    ) -> None:
        self._num_layers, self._read, self._on_layer = num_layers, read, on_layer

    def __len__(self) -> int:
        return self._num_layers

    def __iter__(self) -> Iterator[LayerWeights[Array]]:
        """While one is used, a thread reads the next: numpy computes without the interpreter."""
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(self._read, 0)
            for index in range(len(self)):
                if self._on_layer:
                    self._on_layer(index)
                layer = coming.result()
                if index + 1 < len(self):
                    coming = reader.submit(self._read, index + 1)
                yield layer

    @overload
    def __getitem__(self, index: int) -> LayerWeights[Array]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights[Array]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> LayerWeights[Array] | Sequence[LayerWeights[Array]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # raises IndexError
        if self._on_layer:
            self._on_layer(place)
        return self._read(place)


def load_weights(config: ModelConfig, folder: str | Path) -> Weights:
    """The weights of a folder. Raises ValueError as `checked_tensors` does, and for a tensor with a
    number that is not finite; those of a layer are read, and looked at, when it is asked for."""
    return read_weights(config, checked_tensors(config, folder))


def checked_tensors(config: ModelConfig, folder: str | Path) -> dict[str, StoredTensor]:
    """Raises ValueError as `checkpoint.stored_tensors` does, and for quantised ones, which only the
    CUDA wing reads."""
    if config.quantization:
        raise ValueError(
            f"{folder}: its weights are {config.quantization.method} of 4 bits, which the "
            "simulated GPU does not read: use --backend cuda, or the unquantised checkpoint"
        )
    return stored_tensors(config, folder)


def read_weights(
    config: ModelConfig, stored: Mapping[str, StoredTensor], on_layer: OnLayer | None = None
) -> Weights:
    """`on_layer(index)` is called before a layer is read."""

    def fill(name: str, rows: Array) -> None:
        _read_into(rows, stored[name])

    def layer(index: int) -> LayerWeights[Array]:
        return _layer(config, index, fill)

    return _assemble(config, fill, StoredLayers(config.num_layers, layer, on_layer))


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights of the right shapes that keep activations near 1, for tests."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, shape in tensor_shapes(config).items():
        mean, deviation = random_law(name, shape)
        values = rng.standard_normal(shape, dtype=np.float32)
        tensors[name] = np.float32(mean) + np.float32(deviation) * values

    def fill(name: str, rows: Array) -> None:
        rows[...] = tensors.pop(name)

    return _assemble(config, fill, [_layer(config, i, fill) for i in range(config.num_layers)])


# ---------------------------------------------------------------- parts


def _assemble(config: ModelConfig, fill: Fill, layers: Sequence[LayerWeights[Array]]) -> Weights:
    vocabulary = (config.vocab_size, config.hidden_size)
    embed = _stacked({EMBED: vocabulary}, fill)
    return Weights(
        config=config,
        embed=embed,
        layers=layers,
        final_norm=_stacked({FINAL_NORM: (config.hidden_size,)}, fill),
        lm_head=embed if config.tie_word_embeddings else _stacked({LM_HEAD: vocabulary}, fill),
    )


def _layer(config: ModelConfig, index: int, fill: Fill) -> LayerWeights[Array]:
    parts = layer_parts(config, index).items()
    return LayerWeights(**{field: _stacked(tensors, fill) for field, tensors in parts})


def _stacked(tensors: Mapping[str, tuple[int, ...]], fill: Fill) -> Array:
    """The named tensors of these shapes, row under row."""
    heights = [shape[0] for shape in tensors.values()]
    whole = np.empty((sum(heights), *next(iter(tensors.values()))[1:]), np.float32)
    for name, rows in zip(tensors, np.split(whole, np.cumsum(heights)[:-1]), strict=True):
        fill(name, rows)
    return whole


def _read_into(rows: Array, stored: StoredTensor) -> None:
    """Fill `rows` with the stored tensor. F16 and BF16 are exact in float32. Raises ValueError as
    `check_numbers` does."""
    raw = stored.raw()
    if stored.dtype == "BF16":
        # A bfloat16 is the upper half of the float32 with the same value.
        halves, bits = raw.view("<u2").reshape(stored.shape), rows.view(np.uint32)
        np.left_shift(halves, 16, out=bits, dtype=np.uint32, casting="unsafe")
    else:
        rows[...] = raw.view({"F16": "<f2", "F32": "<f4"}[stored.dtype]).reshape(stored.shape)
    check_numbers(stored, float(rows.min()), float(rows.max()))
