"""The measuring step of lab 12b: your flash-decoding, the naive kernel and PyTorch's attention.

In:  the learner's kernels, where the engine's would stand. Out: see
labs/measuring/kernel_timing.py. Shapes: Qwen3-0.6B in bf16, one request of 4,096 tokens (the one to
predict), one of 512, and 16 of 4,096. PyTorch's gets its keys and values in order, unpaged: an
easier task.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn import functional

from labs.lab12b_flash_decoding.naive import decode_attention_naive
from labs.measuring.kernel_timing import YOURS, Calls, Case, main
from mini_engine.cuda.kernels import attention
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, step_parts

BLOCK_SIZE, TYPE = 16, torch.bfloat16
POINTS = ((1, 4096), (1, 512), (16, 4096))  # requests, tokens of context each


def cases(spec: DeviceSpec) -> list[Case]:
    """Splits for two programs on each multiprocessor of this device."""
    config = named_shape("qwen3-0.6b")
    return [decode_case(config, *point, 2 * spec.sm_count) for point in POINTS]


def decode_case(config: ModelConfig, reqs: int, context: int, num_programs: int) -> Case:
    """Blocks are scattered, as in a server. One kernel: splits, and the last one combines."""
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
    splits = attention.num_splits(context, reqs, heads.num_kv_heads, num_programs)

    def calls(device: torch.device) -> Calls:
        q, out = _random(device, 2, reqs, config.q_size)
        blocks = -(-context // BLOCK_SIZE)
        shape = (2, reqs * blocks, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)
        k_cache, v_cache = _random(device, *shape)
        table = torch.randperm(reqs * blocks, device=device).to(torch.int32).view(reqs, blocks)
        lens = torch.full((reqs,), context, dtype=torch.int32, device=device)
        inputs = (q, k_cache, v_cache, table, lens)
        counters = torch.zeros(reqs, heads.num_kv_heads, dtype=torch.int32, device=device)
        query = q.view(reqs, heads.num_heads, 1, heads.head_dim)
        keys, values = (
            cache[table.long()].flatten(1, 2).transpose(1, 2).contiguous()
            for cache in (k_cache, v_cache)
        )  # (R, kv_heads, context, D)

        def with_splits() -> tuple[Tensor, ...]:
            attention.decode_attention(out, counters, *inputs, splits)
            return (out,)

        def naive() -> tuple[Tensor, ...]:
            decode_attention_naive(out, *inputs)
            return (out,)

        def in_pytorch() -> tuple[Tensor, ...]:
            sdpa = functional.scaled_dot_product_attention
            return (sdpa(query, keys, values, enable_gqa=True).flatten(1),)

        return {YOURS: with_splits, "naive": naive, "PyTorch, unpaged": in_pytorch}

    parts = step_parts(config, StepShape.decode(reqs, context), "fused9")
    (moved,) = [op.bytes for op in parts.layer if op.name == "attention"]
    # what splitting adds: the float32 partials, written once and read once (they stay in L2)
    moved += 2 * reqs * heads.num_heads * splits * (heads.head_dim + 2) * 4
    ops = (OpCost("decode_attention", moved, 0, kind="attention"),)
    return Case(f"{reqs} × {context:,} tokens, {splits} splits", ops, calls)


def _random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=TYPE)


if __name__ == "__main__":
    sys.exit(main("12b", cases, sys.argv[1:]))
