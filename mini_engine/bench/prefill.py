"""Prompts: attention in our prefill kernel and in PyTorch's SDPA, in turns, and their TFLOP/s.

In:  a `GraphBackend`, a `ModelConfig`. Out: figures of a layer's attention for each length.

Both attend causally to the same random keys and values: ours in the blocks of a cache, SDPA in rows
that lie side by side already, so that no gathering counts. Both are captured and replayed, AB BA:
what the CPU needs to launch them counts in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from mini_engine.bench.calibrate import Replay
from mini_engine.bench.decode_setup import BLOCK_SIZE
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import six
from mini_engine.bench.timing import paired_laps, spin
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.model.config import ModelConfig
from mini_engine.step.kernels import StepShape, step_parts

LENGTHS = {False: (512, 4096), True: (32,)}  # on a GPU, and emulated; whole blocks
CALLS = 8  # in a graph
CLOSE = 2**-6  # a few roundings of bf16


@torch.no_grad()
def prompts(backend: GraphBackend, config: ModelConfig, *, rounds: int) -> Iterator[dict[str, Any]]:
    """ValueError where our kernels cannot run, or compute something else than SDPA."""
    from mini_engine.cuda.kernels.prefill import prefill_attention  # imports Triton

    for tokens in LENGTHS[backend.emulated]:
        q, k, v = (
            torch.randn((tokens, heads, config.head_dim), device=backend.device).bfloat16()
            for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        )
        cache = [one.view(-1, BLOCK_SIZE, *one.shape[1:]) for one in (k, v)]
        table = torch.arange(tokens // BLOCK_SIZE, device=backend.device, dtype=torch.int32)[None]
        length, out = torch.full_like(table[0, :1], tokens), torch.empty_like(q)
        given = (out.flatten(1), q.flatten(1), *cache, table, length, length)
        # (1, heads, T, D)
        query, key, value = (one.transpose(0, 1)[None].contiguous() for one in (q, k, v))
        sdpa = partial(
            scaled_dot_product_attention, query, key, value, is_causal=True, enable_gqa=True
        )
        replays = [Replay(backend, lambda _, work=work: work(), CALLS)  # type: ignore[misc]
                   for work in (partial(prefill_attention, *given), sdpa)]  # fmt: skip
        if not torch.allclose(out, sdpa()[0].transpose(0, 1), rtol=CLOSE, atol=CLOSE):
            raise ValueError(f"a prompt of {tokens}: our kernel and SDPA differ")
        spin(backend, replays[0].step)
        laps = paired_laps(backend, *replays, steps=4 * CALLS, rounds=rounds)
        parts = step_parts(config, StepShape.mixed([tokens], [tokens]), "fused9")
        flops = sum(op.flops for op in parts.layer if op.kind == "attention")
        times = [median_interval([lap.event_us for lap in one]).as_dict() for one in laps]
        tflops = [six(flops / one["median"] / 1e6) for one in times]
        yield {"shape": config.name, "tokens": tokens, "ours_us": times[0], "sdpa_us": times[1],
               "ours_tflops": tflops[0], "sdpa_tflops": tflops[1]}  # fmt: skip
