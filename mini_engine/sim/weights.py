"""The weights of a model as float32 numpy arrays: read from a Hugging Face folder, or random.

In:  a `ModelConfig`, and a folder that `mini_engine/model/checkpoint.py` can read: F32, F16 and
     BF16 tensors; no torch, and never a pickle.
Out: `Weights`: q, k, v merged into one matrix and gate, up into another.

Matrices are kept as the file has them, (out, in): y = x @ W.T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.checkpoint import (
    EMBED,
    FINAL_NORM,
    LM_HEAD,
    StoredTensor,
    layer_parts,
    random_law,
    stored_tensors,
    tensor_shapes,
)
from mini_engine.model.config import ModelConfig

Array = NDArray[np.float32]
T = TypeVar("T")  # an array on the host, or a buffer on the device


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
    layers: tuple[LayerWeights[Array], ...]
    final_norm: Array  # (hidden,)
    lm_head: Array  # (vocab, hidden)


def load_weights(config: ModelConfig, folder: str | Path) -> Weights:
    """Read every tensor of the folder. Raises ValueError as `checkpoint.stored_tensors` does, and
    for quantised ones, which only the CUDA wing reads."""
    if config.quantization:
        raise ValueError(
            f"{folder}: its weights are {config.quantization.method} of 4 bits, which the "
            "simulated GPU does not read: use --backend cuda, or the unquantised checkpoint"
        )
    stored = stored_tensors(config, folder)
    return _assemble(config, lambda name: _float32(stored[name]))


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights of the right shapes that keep activations near 1, for tests."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, shape in tensor_shapes(config).items():
        mean, deviation = random_law(name, shape)
        values = rng.standard_normal(shape, dtype=np.float32)
        tensors[name] = np.float32(mean) + np.float32(deviation) * values
    return _assemble(config, tensors.pop)  # popped: merging frees the parts


# ---------------------------------------------------------------- parts


def _assemble(config: ModelConfig, take: Callable[[str], Array]) -> Weights:
    def stack(*names: str) -> Array:
        """The named tensors, row under row."""
        return take(names[0]) if len(names) == 1 else np.concatenate([take(n) for n in names])

    def layer(index: int) -> LayerWeights[Array]:
        parts = layer_parts(config, index).items()
        return LayerWeights(**{field: stack(*names) for field, names in parts})

    embed = stack(EMBED)
    return Weights(
        config=config,
        embed=embed,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=stack(FINAL_NORM),
        lm_head=embed if config.tie_word_embeddings else stack(LM_HEAD),
    )


def _float32(stored: StoredTensor) -> Array:
    """A float32 copy of the stored tensor. F16 and BF16 are exact in it."""
    raw = stored.raw()
    if stored.dtype == "BF16":
        # A bfloat16 is the upper half of the float32 with the same value.
        values: Array = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = raw.view({"F16": "<f2", "F32": "<f4"}[stored.dtype]).astype(np.float32)
    return np.asarray(values).reshape(stored.shape)
