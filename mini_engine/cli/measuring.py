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
    from mini_engine.cuda.backend import GraphBackend


def add_device(parser: argparse.ArgumentParser) -> None:
    """`--device`: a GPU, or the emulator."""
    parser.add_argument(
        "--device",
        default="auto",
        choices=("auto", "cuda", "cpu"),
        help="cpu: the emulator, which shows that all works and measures nothing (default: a GPU "
        "where there is one)",
    )


def backend_of(word: str, command: str) -> GraphBackend:
    """The device that `--device` means. Raises ValueError, in one line, where it cannot be had."""
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{command} needs PyTorch, which is not installed: pip install 'torch>=2.11,<2.14'; "
            "the commands demo, crossover and serve predict without it"
        ) from None
    from mini_engine.cuda.backend import graphs_for

    found = torch.cuda.is_available()
    backend = graphs_for("cuda" if word == "cuda" or (word == "auto" and found) else "cpu")
    if not backend.emulated and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise ValueError(
            f"{torch.cuda.get_device_name()} has no bf16 and {command} measures bf16: it needs "
            "sm_80 or newer; see what works with --device cpu"
        )
    return backend


def command_line(command: str, args: argparse.Namespace) -> str:
    """The line that runs the same again, defaults written out."""
    words = ["python", "-m", "mini_engine", command]
    for name, value in vars(args).items():
        if name in ("command", "json", "resume") or value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, list):
            words.append(",".join(str(one) for one in value))
        elif value is not True:
            words.append(str(value))
    return shlex.join(words)


def measurement_path(kind: str, device: str, emulated: bool) -> Path:
    """Where a measurement goes unless it is told: what is no evidence stays out of the course."""
    if emulated:
        return Path("out") / f"{kind}-emulated.json"
    return Path("course/measurements") / f"{kind}-{device}.json"
