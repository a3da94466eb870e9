"""Which captured graph runs this batch?

    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2, 4, 8], max_num_seqs=8)
    dispatcher.dispatch(num_reqs=3, num_tokens=3, uniform_token_count=1)
    # BatchDescriptor(mode=FULL, num_tokens=4, num_reqs=4, uniform_token_count=1)

The rules are those of vLLM 0.33's default dispatcher, `CudaGraphManager` in
`vllm/v1/worker/gpu/cudagraph_utils.py`, without LoRA, microbatches and variable-length decode
graphs. Texts of 2025 describe the older `vllm/v1/cudagraph_dispatcher.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.dispatch.modes import CUDAGraphMode, parse


@dataclass(frozen=True)
class BatchDescriptor:
    """The run-time mode of a batch and its padded shape. Also the key of a captured graph.
    `num_reqs` None: any number of requests (PIECEWISE: attention runs outside the graphs).
    `uniform_token_count` None: each request may have any number of tokens."""

    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_token_count: int | None = None

    def fits(self, num_reqs: int, num_tokens: int, uniform_token_count: int | None) -> bool:
        """Can a batch of this shape, padded, run as this descriptor? The descriptor must hold its
        tokens and, unless `num_reqs` is None, its requests. A `uniform_token_count` other than None
        must be that of the batch."""
        return (
            self.num_tokens >= num_tokens
            and (self.num_reqs is None or self.num_reqs >= num_reqs)
            and self.uniform_token_count in (None, uniform_token_count)
        )


class GraphDispatcher:
    """Decides which graphs to capture, and for each batch which of them runs. `sizes`: the capture
    sizes, in tokens; empty means no graphs. `max_num_seqs`: most requests in one batch.
    `decode_query_len`: tokens of one decoding request, 1 + speculative tokens. While
    `graphs_captured` is false, every batch runs as NONE. Raises ValueError for a size that is not
    positive or appears twice, and for limits below 1."""

    def __init__(
        self, mode: CUDAGraphMode | str, sizes: Iterable[int], max_num_seqs: int,
        decode_query_len: int = 1,
    ) -> None:  # fmt: skip
        self.mode = parse(CUDAGraphMode, mode)
        self.sizes = tuple(sorted(sizes))
        self.max_num_seqs = max_num_seqs
        self.decode_query_len = decode_query_len
        self.graphs_captured = True
        if max_num_seqs < 1 or decode_query_len < 1:
            raise ValueError(
                f"max_num_seqs {max_num_seqs}, decode_query_len {decode_query_len}: give 1 or more"
            )
        if self.sizes:
            CaptureLadder(self.sizes)  # raises for a size below 1 or given twice
        self._ladders = self._plan()

    def _plan(self) -> dict[CUDAGraphMode, list[BatchDescriptor]]:
        """Every graph of this mode: the ladder of FULL, then that of PIECEWISE, smallest first.

        A ladder is empty if no kind of batch runs so in this mode. A rung names what its graph
        depends on and leaves the rest at None:

        * PIECEWISE: one rung for each size. Attention runs outside these graphs, and no other op
          asks which request owns a token.
        * FULL, where mixed batches run so: one rung for each size, for requests with any number of
          tokens each. There may be as many requests as tokens, but no more than `max_num_seqs`.
        * FULL, where only decode batches run so: every request has `decode_query_len` tokens. Each
          size is rounded up to whole requests: with requests of 7 tokens, size 40 gives a rung of
          6 requests and 42 tokens. No rung is listed twice, and rungs of more than `max_num_seqs`
          requests, or of more tokens than the largest size, are left out.

        The last rule has a cliff: with sizes 4 and 8 and max_num_seqs 6, there is no rung of 8, and
        decode batches of 5 and 6 get no FULL graph (vllm-project/vllm PR 57355)."""
        full, pieces, width = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, self.decode_query_len
        ladders: dict[CUDAGraphMode, list[BatchDescriptor]] = {full: [], pieces: []}
        if self.mode.mixed_mode() is pieces:
            ladders[pieces] = [BatchDescriptor(pieces, size) for size in self.sizes]
        if self.mode.mixed_mode() is full:
            ladders[full] = [
                BatchDescriptor(full, size, min(size, self.max_num_seqs)) for size in self.sizes
            ]
        elif self.mode.decode_mode() is full:
            ladders[full] = [
                BatchDescriptor(full, n * width, n, width)
                for n in sorted({-(-size // width) for size in self.sizes})
                if n <= self.max_num_seqs and n * width <= self.sizes[-1]
            ]
        return ladders

    def descriptors(self) -> list[BatchDescriptor]:
        """Every graph to capture, in the order of capture: PIECEWISE then FULL, largest first.
        Smaller graphs reuse the pool memory that the largest one took. PIECEWISE comes first
        because its activations are larger."""
        piecewise, full = self._ladders[CUDAGraphMode.PIECEWISE], self._ladders[CUDAGraphMode.FULL]
        return [*reversed(piecewise), *reversed(full)]

    def drop(self, mode: CUDAGraphMode, rungs: Iterable[int]) -> None:
        """Forget the graphs that could not be captured for want of memory; keep the others."""
        gone = set(rungs)
        self._ladders[mode] = [one for one in self._ladders[mode] if one.num_tokens not in gone]

    def dispatch(
        self, num_reqs: int, num_tokens: int, uniform_token_count: int | None = None
    ) -> BatchDescriptor:
        """How to run a batch of `num_reqs` requests with `num_tokens` new tokens in all.
        `uniform_token_count`: see the function of that name. Of each run-time mode, FULL first,
        only the smallest rung that holds the tokens is considered. If the batch does not fit it,
        the next mode is tried, never a larger rung. If no rung fits, if graphs are not captured
        yet, or if there are no tokens, the batch runs as NONE with its own tokens and requests,
        unpadded, and with no uniform count."""
        if self.graphs_captured and num_tokens > 0:
            for ladder in self._ladders.values():
                at = bisect_left(ladder, num_tokens, key=lambda rung: rung.num_tokens)
                if at < len(ladder) and ladder[at].fits(num_reqs, num_tokens, uniform_token_count):
                    return ladder[at]
        return BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)


def uniform_token_count(query_lens: Sequence[int], *, has_prefill: bool = False) -> int | None:
    """New tokens of each request if all have equally many and none is in prefill, else None. None
    for no requests. `has_prefill` is needed because lengths alone do not tell: a request with 4 new
    tokens is either a prompt chunk or a decode that verifies 3 drafts."""
    if has_prefill or not query_lens or min(query_lens) != max(query_lens):
        return None
    return query_lens[0]
