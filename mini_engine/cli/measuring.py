"""What the two measuring commands share: the device, the line that was typed, where files go.

In: parsed words. Out: a `GraphBackend`, a command line, a path; `ValueError` where there is no
torch or no GPU that will do. torch is imported here only when a device is asked for.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from mini_engine.cuda.graphs.backend import GraphBackend

NOT_WRITTEN = ("command", "json", "resume", "process")  # options that change no figure


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`: a GPU, or the emulator."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cuda", "cpu"),
        help="cpu: the emulator, which shows that all works and measures nothing (default: a GPU "
        "where there is one)",
    )


def backend_of(word: str, command: str, console: Console | None = None) -> GraphBackend:
    """The device that `--device` means: `auto` is a GPU where one will do, else the emulator, and a
    line on the console why. Raises ValueError, in one line, where `cuda` cannot be had."""
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


def command_line(command: str, args: argparse.Namespace) -> str:
    """The line that runs the same again, defaults written out."""
    return shlex.join(["python", *command_words(command, args)])


def command_words(command: str, args: argparse.Namespace) -> list[str]:
    """The words of that line, from -m on, for any Python."""
    words = ["-m", "mini_engine", command]
    for name, value in vars(args).items():
        if name in NOT_WRITTEN or value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, list):
            words.append(",".join(str(one) for one in value))
        elif value is not True:
            words.append(str(value))
    return words


def measurement_path(kind: str, device: str, emulated: bool) -> Path:
    """Where a measurement goes unless it is told: what is no evidence stays out of the course."""
    if emulated:
        return Path("out") / f"{kind}-emulated.json"
    return Path("course/measurements") / f"{kind}-{device}.json"
