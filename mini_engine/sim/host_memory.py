"""What a model on the simulated device takes of this machine's memory, and what is free.

In:  a model, the limits of the scheduler. Out: `Needed`, in bytes; `free_bytes()`.

The simulated device computes in float32 and keeps its memory in this process, so a model of 0.6
billion parameters takes 2.4 GB here, whatever its checkpoint has.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.sim.memory import DeviceOutOfMemory
from mini_engine.step.capacity import kv_bytes_per_token, step_bytes, weight_bytes

INTERPRETER = 150 * 10**6  # Python, numpy and the tokenizer
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Needed:
    """Bytes of this machine's memory, by what they are for."""

    weights: int  # on the device, in float32
    kv_cache: int
    passing: int  # while layers are loaded, and in a step

    @property
    def on_device(self) -> int:
        return self.weights + self.kv_cache

    @property
    def total(self) -> int:
        return self.on_device + self.passing + INTERPRETER

    def __str__(self) -> str:
        return (
            f"{gb(self.total)} of memory: {gb(self.weights)} for its weights in float32, "
            f"{gb(self.kv_cache)} for the KV cache, {gb(self.passing + INTERPRETER)} for the rest"
        )


def needed_bytes(config: ModelConfig, limits: SchedulerLimits, kv_dtype: str = "auto") -> Needed:
    """What `SimRunner` takes. kv_dtype: "auto" (float32) or "fp8"."""
    single = replace(config, dtype="float32")
    weights = weight_bytes(single, "fp32")
    slots = limits.num_blocks * limits.block_size
    ends = 4 * config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    layer = (weights - ends) // config.num_layers
    # The host has the embedding and the head a second time, and two layers on their way.
    passing = ends + 2 * layer
    passing += step_bytes(single, limits.max_num_batched_tokens, limits.max_num_seqs)
    cached = "fp32" if kv_dtype == "auto" else kv_dtype
    return Needed(weights, slots * kv_bytes_per_token(single, cached), passing)


def check_room(config: ModelConfig, needed: Needed, card: str, card_bytes: int) -> None:
    """Raises ValueError where the machine, or the simulated card, has too little memory."""
    free = free_bytes()
    if free is not None and needed.total > free:
        raise ValueError(
            f"{config.name} needs {needed}; {gb(free)} are free on this machine: take a smaller "
            "model, fewer or shorter prompts, or --backend cuda"
        )
    if needed.on_device > card_bytes:
        raise ValueError(
            f"{config.name} needs {needed}; the simulated {card} has {gb(card_bytes)}: name a "
            "larger card by --spec, or take a smaller model"
        )


@contextmanager
def named(config: ModelConfig, needed: Needed) -> Iterator[None]:
    """A MemoryError of this machine says whose it is. One of the simulated card says so itself."""
    try:
        yield
    except DeviceOutOfMemory:
        raise
    except MemoryError:
        free = free_bytes()
        left = "" if free is None else f"; {gb(free)} are free by now"
        raise MemoryError(
            f"{config.name} needs {needed}: this machine ran out of memory{left}"
        ) from None


def free_bytes() -> int | None:
    """What this process may still take: of the machine, of its control group (a container's limit)
    and of its own limit (`ulimit -v`), the least. None where the system tells none of them."""
    told = [free for free in (_of_machine(), _of_group(), _of_process()) if free is not None]
    return max(min(told), 0) if told else None


def gb(count: int) -> str:
    """Bytes for people; 1 GB is 1e9 bytes."""
    return f"{count / 1e9:,.1f} GB"


# ---------------------------------------------------------------- parts


def _of_machine() -> int | None:
    kib = _named(PROC / "meminfo").get("MemAvailable:")
    return None if kib is None else kib * 1024


def _of_group() -> int | None:
    """By the newer hierarchy of control groups, or by the older one for memory."""
    least: int | None = None
    for line in _lines(PROC / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder = CGROUPS / controllers / path.strip("/")
        if not folder.is_dir():  # inside a container the path may be the host's
            folder = CGROUPS / controllers
        old = controllers == "memory"
        limit = _number(folder / ("memory.limit_in_bytes" if old else "memory.max"))
        used = _number(folder / ("memory.usage_in_bytes" if old else "memory.current"))
        if limit is None or used is None:
            continue
        files = _named(folder / "memory.stat").get("inactive_file", 0)  # given up when needed
        free = limit - (used - files)
        least = free if least is None else min(least, free)
    return least


def _of_process() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _lines(PROC / "self" / "statm")
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - int(pages[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or a word such as "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _named(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    rows = [line.split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
