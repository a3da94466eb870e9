"""Prompts: FlashAttention in our kernel against PyTorch's SDPA, in one process on one cache.

In:  a `GraphBackend`, weights, a `Case`: how many tokens each request has in the cache, and in this
     step. Out: two rows, of the attention of all layers alone and of the whole body.

    ours   `PagedAttention`; in the body also our norms, rotary and SiLU around a library's products
    sdpa   `HostAttention`: keys and values gathered, then SDPA, request by request; the plain model

Both are captured and replayed in turns, AB BA: what the CPU needs to launch them counts in neither.
Attention walks over the layers' own keys and values, as in a step. Before the laps stands a gate:
ours may be off from float32 by no more than twice what SDPA is off, or a rounding of the result.

The **floor** of a kernel is the longer of two times: its bytes at the speed of a copy, and its
arithmetic at the card's peak for dense bf16. That of a body is the sum over its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mini_engine.bench.decode_setup import BLOCK_SIZE, DecodeSetup, build_setup
from mini_engine.bench.intervals import median_interval, pooled_ratio
from mini_engine.bench.timing import paired_laps
from mini_engine.cuda.attention import Attention, HostAttention
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import GraphRunner
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import Model
from mini_engine.cuda.weights import Weights
from mini_engine.records.rows import six
from mini_engine.step.oplists import OpCost, StepShape, step_parts

ATTENTION, BODY = "attention", "body"


@dataclass(frozen=True)
class Case:
    """A step with prompts in it. `chunks`: cached and new tokens of each request, decodes first."""

    name: str
    chunks: tuple[tuple[int, int], ...]

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(new for _, new in self.chunks)

    @property
    def context_lens(self) -> tuple[int, ...]:
        return tuple(cached + new for cached, new in self.chunks)


ON_A_GPU = (
    Case("a prompt of 512", ((0, 512),)),
    Case("a prompt of 4096", ((0, 4096),)),
    Case("512 after 7680", ((7680, 512),)),
    Case("497 and 15 decodes", (*((8191, 1),) * 15, (0, 497))),  # that walk far
)
REHEARSAL = (Case("a prompt of 24", ((0, 24),)), Case("a decode and 7 after 20", ((9, 1), (20, 7))))


def prompt_rows(
    backend: GraphBackend,
    weights: Weights,
    case: Case,
    copy_gb_s: float,
    peak_tflops: float,
    *,
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Times in µs with 95% intervals; `times`: how many times as long SDPA takes. ValueError where
    ours does not pass the gate."""
    from mini_engine.cuda.fused import FusedModel  # imports Triton, which not every system has

    contexts = case.context_lens
    setup = build_setup(backend, weights, len(contexts), max(contexts), max(contexts))
    plain, inputs = setup.model, inputs_of(setup, case)
    ours = FusedModel(weights, plain.cache, kernels_per_layer=5)
    sdpa = HostAttention(case.query_lens, contexts, BLOCK_SIZE)
    paged = ours.captured_attention(inputs.block_table.shape[1])
    with torch.no_grad():
        q = torch.randn(
            len(inputs.input_ids), weights.config.num_heads, weights.config.head_dim,
            device=backend.device, dtype=weights.embed.dtype,
        )  # fmt: skip
        errors = check(plain, paged, sdpa, inputs, q, case.name)
        parts = step_parts(weights.config, StepShape.mixed(case.query_lens, contexts), "fused9")
        (attention,) = (op for op in parts.layer if op.kind == "attention")
        for what, ops, work in (
            (ATTENTION, [attention], [_attends(plain, a, inputs, q) for a in (paged, sdpa)]),
            (BODY, [*parts.head, *parts.layer], [_body(ours, paged, inputs),
                                                 _body(plain, sdpa, inputs)]),
        ):  # fmt: skip
            one, other = (Replayed(backend, call) for call in work)
            laps = paired_laps(backend, one, other, steps=1, rounds=rounds)
            one.release()
            other.release()
            mine, theirs = ([lap.event_us for lap in of] for of in laps)
            times = {op: parts.num_layers if op in parts.layer else 1 for op in ops}
            floor = sum(n * floor_us(op, copy_gb_s, peak_tflops) for op, n in times.items())
            yield {
                "case": case.name,
                "what": what,
                "ours_us": median_interval(mine).as_dict(),
                "sdpa_us": median_interval(theirs).as_dict(),
                "times": pooled_ratio([mine], [theirs]).as_dict(),
                "floor_us": six(floor),
                "bytes": six(sum(n * op.bytes for op, n in times.items())),
                "flops": six(sum(n * op.flops for op, n in times.items())),
                "errors": errors,
            }


def floor_us(op: OpCost, copy_gb_s: float, peak_tflops: float) -> float:
    """The least µs that one launch can take."""
    return max(op.bytes / copy_gb_s / 1e3, op.flops / peak_tflops / 1e6)


def inputs_of(setup: DecodeSetup, case: Case) -> StepInputs:
    """The step of a case on the requests of a setup; its tokens do not matter."""
    positions = [p for cached, new in case.chunks for p in range(cached, cached + new)]
    table = setup.block_table.tolist()
    owners = [r for r, new in enumerate(case.query_lens) for _ in range(new)]
    slots = [
        table[r][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for r, p in zip(owners, positions, strict=True)
    ]
    ends = torch.tensor(case.query_lens).cumsum(0)

    def made(values: Sequence[int] | Tensor) -> Tensor:
        return torch.as_tensor(values).to(setup.backend.device, torch.int32)

    return StepInputs(
        input_ids=made(torch.arange(len(positions)) % setup.model.config.vocab_size),
        positions=made(positions),
        slot_mapping=made(slots),
        query_lens=made(case.query_lens),
        context_lens=made(case.context_lens),
        last_rows=made(ends - 1),
        block_table=setup.block_table,
    )


def check(
    model: Model, paged: Attention, sdpa: Attention, inputs: StepInputs, q: Tensor, name: str
) -> dict[str, float]:
    """The largest difference of each from float32. Raises ValueError where ours is too far off."""
    from mini_engine.cuda.kernels.prefill import prefill_reference

    keys, values = model.cache.keys[-1], model.cache.values[-1]
    exact = torch.empty_like(q, dtype=torch.float32)
    wide = (exact.flatten(1), q.float().flatten(1), keys.float(), values.float())
    prefill_reference(*wide, inputs.block_table, inputs.query_lens, inputs.context_lens)
    off, other = (
        float((attention.begin(inputs)(q, keys, values, None) - exact).abs().max())
        for attention in (paged, sdpa)
    )
    allowed = 2 * max(other, torch.finfo(q.dtype).eps * float(exact.abs().max()))
    if not off <= allowed:
        raise ValueError(f"{name}: the kernel is off by {off:.2g}, and {allowed:.2g} is allowed")
    return {"ours": six(off), "sdpa": six(other)}


class Replayed:
    """A call in a graph, for `timing`: every replay does the same."""

    steps_a_call = 1

    def __init__(self, backend: GraphBackend, call: Callable[[], Tensor]) -> None:
        self.graphs = GraphRunner(backend, lambda _: call(), [1], backend.graph_pool_handle())
        if self.graphs.capture().dropped:
            raise torch.OutOfMemoryError("no memory to capture a step with prompts")

    def rewind(self) -> None:
        """Nothing to put back: keys and values are written again as they were."""

    def step(self) -> None:
        self.graphs.replay(1)

    def release(self) -> None:
        self.graphs.reset()


def _attends(
    model: Model, attention: Attention, inputs: StepInputs, q: Tensor
) -> Callable[[], Tensor]:
    """The attention of every layer, each on its own cache."""

    def call() -> Tensor:
        attend = attention.begin(inputs)
        for keys, values in zip(model.cache.keys, model.cache.values, strict=True):
            out = attend(q, keys, values, None)
        return out

    return call


def _body(model: Model, attention: Attention, inputs: StepInputs) -> Callable[[], Tensor]:
    return lambda: model.body(inputs, attention)
