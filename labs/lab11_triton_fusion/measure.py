"""The measuring step of lab 11: your kernels beside the same in PyTorch, op by op.

In:  the learner's kernels, where the engine's would stand. Out: see
labs/measuring/kernel_timing.py. Shapes: Qwen3-0.6B in bf16, a prompt of 2,048 tokens (bytes decide)
and one token (they do not).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from labs.measuring.kernel_timing import YOURS, Calls, Case, main
from mini_engine.cuda.kernels import activation, norm, rope
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_parts

BLOCK_SIZE, EPS, TYPE = 16, 1e-6, torch.bfloat16


def cases(config: ModelConfig, lengths: Sequence[int]) -> list[Case]:
    """add_rms_norm first, for the first length: that is the one to predict."""
    return [case(config, tokens) for tokens in lengths for case in (_norm, _silu, _rope)]


def _norm(config: ModelConfig, tokens: int) -> Case:
    width = config.hidden_size

    def calls(device: torch.device) -> Calls:
        x, residual, out = _random(device, 3, tokens, width)
        weight = _random(device, width)

        def in_triton() -> tuple[Tensor, ...]:
            norm.add_rms_norm(out, residual, x, weight, EPS)
            return out, residual

        def in_pytorch() -> tuple[Tensor, ...]:
            return functional.rms_norm(residual.add_(x), (width,), weight, EPS), residual

        return {YOURS: in_triton, "PyTorch, 2 ops": in_pytorch}

    return _case("add_rms_norm", config, tokens, calls)


def _silu(config: ModelConfig, tokens: int) -> Case:
    width = config.intermediate_size

    def calls(device: torch.device) -> Calls:
        gate_up, out = _random(device, tokens, 2 * width), _random(device, tokens, width)
        gate, up = gate_up.chunk(2, dim=-1)

        def in_triton() -> tuple[Tensor, ...]:
            activation.silu_mul(out, gate_up)
            return (out,)

        return {YOURS: in_triton, "PyTorch, 2 ops": lambda: (functional.silu(gate) * up,)}

    return _case("silu_mul", config, tokens, calls)


def _rope(config: ModelConfig, tokens: int) -> Case:
    heads = Heads(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE)
    dim, kv_heads = heads.head_dim, heads.num_kv_heads

    def calls(device: torch.device) -> Calls:
        qkv, q = _random(device, tokens, heads.qkv_size), _random(device, tokens, config.q_size)
        blocks = -(-tokens // BLOCK_SIZE) + 1
        k_cache, v_cache = _random(device, 2, blocks, BLOCK_SIZE, kv_heads, dim)
        positions = torch.arange(tokens, device=device)
        slots = positions + BLOCK_SIZE  # block 0 is nobody's
        angle = torch.rand(tokens, dim // 2, device=device)
        cos, sin, weights = angle.cos(), angle.sin(), _random(device, 2, dim)
        wide = [torch.cat([table, table], dim=-1).to(TYPE)[:, None] for table in (cos, sin)]

        def in_pytorch() -> tuple[Tensor, ...]:
            head = qkv.view(tokens, -1, dim)
            parts = head.split([heads.num_heads, kv_heads, kv_heads], dim=1)
            turned = []
            for x, weight in zip(parts, weights, strict=False):
                x = functional.rms_norm(x, (dim,), weight, EPS)
                left, right = x.chunk(2, dim=-1)
                turned.append(x * wide[0] + torch.cat([-right, left], dim=-1) * wide[1])
            q.copy_(turned[0].flatten(1))
            k_cache.flatten(0, 1).index_copy_(0, slots, turned[1])
            v_cache.flatten(0, 1).index_copy_(0, slots, parts[2])
            return q, k_cache, v_cache

        def in_triton() -> tuple[Tensor, ...]:
            rope.rope_kv_write(q, k_cache, v_cache, qkv, positions, slots, cos, sin, *weights, EPS)
            return q, k_cache, v_cache

        return {YOURS: in_triton, "PyTorch, op by op": in_pytorch}

    return _case("qk_norm_rope_kv_write", config, tokens, calls)


def _case(name: str, config: ModelConfig, tokens: int, calls: object) -> Case:
    """`name`: of the op list "fused9", which knows its bytes."""
    parts = step_parts(config, StepShape(tokens, 1, tokens, tokens), "fused9")
    (op, *_) = [op for op in parts.layer if op.name == name]
    plural = "s" if tokens > 1 else ""
    return Case(f"{name}, {tokens:,} token{plural}", (op,), calls)


def _random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, dtype=TYPE)


def for_spec(_spec: DeviceSpec) -> list[Case]:
    return cases(named_shape("qwen3-0.6b"), (2048, 1))


if __name__ == "__main__":
    sys.exit(main("11", for_spec, sys.argv[1:]))
