"""Which kind of CUDA graph runs which kind of batch.

A step runs as NONE (eagerly, without graphs), as PIECEWISE (graphs between the attention ops) or
as FULL (one graph). A mode says which of the three for each kind of batch:

    mode                  decode batch    mixed batch (some request in prefill)
    NONE                  NONE            NONE
    PIECEWISE             PIECEWISE       PIECEWISE
    FULL                  FULL            FULL
    FULL_DECODE_ONLY      FULL            NONE
    FULL_AND_PIECEWISE    FULL            PIECEWISE          <- vLLM's default

Behaviour is vLLM 0.33's: `CUDAGraphMode` in `vllm/config/compilation.py`."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

E = TypeVar("E", bound=Enum)


def parse(kind: type[E], given: E | int | str) -> E:
    """The member of `kind` that `given` means: a member, its value, or its name in any case."""
    if not isinstance(given, str):
        return kind(given)
    if given.upper() not in kind.__members__:
        names = ", ".join(kind.__members__)
        raise ValueError(f"unknown {kind.__name__} {given!r}: give one of {names}")
    return kind[given.upper()]


class CUDAGraphMode(Enum):
    """How batches run: a run-time mode for all, or a pair (decode batches, mixed batches)."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)

    def separate_routine(self) -> bool:
        return isinstance(self.value, tuple)

    def decode_mode(self) -> CUDAGraphMode:
        """The run-time mode of a batch in which every request decodes."""
        return CUDAGraphMode(self.value[0]) if self.separate_routine() else self

    def mixed_mode(self) -> CUDAGraphMode:
        """The run-time mode of a batch in which some request is still in prefill."""
        return CUDAGraphMode(self.value[1]) if self.separate_routine() else self

    def __str__(self) -> str:
        return self.name
