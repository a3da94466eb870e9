"""What may be predicted at all: a context that the model has, a batch that fits the card.

In:  a model, a device, how weights and cache are stored, the graphs that are held, a context.
Out: the largest batch that fits, as `capacity` counts it; ValueError for what nobody could run.

    largest_batch(named_shape("qwen3-1.7b"), load_spec("rtx4090"), stored, sizes, 1024)     # 180
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_engine.model.config import ModelConfig
from mini_engine.step.capacity import GIB, capacity
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.stored import Stored, as_it_is


def check_context(config: ModelConfig, context: int) -> None:
    """Raises ValueError for a context in tokens beyond the one that the model was made for."""
    if context > config.max_position_embeddings:
        raise ValueError(
            f"context {context:,}: {config.name} was made for {config.max_position_embeddings:,} "
            "tokens at most: give that or less"
        )


def largest_batch(
    config: ModelConfig,
    spec: DeviceSpec,
    stored: Stored,
    capture_sizes: Sequence[int],
    context: int,
) -> int:
    """Requests of `context` tokens each that fit beside weights and full graphs of these sizes.

    Raises ValueError as `check_context`, and where not even one of them fits.
    """
    check_context(config, context)
    report = capacity(
        config, spec, context=context, capture_sizes=capture_sizes, quant=stored.quant,
        kv_dtype=stored.kv_dtype,
    )  # fmt: skip
    if not report.fits:
        raise ValueError(
            f"{config.name} with weights in {stored.quant} and one request of {context:,} tokens "
            f"takes {(report.vram_bytes - report.left_bytes) / GIB:,.1f} GiB, and {spec.name} has "
            f"{report.vram_bytes / GIB:,.1f}: give a larger card, a smaller model or context, or "
            "fewer bits"
        )
    return report.max_batch


def check_batch(config: ModelConfig, spec: DeviceSpec, batch: int, context: int) -> int:
    """The largest batch of the model as it is, without graphs. Raises ValueError as
    `largest_batch`, and for a larger one."""
    room = largest_batch(config, spec, as_it_is(config), (), context)
    if batch > room:
        raise ValueError(
            f"batch {batch:,}: {room:,} requests of {context:,} tokens fit the {spec.name}: give "
            "that or less (see capacity)"
        )
    return room
