"""Which captured graph runs this batch?

In: the capture ladder, the mode and the engine's limits; then, once a step, the shape of a batch.
Out: a `BatchDescriptor`: run eagerly, run the piecewise graphs, or replay one full graph, and
padded to how many tokens and requests.

    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2, 4, 8], max_num_seqs=8)
    dispatcher.descriptors()                      # what to capture, in this order
    dispatcher.dispatch(num_reqs=3, num_tokens=3, uniform_token_count=1)
    # BatchDescriptor(mode=FULL, num_tokens=4, num_reqs=4, uniform_token_count=1)

The rules are those of vLLM 0.33's default dispatcher, `CudaGraphManager` in
`vllm/v1/worker/gpu/cudagraph_utils.py`, without LoRA, microbatches and variable-length decode
graphs. Texts of 2025 describe the older `vllm/v1/cudagraph_dispatcher.py`. Modes live in
`mini_engine.dispatch.modes`, pieces in `mini_engine.dispatch.pieces`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mini_engine.dispatch.modes import CUDAGraphMode, parse


@dataclass(frozen=True)
class BatchDescriptor:
    """The shape of a batch as it runs, and the run-time mode. Also the key of a captured graph.

    `num_reqs` None: the graph does not depend on the number of requests (PIECEWISE: attention
    runs outside it). `uniform_token_count` None: requests may have any number of tokens.
    """

    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None = None
    uniform_token_count: int | None = None

    def fits(self, num_reqs: int, num_tokens: int, uniform_token_count: int | None) -> bool:
        """Can a batch of this shape, padded up, run as this descriptor?

        It needs room for its tokens, room for its requests where the graph counts them, and
        where the graph was made for a token count of each request, exactly that one.
        """
        return (
            self.num_tokens >= num_tokens
            and (self.num_reqs is None or self.num_reqs >= num_reqs)
            and self.uniform_token_count in (None, uniform_token_count)
        )


class GraphDispatcher:
    """Decides which graphs to capture, and for each batch which of them runs.

    `sizes`: the capture ladder, in tokens; empty means no graphs. `max_num_seqs`: most requests
    in one batch. `decode_query_len`: tokens of one decoding request, 1 + speculative tokens.
    Until `graphs_captured` is true every batch runs eagerly.

    Raises ValueError for a size that is not positive or that comes twice, and for limits below 1.
    """

    def __init__(
        self,
        mode: CUDAGraphMode | str,
        sizes: Iterable[int],
        max_num_seqs: int,
        decode_query_len: int = 1,
        *,
        graphs_captured: bool = True,
    ) -> None:
        self.mode = parse(CUDAGraphMode, mode)
        self.sizes = sorted(sizes)
        self.max_num_seqs = max_num_seqs
        self.decode_query_len = decode_query_len
        self.graphs_captured = graphs_captured
        if max_num_seqs < 1 or decode_query_len < 1:
            raise ValueError(
                f"max_num_seqs {max_num_seqs} and decode_query_len {decode_query_len}: "
                "both must be 1 or more"
            )
        for below, size in zip([0, *self.sizes], self.sizes, strict=False):
            if size <= below:
                fault = "appears twice" if size == below > 0 else "is not positive"
                raise ValueError(f"capture size {size} {fault}: give each size once, from 1 up")
        # For each run-time mode its descriptors, smallest first; FULL is tried first.
        self._ladders = {
            CUDAGraphMode.FULL: self._full_ladder(),
            CUDAGraphMode.PIECEWISE: self._piecewise_ladder(),
        }

    def _piecewise_ladder(self) -> list[BatchDescriptor]:
        """A descriptor for each size, smallest first; none if the mode has no pieces.

        Attention runs outside the pieces, and nothing else in them asks who owns which token: any
        number of requests may come, with any number of tokens each.
        """
        if not self.mode.has_piecewise_cudagraphs():
            return []
        return [BatchDescriptor(CUDAGraphMode.PIECEWISE, size) for size in self.sizes]

    def _full_ladder(self) -> list[BatchDescriptor]:
        """The FULL descriptors, smallest first; none if the mode has no full graphs.

        Where decode batches have graphs of their own (`separate_routine`), the uniform decode
        ladder. Otherwise one rung for each size, for any mix of prefill and decode: each request
        has a token or more, so a rung has room for as many requests as tokens, and for no more
        than `max_num_seqs`.
        """
        if not self.mode.has_full_cudagraphs():
            return []
        if self.mode.separate_routine():
            return self._uniform_decode_ladder()
        return [
            BatchDescriptor(CUDAGraphMode.FULL, size, num_reqs=min(size, self.max_num_seqs))
            for size in self.sizes
        ]

    def _uniform_decode_ladder(self) -> list[BatchDescriptor]:
        """Rungs for batches in which every request has exactly `decode_query_len` tokens.

        Each size is rounded up to whole requests: with requests of 7 tokens a size of 40 is a rung
        of 6 requests and 42 tokens. Rungs of more than `max_num_seqs` requests, or of more tokens
        than the largest size, are left out, and each number of requests comes once. Smallest first.

        This has a cliff: with sizes 4, 8 and max_num_seqs 6, the rung of 8 is not captured and
        decode batches of 5 and 6 get no FULL graph (vllm-project/vllm PR 57355).
        """
        query_len = self.decode_query_len
        reqs = sorted({-(-size // query_len) for size in self.sizes})
        return [
            BatchDescriptor(CUDAGraphMode.FULL, n * query_len, n, query_len)
            for n in reqs
            if n <= self.max_num_seqs and n * query_len <= self.sizes[-1]
        ]

    def descriptors(self) -> list[BatchDescriptor]:
        """Every graph to capture, in the order of capture: PIECEWISE then FULL, largest first.

        The largest goes first so that the smaller ones fit into the memory it leaves in the
        shared pool; PIECEWISE first because its activations are larger.
        """
        piecewise, full = self._ladders[CUDAGraphMode.PIECEWISE], self._ladders[CUDAGraphMode.FULL]
        return [*reversed(piecewise), *reversed(full)]

    def mark_captured(self) -> None:
        """All graphs exist now: from here on, batches may run in them."""
        self.graphs_captured = True

    def drop(self, descriptor: BatchDescriptor) -> None:
        """Forget a graph that could not be captured (no memory left): the others serve on.

        Raises ValueError if `descriptor` is not one of `descriptors()`.
        """
        ladder = self._ladders.get(descriptor.mode, [])
        if descriptor not in ladder:
            raise ValueError(f"{descriptor} is not on the ladder: drop one of descriptors()")
        ladder.remove(descriptor)

    def dispatch(
        self, num_reqs: int, num_tokens: int, uniform_token_count: int | None = None
    ) -> BatchDescriptor:
        """How to run a batch of `num_reqs` requests with `num_tokens` new tokens in all.

        `uniform_token_count`: see the function of that name. For each run-time mode only the
        smallest rung that holds the tokens is looked at: if it is not compatible, the next mode
        is tried, never a larger rung. If nothing fits: NONE, with the batch's own tokens and
        requests, since it is not padded, and with no uniform count, since no graph was made for
        one. So it is before the graphs are captured, and for a step without tokens.
        """
        if self.graphs_captured and num_tokens > 0:
            for ladder in self._ladders.values():
                at = bisect_left(ladder, num_tokens, key=lambda rung: rung.num_tokens)
                if at < len(ladder) and ladder[at].fits(num_reqs, num_tokens, uniform_token_count):
                    return ladder[at]
        return BatchDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)


def uniform_token_count(query_lens: Sequence[int], *, has_prefill: bool = False) -> int | None:
    """New tokens of each request if all have the same number and none is in prefill, else None.

    Of no requests at all: None.

    `has_prefill` must be said, because a chunk of a prompt can have the shape of a decode: one
    request with 4 new tokens is a prompt chunk or a decode that verifies 3 drafts.
    """
    if has_prefill or not query_lens or min(query_lens) != max(query_lens):
        return None
    return query_lens[0]


def is_uniform_decode(query_lens: Sequence[int], uniform_decode_query_len: int) -> bool:
    """The older runner's test: every request has exactly `uniform_decode_query_len` tokens."""
    return uniform_token_count(query_lens) == uniform_decode_query_len
