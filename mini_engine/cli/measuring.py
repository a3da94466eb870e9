"""What the measuring commands share: the device, the line that was typed, where files go.

In: parsed words. Out: a `GraphBackend`, a command line, a path; `ValueError` where there is no
torch or no suitable GPU. torch is imported only when a device is asked for.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mini_engine.cuda.graphs.backend import GraphBackend


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
            f"{command} needs PyTorch, which is not installed: pip install 'torch>=2.11,<2.14'; "
            "the commands demo, crossover and serve predict without it"
        ) from None
    from mini_engine.cuda.graphs.backend import graphs_for, why_no_bf16, why_no_gpu

    if word == "cpu":
        return graphs_for("cpu")
    reason = why_no_gpu()
    if word == "cuda" or not reason:
        backend = graphs_for("cuda")
        reason = why_no_bf16(backend)
        if not reason:
            return backend
        reason = f"{reason}, and {command} measures bf16"
    if word == "cuda":
        raise ValueError(f"{reason}: see what works with --device cpu")
    if console:
        console.print(f"{reason}: the CPU emulator runs instead", soft_wrap=True, markup=False)
    return graphs_for("cpu")


def command_line(typed: Sequence[str]) -> str:
    """The line that runs the same again."""
    return shlex.join(["python", "-m", "mini_engine", *typed])


def measurement_path(kind: str, device: str, emulated: bool) -> Path:
    """Where a measurement is written by default: what is no evidence stays out of the course."""
    if emulated:
        return Path("out") / f"{kind}-emulated.json"
    return Path("course/measurements") / f"{kind}-{device}.json"
