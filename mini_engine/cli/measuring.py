"""What the measuring commands share: device, command line, files, shapes, weights.

In: parsed words. Out: a `GraphBackend`, a command line, a path, a shape, its weights; `ValueError`
where there is no torch or no suitable GPU. torch is imported only when a device is asked for.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mini_engine.cli import options
from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_sheet, load_spec

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from mini_engine.cuda.graphs.backend import GraphBackend
    from mini_engine.cuda.weights import Weights


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`: a GPU, or the emulator."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cuda", "cpu"),
        help="cpu: the emulator, which shows that everything works and measures nothing (default: "
        "a GPU where there is one)",
    )


def backend_of(word: str, command: str, console: Console | None = None) -> GraphBackend:
    """The device that `--device` names. `auto` is a suitable GPU; without one, it is the emulator,
    and the console is told why. Raises ValueError, in one line, where `cuda` cannot be had."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ValueError(
            f"{command} needs PyTorch, which is not installed: pip install 'torch>=2.11,<2.14'"
        ) from None
    from mini_engine.cuda.graphs.backend import graphs_for, why_no_gpu

    reason = why_no_gpu()
    if word == "cpu" or (reason and word == "auto"):
        if word == "auto" and console:
            console.print(f"{reason}: the CPU emulator runs instead", soft_wrap=True, markup=False)
        return graphs_for("cpu")
    return graphs_for("cuda")  # raises ValueError where there is none


def dtype_of(backend: GraphBackend) -> torch.dtype:
    """What is measured: bf16, and fp16 on a GPU that has no bf16 (a T4), where a byte is a byte."""
    import torch

    from mini_engine.cuda.graphs.backend import why_no_bf16

    return torch.float16 if why_no_bf16(backend) else torch.bfloat16


def config_of(word: str, backend: GraphBackend) -> ModelConfig:
    """What a word of --shape means, in the dtype that is measured. ValueError for one that means
    nothing."""
    return replace(shape_of(word), dtype=str(dtype_of(backend)).removeprefix("torch."))


def specs_for(card: str, host: str | None) -> Callable[[str], DeviceSpec]:
    """By an engine's name, that engine on this card and host. A card that names its own engine, as
    the emulator's does, has that one under every name."""
    own = load_sheet("card", card).words["engine"]
    return lambda engine: load_spec(card, host, own or engine)


def command_line(typed: Sequence[str]) -> str:
    """The line that runs the same again."""
    return shlex.join(["python", "-m", "mini_engine", *typed])


def card_of(backend: GraphBackend, gpu: str) -> str | None:
    """The shipped card of the GPU in use; None where there is none."""
    from mini_engine.bench.spec_fit import base_name

    return "laptop-cpu" if backend.emulated else base_name(gpu)


def measurement_path(kind: str, card: str | None, emulated: bool) -> Path:
    """Where a measurement is written by default: what is no evidence stays out of the course."""
    if emulated:
        return Path("out") / f"{kind}-emulated.json"
    return Path("course/measurements") / f"{kind}-{card or 'gpu'}.json"


def shape_of(word: str) -> ModelConfig:
    """What --shape names. Raises ValueError for a word that names nothing."""
    return tiny_shape() if word.lower() == "tiny" else options.shape_of(word)


def tiny_shape() -> ModelConfig:
    """What the emulator can run in seconds."""
    return replace(
        named_shape("qwen3-0.6b"), name="tiny", hidden_size=64, intermediate_size=96, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=32, vocab_size=256, max_position_embeddings=512,
        eos_token_ids=(),
    )  # fmt: skip


def weights_of(
    word: str, config: ModelConfig, backend: GraphBackend, dtype: torch.dtype
) -> Weights:
    """Those of the checkpoint folder that --shape names, or random ones in the shape."""
    from mini_engine.cuda.weights import load_weights, random_weights

    if word.lower() not in (*SHAPES, "tiny") and Path(word).is_dir():
        ModelConfig.from_folder(word)  # refuses what can be predicted and not loaded
        return load_weights(config, word, backend.device, dtype)
    return random_weights(config, backend.device, dtype, seed=0)
