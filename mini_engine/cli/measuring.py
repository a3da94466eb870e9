"""What the measuring commands share: device, shapes, and the file that a measurement goes into.

In: parsed words. Out: a `GraphBackend`, a shape, a measurement and its path; `ValueError` where
there is no suitable GPU. torch is imported only when a device is asked for.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mini_engine.bench.evidence import Measurement, new_measurement
from mini_engine.cli import options
from mini_engine.model.config import ModelConfig, named_shape

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from mini_engine.cuda.graphs.backend import GraphBackend

EMULATED = "[bold]Emulated on a CPU: no evidence about any GPU.[/bold]"


def backend_of(word: str, console: Console) -> GraphBackend:
    """The device that `--device` names. `auto` is a suitable GPU; without one, it is the emulator,
    and the console is told why. Raises ValueError, in one line, where `cuda` cannot be had."""
    from mini_engine.cuda.graphs.backend import graphs_for, why_no_gpu

    if word == "auto" and (reason := why_no_gpu()):
        console.print(f"{reason}: the CPU emulator runs instead")
        word = "cpu"
    return graphs_for("cpu" if word == "cpu" else "cuda")


def dtype_of(backend: GraphBackend) -> torch.dtype:
    """What is measured: bf16, and fp16 on a GPU that has no bf16 (a T4), where a byte is a byte."""
    import torch

    from mini_engine.cuda.graphs.backend import why_no_bf16

    return torch.float16 if why_no_bf16(backend) else torch.bfloat16


def config_of(word: str, backend: GraphBackend) -> ModelConfig:
    """The shape that a word of --shape names, in the dtype that is measured. Raises ValueError for
    one that names nothing."""
    shape = tiny_shape() if word.lower() == "tiny" else options.shape_of(word)
    return replace(shape, dtype=str(dtype_of(backend)).removeprefix("torch."))


def tiny_shape() -> ModelConfig:
    """What the emulator can run in seconds."""
    return replace(
        named_shape("qwen3-0.6b"), name="tiny", hidden_size=64, intermediate_size=96, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=512,
        eos_token_ids=(),
    )  # fmt: skip


def begun(
    kind: str, backend: GraphBackend, typed: Sequence[str]
) -> tuple[Measurement, str | None, Path]:
    """A measurement without figures; the shipped card of this GPU, None where there is none; and
    where it is written by default: what is no evidence stays out of the course."""
    from mini_engine.bench.spec_fit import base_name

    again = shlex.join(["python", "-m", "mini_engine", *typed])
    measurement = new_measurement(kind, backend.device.type, again, {})
    if measurement.emulated:
        return measurement, "laptop-cpu", Path("out") / f"{kind}-emulated.json"
    card = base_name(measurement.gpu)
    return measurement, card, Path("course/measurements") / f"{kind}-{card or 'gpu'}.json"
