"""A decode step as people write it, and the same as one graph.

In:  a `Model` and a `Batch`, whose tensors hold all that changes from step to step.
Out: the next token of each request.

    batch = started(model, prompts, temperatures, stop_ids)     # prompts are in the cache
    careless_step(model, batch)                    # (R,) tokens, and a line on the screen
    tokens, running = repaired_step(model, batch)  # the same tokens; the count stays on the device
    step = compiled_step(backend)                  # one trace for all batches from two requests up

Both steps are right. But the careless one asks the device four times for a number that Python then
works with: each time the GPU is waited for, and Dynamo ends a graph.

Shapes: R requests, V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mini_engine.cuda.attention import DecodeAttention, HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import Model

PAD = 0  # the token of a request that had ended before: its caller throws it away


@dataclass(frozen=True, eq=False)
class Batch:
    """R requests that decode together."""

    inputs: StepInputs  # of the next step: one token a request
    finished: Tensor  # (R,) bool
    temperature: Tensor  # (R,) float32; 0: the most likely token
    noise: Tensor  # (R, V) float32, Gumbel noise of this step, for those that sample
    stop_ids: tuple[int, ...]  # after one of these tokens a request has ended


def careless_step(model: Model, batch: Batch) -> Tensor:
    """One token for each request, (R,) int32. Makes `batch` the next step, in place: its `inputs`
    by `Model.advance`, and `finished`. Right, and with four graph breaks."""
    inputs, block_size = batch.inputs, model.cache.block_size
    longest = int(inputs.context_lens.max())
    attention = DecodeAttention(-(-longest // block_size), block_size)
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    if batch.temperature.max() > 0:
        samples = batch.temperature > 0
        divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
        tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    tokens = torch.where(batch.finished, PAD, tokens)
    ends = [token in batch.stop_ids for token in tokens.tolist()]
    batch.finished.logical_or_(torch.tensor(ends, device=tokens.device))
    print(f"{int((~batch.finished).sum())} of {len(tokens)} requests go on")
    model.advance(inputs, tokens)
    return tokens


def repaired_step(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    """What `careless_step` does, as one graph: (tokens, running).

    tokens (R,) int32: the same ones, for every batch. running, () of an integer dtype: how many
    requests go on. It is not printed: the caller reads both when there is time to wait, maybe steps
    later, so no later step may write over what this one returned. Python asks the device for no
    number: neither `int(…)`, `if`, `.item()` nor `.tolist()` of a tensor, and no size that depends
    on data. Nor does Python count requests: what is unrolled over them is traced anew for another
    number of them.

    Changes what the careless step changes: the cache, `batch.inputs` by `Model.advance`, and
    `batch.finished`, in place. `temperature` and `noise` stay as they are. A batch may attend over
    all blocks of its block table: attention drops what lies beyond a context.
    """
    inputs = batch.inputs
    attention = DecodeAttention(inputs.block_table.shape[1], model.cache.block_size)
    logits, _ = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    tokens = torch.where(batch.finished, PAD, tokens)
    for stop_id in batch.stop_ids:
        batch.finished.logical_or_(tokens == stop_id)
    model.advance(inputs, tokens)
    return tokens, (~batch.finished).sum()


def compiled_step(backend: Callable[..., Any]) -> Callable[[Model, Batch], tuple[Tensor, Tensor]]:
    """`repaired_step` by torch.compile with this backend, for batches of every size.

    The batches of two requests or more share one trace, also the first two of them: with the
    defaults of torch.compile the second size would be traced again. It is one trace also where the
    first batch has as many requests as its block table has columns. A batch of one request may have
    a trace of its own, because Dynamo takes sizes 0 and 1 for constants. Nothing is waited for
    around the step, either. If the step had a graph break, the call would raise
    `torch._dynamo.exc.Unsupported`, instead of running in parts.
    """
    run = torch.compile(repaired_step, backend=backend, fullgraph=True)

    def step(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        changing = (*vars(batch.inputs).values(), batch.finished, batch.temperature, batch.noise)
        for tensor in changing:
            if len(tensor) > 1:
                torch._dynamo.mark_dynamic(tensor, 0)
        return run(model, batch)

    return step


# ---------------------------------------------------------------- a batch to try them on


def started(
    model: Model,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    stop_ids: tuple[int, ...],
    blocks: int = 8,
) -> Batch:
    """A batch whose prompts (token ids) are in the cache, with `blocks` blocks for each of them.

    The cache needs 1 + R * blocks blocks. The noise is zero: see `draw`.
    """
    block_size, device = model.cache.block_size, model.weights.embed.device
    lens = [len(prompt) for prompt in prompts]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    table = 1 + ints(range(len(prompts) * blocks)).view(len(prompts), blocks)
    place = [(r, i) for r, length in enumerate(lens) for i in range(length)]
    positions = [i for _, i in place]
    slots = [(1 + r * blocks) * block_size + i for r, i in place]
    ids = [token for prompt in prompts for token in prompt]
    last = (ints(lens).cumsum(0) - 1).int()
    inputs = StepInputs(
        ints(ids), ints(positions), ints(slots), ints(lens), ints(lens), last, table
    )
    attention = HostAttention(tuple(lens), tuple(lens), block_size)
    _, tokens = model.head(model.body(inputs, attention), inputs)
    ones, rows = ints([1] * len(lens)), ints(range(len(lens)))
    inputs = StepInputs(
        tokens.clone(), ints(lens), table[:, 0] * block_size + ints(lens), ones, ints(lens) + 1,
        rows, table,
    )  # fmt: skip
    finished = torch.zeros(len(lens), dtype=torch.bool, device=device)
    warmth = torch.tensor(temperatures, dtype=torch.float32, device=device)
    noise = torch.zeros(len(lens), model.config.vocab_size, device=device)
    return Batch(inputs, finished, warmth, noise, stop_ids)


def draw(batch: Batch, seed: int) -> None:
    """New Gumbel noise, in place: the most likely token plus this noise is a sample."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(batch.noise.shape, generator=generator).clamp(1e-9, 1 - 1e-7)
    batch.noise.copy_(-(-uniform.log()).log())
