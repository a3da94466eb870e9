"""Measurement files: what was measured, on which machine, with which code.

One JSON file a run, as course/measurements/README.md describes it; reading needs no torch. Of paths
only the last part is written: a file names no one's machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mini_engine.files import read_object, typed, write_whole

CALIBRATED = "-calibrated"  # ends the name of a card or a host that was measured here
EMULATED_GPU = "none: CPU emulation"
UNKNOWN = "unknown"
COMMIT = "LAUNCH_BOUND_COMMIT"  # the variable that names the commit where .git did not travel
_PATH = re.compile(r"(?<![:/\w.])(?:~|/[\w.+@-]+)(?:/[\w.+@-]+)+/?|(?<![\w])[A-Za-z]:\\\S+")


@dataclass(frozen=True)
class Measurement:
    """One file. `figures` hold the numbers: units in their names, medians with intervals."""

    kind: str  # "bench" | "calibration" | "vllm"
    emulated: bool  # the CPU emulator wrote it: no evidence of anything
    gpu: str
    driver: str
    torch: str
    triton: str
    date: str  # of its first figure, ISO 8601
    commit: str  # "+" behind it: the tree had changes
    command: str
    figures: Mapping[str, Any]


def new_measurement(
    kind: str, device: str, command: str, figures: Mapping[str, Any]
) -> Measurement:
    """A measurement of today on `device` ("cuda" or "cpu")."""
    emulated = device == "cpu"
    gpu, driver = (EMULATED_GPU, "none") if emulated else (gpu_name(), _gpu("driver_version"))
    versions, now = (version("torch"), version("triton")), datetime.now(UTC)
    when = now.isoformat(timespec="seconds")
    return Measurement(kind, emulated, gpu, driver, *versions, when, _commit(), command, figures)


def gpu_name() -> str:
    """The driver's name for the GPU in use, or PyTorch's where there is no nvidia-smi."""
    name, torch = _gpu("name"), sys.modules.get("torch")
    if name == UNKNOWN and torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return name


def write_measurement(path: Path, measurement: Measurement) -> None:
    text = json.dumps(as_written(asdict(measurement)), indent=1, allow_nan=False)
    write_whole(path, text + "\n")


def read_measurement(path: Path) -> Measurement:
    """Any measurement file, emulated or not. ValueError names the file and a wrong field."""
    return typed(Measurement, read_object(path), str(path))


def load_evidence(path: Path) -> Measurement:
    """A measurement of a real GPU. ValueError for an emulated one, and as in `read_measurement`."""
    measurement = read_measurement(path)
    if measurement.emulated or measurement.gpu == EMULATED_GPU:
        why = "the CPU emulator wrote it, so it is no evidence"
        raise ValueError(f"{path}: {why}: measure on a GPU with `{measurement.command}`")
    return measurement


def check_same_machine(path: Path, old: Measurement, new: Measurement) -> None:
    """Raises ValueError, naming the field, unless one file may hold the figures of both."""
    for name in ("kind", "emulated", "gpu", "torch", "triton", "commit"):
        before, now = f"{name} {getattr(old, name)!r}", repr(getattr(new, name))
        if before != f"{name} {now}":
            raise ValueError(f"{path}: measured with {before}, this is {now}: use another file")


def as_written(value: Any) -> Any:
    """Every path cut down to its last part, and every float to six digits: no clock has more."""
    if isinstance(value, str):
        return _PATH.sub(lambda match: re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: as_written(inner) for key, inner in value.items()}
    return [as_written(inner) for inner in value] if isinstance(value, list | tuple) else value


def gpu_state() -> dict[str, str]:
    """Clocks, temperature and power just now; {} without nvidia-smi."""
    names = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
    values = _gpu(",".join(names)).split(", ")
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def first_line(error: BaseException) -> str:
    """An error in one line; one that was raised with a reason for the reader, as it is."""
    line = (str(error).strip().splitlines() or [""])[0][:300]
    kind = type(error).__name__.replace("OutOfMemoryError", "out of memory")
    return line if type(error) is ValueError else f"{kind}: {line}"


def version(package: str) -> str:
    """Of an installed package, "none" where it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _gpu(what: str) -> str:
    """One field of the GPU in use, by nvidia-smi's word for it: "name", "driver_version"."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    words = ["nvidia-smi", "-i", number, f"--query-gpu={what}", "--format=csv,noheader"]
    return _output(words) or UNKNOWN


def _commit(folder: Path = Path(__file__).parent) -> str:
    """The commit, with "+" where the tree has changes (measurements do not count). Without a
    repository, $LAUNCH_BOUND_COMMIT, else UNKNOWN."""
    git = ["git", "-C", str(folder)]
    if commit := _output([*git, "rev-parse", "--short", "HEAD"]):
        code = ["--", ":(top)", ":(top,exclude)course/measurements"]
        changed = _output([*git, "status", "--porcelain", "--untracked-files=no", *code])
        return commit + ("+" if changed else "")
    return os.environ.get(COMMIT) or UNKNOWN


def _output(words: list[str]) -> str:
    """What a program prints, "" when it is missing or fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
