"""What the roofline widget shows: bytes and operations of decode steps, and what a card can do.

In:  nothing. Out: for each model, bits of a weight, card and batch the step's operations, bytes and
least time, as a point of chapter 3's roofline; what the model and its cache take of the card.
"""

from __future__ import annotations

from typing import Any

from mini_engine.model.config import named_shape
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.storage import stored_as

MODELS, CARDS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b"), ("h200", "l4", "rtx4070")
QUANTS, BATCHES, CONTEXT = {16: "bf16", 4: "int4"}, [2**i for i in range(10)], 512


def roofline() -> dict[str, Any]:
    """The state of the widget."""
    cards = {name: load_spec(name) for name in CARDS}
    return {
        "models": list(MODELS), "bits": list(QUANTS), "batches": BATCHES,
        "cards": [
            {
                "name": name, "gib": round(spec.vram_bytes / 2**30),
                "gb_s": spec.copy_bandwidth_gb_s, "tflops": spec.peak_tflops,
            }
            for name, spec in cards.items()
        ],
        "steps": [[steps(model, bits) for bits in QUANTS] for model in MODELS],
        "model": 0, "bit": 0, "card": 0, "batch": 0,
    }  # fmt: skip


def steps(model: str, bits: int) -> dict[str, Any]:
    """Of one model: GFLOP and MB of a step at each batch, µs at best on each card, GiB it keeps."""
    config = named_shape(model)
    stored = stored_as(config, QUANTS[bits])
    ops = {n: step_ops(config, StepShape.decode(n, CONTEXT), "fused9", stored) for n in BATCHES}

    def best_us(spec: DeviceSpec, batch: int) -> float:
        gb_s, tflops = spec.copy_bandwidth_gb_s, spec.peak_tflops
        return sum(max(op.bytes / gb_s / 1e3, op.flops / tflops / 1e6) for op in ops[batch])

    cache = stored.kv_bytes_per_token * CONTEXT / 2**30
    return {
        "gflop": [round(sum(op.flops for op in ops[n]) / 1e9, 4) for n in BATCHES],
        "mb": [round(sum(op.bytes for op in ops[n]) / 1e6, 3) for n in BATCHES],
        "us": [[round(best_us(spec, n), 2) for n in BATCHES] for spec in map(load_spec, CARDS)],
        "weights_gib": round(stored.held / 2**30, 3),
        "cache_gib": [round(n * cache, 3) for n in BATCHES],
    }
