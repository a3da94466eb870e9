"""What this machine has: versions, a GPU or none, and how the labs make do with it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import subprocess
from argparse import Namespace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labs.runner import Done

PACKAGES = ("numpy", "pytest", "matplotlib", "torch", "triton", "transformers", "vllm")
INSTALL = ".venv/bin/python -m pip install -e '.[torch]'"


def missing(packages: tuple[str, ...]) -> list[str]:
    """The packages that cannot be imported here; finds out without importing them."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def run_doctor(_args: Namespace, console: Console) -> Done:
    """Versions in a table, then sentences that say what is emulated here and why."""
    versions = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in PACKAGES:
        versions[name] = "" if missing((name,)) else importlib.metadata.version(name)
    gpu = nvidia_gpu()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, version in versions.items():
        table.add_row(name, version or "[yellow]not installed[/]")
    table.add_row("GPU", gpu.get("name", "none"))
    console.print(table)
    console.print()
    said = sentences(versions, gpu)
    for sentence in said:
        console.print(escape(sentence))
    return Done({"versions": versions, "gpu": gpu, "sentences": said})


def nvidia_gpu() -> dict[str, str]:
    """Name, driver and memory of the first NVIDIA GPU by nvidia-smi; empty without one."""
    fields = ("name", "driver_version", "memory.total", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.partition("\n")[0].split(",")
    return {field: value.strip() for field, value in zip(fields, values, strict=False)}


def sentences(versions: dict[str, str], gpu: dict[str, str]) -> list[str]:
    """What these versions and this GPU mean for the labs. bf16 came with compute capability 8.0,
    dependent launch (PDL) with 9.0."""
    said = []
    if not versions["torch"]:
        said.append(f"Labs 7b, 11, 12b, 13, 13b, 14, 15 and 15b need torch: {INSTALL}.")
    elif not versions["triton"]:
        said.append(
            "Triton is missing (it has wheels for Linux only): labs 11, 12b, 13b, 14 and 15 "
            "cannot run here. On Windows, use WSL; on a Mac, a Linux container."
        )
    if gpu:
        capability = float(gpu["compute_cap"] or 0)
        pdl = "with" if capability >= 9.0 else "without"
        measures = f"labs 7b, 11, 12b, 13, 14, 15 and 15b, {pdl} PDL"
        if capability < 8.0:
            measures = "labs 7b, 13, 14 and 15b in fp16 without our kernels, for it has no bf16"
        return [
            *said,
            f"{gpu['name']} (driver {gpu['driver_version']}) measures {measures}. The tests of "
            "correctness still run in the interpreter and the emulator.",
        ]
    return [
        *said,
        "No NVIDIA GPU here. You only miss the measurements:",
        "  labs 11, 12b and 15 run their Triton kernels in Triton's interpreter, on the CPU;",
        "  lab 15b captures into the CPU emulator of CUDA graphs: same API, same faults;",
        "  labs 13, 14 and 16 are tested without one, and tell predictions and what others saw.",
    ]
