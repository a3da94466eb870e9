"""The weights of a model as torch tensors: read from a Hugging Face folder, or random.

q, k, v are merged into one matrix and gate, up into another; each stored tensor is copied straight
to its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mini_engine.cuda.graphs.backend import GraphBackend, free_bytes
from mini_engine.cuda.ranks import Ranks
from mini_engine.model import checkpoint
from mini_engine.model.config import ModelConfig
from mini_engine.step.storage import stored_as

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Fill = Callable[[str, Tensor], None]  # puts the tensor of this name into these rows


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerWeights:
    """One decoder layer; q = num_heads * head_dim and kv = num_kv_heads * head_dim."""

    input_norm: Tensor  # (hidden,)
    qkv: Tensor  # (q + 2 kv, hidden): rows of q, then of k, then of v
    qkv_bias: Tensor | None = None  # (q + 2 kv,), qwen2 only
    q_norm: Tensor | None = None  # (head_dim,), qwen3 only: one norm for every head
    k_norm: Tensor | None = None  # (head_dim,), qwen3 only
    o: Tensor  # (hidden, q)
    post_norm: Tensor  # (hidden,)
    gate_up: Tensor  # (2 intermediate, hidden): rows of gate, then of up; of each expert in turn
    down: Tensor  # (hidden, intermediate); of each expert in turn
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


def load_weights(
    config: ModelConfig, folder: str | Path, device: torch.device, dtype: torch.dtype,
    ranks: Ranks | None = None,
) -> Weights:  # fmt: skip
    """Read every tensor of the folder, or this rank's part of each. Raises ValueError as
    `checkpoint.stored_tensors` and `check_numbers` do."""
    stored = checkpoint.stored_tensors(config, folder)

    def fill(name: str, rows: Tensor) -> None:
        one = stored[name]  # in mapped memory
        whole = torch.from_numpy(one.raw()).view(DTYPES[one.dtype]).reshape(one.shape)
        rows.copy_(ranks.part(whole, rows.shape) if ranks else whole)
        checkpoint.check_numbers(one, *map(float, torch.aminmax(rows)))

    if ranks:
        mine = _assemble(config.shard(ranks.count), device, dtype, fill)
        if config.tie_word_embeddings:
            wanted = torch.Size((mine.config.vocab_rows, config.hidden_size))
            mine = replace(mine, lm_head=ranks.part(mine.embed, wanted))
        return replace(mine, ranks=ranks)
    return _assemble(config, device, dtype, fill)


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


def no_room(config: ModelConfig, backend: GraphBackend, *stored: str) -> str | None:
    """Why the weights, once in each of these dtypes, do not fit into what is free, in one line;
    None where they fit."""
    needed, free = sum(stored_as(config, dtype).held for dtype in stored), free_bytes(backend)
    if needed <= free:
        return None
    where = "this machine" if backend.emulated else "the GPU"
    return (
        f"{config.name} needs {needed:,} bytes for its weights ({' + '.join(stored)}) and {where} "
        f"has {free:,} free: take a smaller shape"
    )


def _assemble(config: ModelConfig, device: torch.device, dtype: torch.dtype, fill: Fill) -> Weights:
    shapes = checkpoint.tensor_shapes(config)

    def stack(names: Sequence[str]) -> Tensor:  # row under row
        heights = [shapes[name][0] for name in names]
        whole = torch.empty((sum(heights), *shapes[names[0]][1:]), dtype=dtype, device=device)
        for name, rows in zip(names, torch.split(whole, heights), strict=True):
            fill(name, rows)
        return whole

    def layer(index: int) -> LayerWeights:
        parts = checkpoint.layer_parts(config, index).items()
        return LayerWeights(**{field: stack(list(names)) for field, names in parts})

    embed = stack([checkpoint.EMBED])
    return Weights(
        config=config,
        embed=embed,
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=stack([checkpoint.FINAL_NORM]),
        lm_head=embed if config.tie_word_embeddings else stack([checkpoint.LM_HEAD]),
    )
