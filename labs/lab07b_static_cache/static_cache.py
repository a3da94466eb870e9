"""A KV cache without pages, what a step over it reads, and attention under a boolean mask.

In:  prompts, or one token a row and how long each text is: on the host.
Out: a `MaskedStep`, for any `Model` whose cache is `StaticCache.blocks()` and whose attention is
     `MaskedAttention(step.mask)`. `static_engine.py` runs it, in graphs or without.

Request r has row r of the cache, and its position p is column p, so prompts are padded on the
right: tokens keep their positions. (With padding on the left each row would need positions of its
own, and a mask of its own, too.)

A mask says what counts, and not what is read: a step multiplies with all T_max columns of all rows,
those of requests that ended among them. `masked_rows.py` says what that costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_engine.cuda.attention import Attend
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache
from mini_engine.model.config import ModelConfig

Key = tuple[int, ...]  # of a graph


@dataclass(frozen=True, eq=False)
class StaticCache:
    """K and V of every layer and row: (layers, B, T_max, kv_heads, D) each, allocated once."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def allocate(
        config: ModelConfig, batch: int, t_max: int, device: torch.device, dtype: torch.dtype
    ) -> StaticCache:
        """Zeros. ValueError for more columns than the model has positions, or for none."""
        if batch < 1 or not 1 <= t_max <= config.max_position_embeddings:
            raise ValueError(
                f"a cache of {batch} rows and {t_max} columns: expected 1 row or more, and 1 to "
                f"{config.max_position_embeddings} columns, the positions of {config.name}"
            )
        shape = (config.num_layers, batch, t_max, config.num_kv_heads, config.head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return StaticCache(keys, values)

    @property
    def batch(self) -> int:
        return self.keys.shape[1]

    @property
    def t_max(self) -> int:
        return self.keys.shape[2]

    def blocks(self) -> KVCache:
        """The same memory as the model knows it: each row is one block of T_max tokens."""
        return KVCache(tuple(self.keys.unbind()), tuple(self.values.unbind()))


@dataclass(frozen=True, eq=False)
class MaskedStep:
    """What a step of b rows of q tokens reads: on the host, or the static inputs of a graph."""

    input_ids: Tensor  # (b, q) int32
    positions: Tensor  # (b, q) int32
    slots: Tensor  # (b, q) int32: row × T_max + column
    context_lens: Tensor  # (b,) int32, this step's tokens included; 0: the row has no request
    last_rows: Tensor  # (b,) int32: where in the b × q tokens the last one of each row stands
    mask: Tensor  # (b, q, k) bool: may this query see that column?

    @property
    def key(self) -> Key:
        """The sizes in which two steps must agree for one graph to run both."""
        return tuple(self.mask.shape)

    def to(self, device: torch.device) -> MaskedStep:
        """A copy in new memory on the device."""
        return MaskedStep(*(x.to(device, copy=True) for x in vars(self).values()))

    def inputs(self) -> StepInputs:
        """The same as the model takes it: b × q tokens in a row. A row's only block is itself."""
        queries = torch.full_like(self.context_lens, self.mask.shape[1])
        table = torch.arange(len(queries), dtype=torch.int32, device=queries.device)[:, None]
        ids, positions, slots = (x.flatten() for x in (self.input_ids, self.positions, self.slots))
        lengths, last_rows = self.context_lens, self.last_rows
        return StepInputs(ids, positions, slots, queries, lengths, last_rows, table)


def prompt_step(prompts: Sequence[Sequence[int]], t_max: int) -> MaskedStep:
    """All prompts in one step, padded on the right to the longest: q = k = T."""
    # Padding writes K and V, too: behind its prompt, where new tokens will overwrite them before
    # a mask opens the column. One triangle does for all rows: padding is never before a token.
    longest = max(len(prompt) for prompt in prompts)
    positions = torch.arange(longest, dtype=torch.int32).repeat(len(prompts), 1)
    rows = torch.arange(len(prompts), dtype=torch.int32)
    lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
    ids = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    triangle = torch.ones(longest, longest, dtype=torch.bool).tril()
    return MaskedStep(
        input_ids=torch.tensor(ids, dtype=torch.int32),
        positions=positions,
        slots=rows[:, None] * t_max + positions,
        context_lens=lengths,
        last_rows=rows * longest + lengths - 1,
        mask=triangle.repeat(len(prompts), 1, 1),
    )


def decode_step(tokens: Sequence[int], contexts: Sequence[int], t_max: int) -> MaskedStep:
    """One token a row, the last of `contexts` tokens: q = 1, k = T_max.

    A row of context 0 has ended: it sees no column, and what it computes is nobody's and must
    disturb nobody.
    """
    # So it writes to the first column of its own row, where nobody reads any more.
    lengths = torch.tensor(contexts, dtype=torch.int32)
    rows = torch.arange(len(contexts), dtype=torch.int32)
    positions = (lengths - 1).clamp(min=0)
    return MaskedStep(
        input_ids=torch.tensor(tokens, dtype=torch.int32)[:, None],
        positions=positions[:, None],
        slots=(rows * t_max + positions)[:, None],
        context_lens=lengths,
        last_rows=rows,
        mask=(torch.arange(t_max) < lengths[:, None])[:, None],
    )


@dataclass(frozen=True, eq=False)
class MaskedAttention:
    """Every query meets every column of its row; then the mask drops what it may not see."""

    mask: Tensor  # (b, q, k) bool

    def begin(self, inputs: StepInputs) -> Attend:  # noqa: ARG002 (an Attention)
        return self.attend

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q (b·q, heads, D), a layer's keys and values (B, T_max, kv_heads, D): as q, in its dtype.

        Dropped by selection: a column that nobody may see can hold anything, NaN too; what is seen
        counts as it is, and a NaN there comes out. The cache is read and not changed.
        What a query that sees nothing gets is nobody's, and finite.
        """
        rows, queries, columns = self.mask.shape
        k, v = (cache[:rows, :columns].transpose(1, 2) for cache in (keys, values))
        _, kv_heads, _, head_dim = k.shape
        grouped = q.view(rows, queries, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        scores = torch.matmul(grouped, k[:, :, None].transpose(-1, -2)) * head_dim**-0.5
        hidden = ~self.mask[:, None, None]  # (b, 1, 1, q, k)
        # The lowest number and not -inf: a row that sees nothing would be 0 / 0.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        v = v.masked_fill(~self.mask.any(1)[:, None, :, None], 0)
        attended = torch.matmul(weights, v[:, :, None])  # (b, kv_heads, group, q, D)
        return attended.permute(0, 3, 1, 2, 4).reshape(q.shape)
