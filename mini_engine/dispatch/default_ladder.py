"""The sizes that vLLM captures by default.

batch_defaults("h200", 141 << 30)    # 1024 requests, 8192 tokens
default_capture_sizes(256, 8192)     # 1, 2, 4, 8, 16, 24 … 256, 272 … 512: 51 sizes
default_capture_sizes(6, 8192)       # 1, 2, 4, 6, 8: the largest decode batch has a rung"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mini_engine.dispatch.modes import CUDAGraphMode, parse


class BatchDefaults(NamedTuple):
    """What `vllm serve` is started with where nobody says otherwise."""

    max_num_seqs: int
    max_num_batched_tokens: int


def batch_defaults(card: str, vram_bytes: float) -> BatchDefaults:
    """Those of vLLM 0.33 on this card, by its name and memory: large on 70 GiB and more, but for an
    A100, where large steps were measured to be slower (vLLM PR 17885). Source:
    `EngineArgs.get_batch_defaults`, `vllm/engine/arg_utils.py`, for a server. (An `LLM` object in a
    program takes more tokens: 16,384 and 8,192.)"""
    large = vram_bytes >= 70 << 30 and "a100" not in card.lower()
    return BatchDefaults(1024, 8192) if large else BatchDefaults(256, 2048)


def default_capture_sizes(
    max_num_seqs: int, max_num_batched_tokens: int, *, max_capture_size: int | None = None,
    capture_sizes: Sequence[int] | None = None, num_speculative_tokens: int = 0,
    mode: CUDAGraphMode | str = CUDAGraphMode.FULL_AND_PIECEWISE,
) -> list[int]:  # fmt: skip
    """The sizes, in tokens and rising, that vLLM 0.33 captures when started with these settings.
    `capture_sizes` replaces the whole rule; those above `max_num_batched_tokens` are dropped.
    `max_capture_size` replaces only the ceiling. Mode NONE gives []. Source:
    `VllmConfig._set_cudagraph_sizes`, `vllm/config/vllm.py`, for "balanced" performance on other
    cards than those of Blackwell's data centers. Raises ValueError where vLLM raises ValueError or
    AssertionError, and for a setting that has no meaning."""
    if parse(CUDAGraphMode, mode) is CUDAGraphMode.NONE:
        return []
    query_len = 1 + num_speculative_tokens
    ceiling = max_capture_size
    if ceiling is None:
        ceiling = min(2 * max_num_seqs * query_len, 512)
    top = min(ceiling, max_num_batched_tokens)
    if top < 1:
        raise ValueError(f"largest capture size {top}: give 1 or more, or mode NONE")

    if capture_sizes is not None:
        if not capture_sizes or min(capture_sizes) < 1:
            raise ValueError(
                f"capture sizes {[*capture_sizes]}: give sizes from 1 up, or mode NONE"
            )
        kept = sorted({size for size in capture_sizes if size <= max_num_batched_tokens})
        if max_capture_size not in (None, *kept[-1:]):
            raise ValueError(f"max_capture_size {max_capture_size}, but the largest is {kept[-1:]}")
        return kept

    sizes = set(_grid(top))
    if max_num_batched_tokens <= top:
        sizes.add(max_num_batched_tokens)
    if max_capture_size is None:
        sizes.update(size for size in _decode_sizes(max_num_seqs, query_len) if size <= top)
    return sorted(sizes)


def _decode_sizes(max_num_seqs: int, query_len: int) -> list[int]:
    """Sizes of decode batches, in which each request has `query_len` tokens (1 + speculative ones).

    They need not lie on the grid. Without speculation only the fullest batch is added: one token
    for each of `max_num_seqs` requests. With speculation there is a size for every number of
    requests on the grid, and for `max_num_seqs`.

    vLLM skips these sizes if the user sets a ceiling. So `max_capture_size=42` with 6 requests of 7
    tokens stops at 40, and the fullest batch runs eagerly (vLLM issue 54933)."""
    if query_len == 1:
        return [max_num_seqs]
    return [reqs * query_len for reqs in [*_grid(max_num_seqs), max_num_seqs]]


def _grid(top: int) -> list[int]:
    """1, 2, 4, then every 8 below 256, then every 16, up to `top`, which may be one of them."""
    grid = [1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16)]
    return [size for size in grid if size <= top]
