"""The capture sizes of a command: vLLM's for its limits, or those that were given.

In:  limits, and sizes in any order. Out: the sizes that are captured, rising, each once, and a line
     that names those that are not.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.modes import CUDAGraphMode

MOST_TOKENS = 1 << 16  # of a step; a ladder up to there has 4,097 rungs


def check_limits(max_num_seqs: int, max_num_batched_tokens: int, query_len: int = 1) -> None:
    """Raises ValueError for a step so large that its ladder alone would fill the memory here."""
    for option, tokens in (
        ("--max-num-batched-tokens", max_num_batched_tokens),
        ("--max-num-seqs", max_num_seqs * query_len),
    ):
        if tokens > MOST_TOKENS:
            raise ValueError(
                f"{option} makes steps of {tokens:,} tokens: expected {MOST_TOKENS:,} at most"
            )


def left_out(given: Sequence[int] | None, kept: Sequence[int], mode: str | None) -> list[int]:
    """The given sizes that are not captured, rising."""
    if given is None or mode == CUDAGraphMode.NONE.name:
        return []
    return sorted(set(given) - set(kept))


def told(sizes: Sequence[int], max_num_batched_tokens: int) -> str:
    """Why these are not captured, in words."""
    some = ", ".join(f"{size:,}" for size in sizes[:8]) + (" …" if len(sizes) > 8 else "")
    return (
        f"Not captured: {some}. No step has more than max_num_batched_tokens "
        f"{max_num_batched_tokens:,}."
    )


def ladder_of(
    given: Sequence[int] | None, max_num_seqs: int, max_num_batched_tokens: int
) -> list[int]:
    """At least one rung. Raises ValueError where no size that was given is captured."""
    sizes = default_capture_sizes(max_num_seqs, max_num_batched_tokens, capture_sizes=given)
    if not sizes:
        raise ValueError(told(sorted(given or ()), max_num_batched_tokens))
    return sizes
