"""The weights of a model as torch tensors: read from a Hugging Face folder, or random.

In:  a `ModelConfig`, and a folder of safetensors (`model/hub.py` finds or fetches it) or a seed.
Out: `Weights` on one device in one dtype; q, k, v merged into one matrix and gate, up into another.

Each stored tensor is copied straight to its rows of a merged matrix. With `quant` ("int8", "int4")
the matrices of the layers are quantised, each as soon as it is whole; embedding and head stay
plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mini_engine.cuda.graphs.backend import GraphBackend, free_bytes
from mini_engine.cuda.quantized_matrix import Matrix, quantize
from mini_engine.cuda.ranks import Ranks
from mini_engine.model import checkpoint
from mini_engine.model.checkpoint import StoredTensor
from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.step.storage import stored_as

Fill = Callable[[str, Tensor], None]  # puts the tensor of this name into these rows
MATRICES = ("qkv", "o", "gate_up", "down")
QUANTS = {"int8": 8, "int4": 4}  # int4 is asymmetric, in groups of 128


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerWeights:
    """One decoder layer; q = num_heads * head_dim and kv = num_kv_heads * head_dim."""

    input_norm: Tensor  # (hidden,)
    qkv: Matrix  # (q + 2 kv, hidden): rows of q, then of k, then of v
    qkv_bias: Tensor | None = None  # (q + 2 kv,), qwen2 only
    q_norm: Tensor | None = None  # (head_dim,), qwen3 only: one norm for every head
    k_norm: Tensor | None = None  # (head_dim,), qwen3 only
    o: Matrix  # (hidden, q)
    post_norm: Tensor  # (hidden,)
    gate_up: Matrix  # (2 intermediate, hidden): rows of gate, then of up; of each expert in turn
    down: Matrix  # (hidden, intermediate); of each expert in turn
    router: Tensor | None = None  # (experts, hidden), of a mixture only


@dataclass(frozen=True, eq=False)
class Weights:
    """A model, or a rank's part of it. A tied `lm_head` is `embed`, or its rows of this rank."""

    config: ModelConfig
    embed: Tensor  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # (hidden,)
    lm_head: Tensor  # (vocab, hidden)
    ranks: Ranks | None = None  # all that have a part

    @property
    def quantized(self) -> bool:
        return not isinstance(self.layers[0].qkv, Tensor)

    def mapped(self, change: Callable[[str, Any], Any]) -> Weights:
        """These weights after `change(field, value)` of each field of a layer; all else is kept."""
        layers = [{name: change(name, value) for name, value in vars(layer).items()}
                  for layer in self.layers]  # fmt: skip
        return replace(self, layers=tuple(LayerWeights(**fields) for fields in layers))

    def as_quantized(self, quant: str) -> Weights:
        """These weights with quantised matrices; all else is shared."""
        return self.mapped(lambda name, x: _stored_as(quant, x) if name in MATRICES else x)


def load_weights(
    config: ModelConfig,
    folder: str | Path,
    device: torch.device,
    dtype: torch.dtype,
    quant: str | None = None,
    ranks: Ranks | None = None,
) -> Weights:
    """Read every tensor of the folder, or this rank's part of each. Raises ValueError as
    `checkpoint.stored_tensors` and `check_numbers` do."""
    stored = checkpoint.stored_tensors(config, folder)

    def fill(name: str, rows: Tensor) -> None:
        whole = as_tensor(stored[name])
        rows.copy_(ranks.part(whole, rows.shape) if ranks else whole)
        checkpoint.check_numbers(stored[name], *map(float, torch.aminmax(rows)))

    if ranks:
        mine = _assemble(config.shard(ranks.count), device, dtype, fill, quant)
        if config.tie_word_embeddings:
            wanted = torch.Size((mine.config.vocab_rows, config.hidden_size))
            mine = replace(mine, lm_head=ranks.part(mine.embed, wanted))
        return replace(mine, ranks=ranks)
    return _assemble(config, device, dtype, fill, quant)


def random_weights(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int
) -> Weights:
    """Weights of the model's true size, for benchmarks without a download. One seed gives the same
    weights on the same kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    shapes = checkpoint.tensor_shapes(config)

    def fill(name: str, rows: Tensor) -> None:
        mean, deviation = checkpoint.random_law(name, shapes[name])
        rows.normal_(mean, deviation, generator=generator)

    return _assemble(config, device, dtype, fill)


def loaded_bytes(config: ModelConfig, stored: str, quant: str | None) -> int:
    """Bytes of the weights with what is plain in `stored` ("bf16", "fp32"), while the last matrix
    is quantised and stands beside them, plain."""
    if quant is None:
        return stored_as(config, stored).held
    plain = replace(config, dtype="float32" if stored == "fp32" else "bfloat16")
    rows = (
        config.experts.count * config.experts.width if config.experts else config.intermediate_size
    )
    return stored_as(plain, quant).held + 2 * rows * config.hidden_size * plain.dtype_bytes


def no_room(
    config: ModelConfig, backend: GraphBackend, *stored: str, quant: str | None = None
) -> str | None:
    """Why the weights, once in each of these dtypes, do not fit into what is free: one line that
    names a shape that would; None where they fit."""

    def needed(shape: ModelConfig) -> int:
        return sum(loaded_bytes(shape, dtype, quant) for dtype in stored)

    free = free_bytes(backend)
    if needed(config) <= free:
        return None
    fitting = [shape for shape in SHAPES.values() if needed(shape) <= free]
    largest = max(fitting, key=needed, default=None)
    where = "this machine" if backend.emulated else "the GPU"
    kind = " + ".join(stored) if quant is None else quant
    return (
        f"{config.name} needs {needed(config):,} bytes for its weights ({kind}) and "
        f"{where} has {free:,} free: "
        + (f"{largest.name} would fit" if largest else "no shape that we know would fit")
    )


TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _assemble(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    fill: Fill,
    quant: str | None = None,
) -> Weights:
    shapes = checkpoint.tensor_shapes(config)

    def stack(names: Sequence[str]) -> Tensor:
        """The named tensors, row under row."""
        heights = [shapes[name][0] for name in names]
        whole = torch.empty((sum(heights), *shapes[names[0]][1:]), dtype=dtype, device=device)
        for name, rows in zip(names, torch.split(whole, heights), strict=True):
            fill(name, rows)
        return whole

    def layer(index: int) -> LayerWeights:
        parts = checkpoint.layer_parts(config, index).items()
        fields: dict[str, Any] = {
            field: _stored_as(quant if field in MATRICES else None, stack(list(names)))
            for field, names in parts
        }
        return LayerWeights(**fields)

    embed = stack([checkpoint.EMBED])
    return Weights(
        config=config,
        embed=embed,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=stack([checkpoint.FINAL_NORM]),
        lm_head=embed if config.tie_word_embeddings else stack([checkpoint.LM_HEAD]),
    )


def _stored_as(quant: str | None, matrix: Tensor) -> Matrix:
    return matrix if quant is None else quantize(matrix, QUANTS[quant])


def as_tensor(stored: StoredTensor) -> Tensor:
    """The stored tensor in its own dtype, in mapped memory."""
    dtype = TORCH_DTYPES[stored.dtype]
    return torch.from_numpy(stored.raw()).view(dtype).reshape(stored.shape)
