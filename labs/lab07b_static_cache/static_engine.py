"""An engine without pages: a static cache, and a graph for each shape of a step.

In:  a plain `Model` over the cache, and requests that are all known at the start.
Out: a `Completion` for each: token by token what the paged engine writes.

    cache = StaticCache.allocate(config, batch, t_max, backend.device, dtype)
    engine = StaticEngine(Model(weights, cache.blocks()), cache, backend)
    done = engine.generate(requests)

A batch of up to B requests starts together, with all prompts in one step, and ends with its longest
answer. Graphs stand in a dictionary. A step is one look into it, copies into the static inputs of
the graph that is found, and a replay.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from labs.lab07b_static_cache.static_cache import (
    Key,
    MaskedAttention,
    MaskedStep,
    StaticCache,
    decode_step,
    prompt_step,
)
from mini_engine.cuda.graphs.backend import Graph, GraphBackend
from mini_engine.cuda.graphs.capture import no_garbage_collection
from mini_engine.cuda.model import Model
from mini_engine.engine.batch import Request, RequestState
from mini_engine.engine.engine import Completion
from mini_engine.engine.generation import OnToken
from mini_engine.engine.sampling import check_greedy


@dataclass(frozen=True, eq=False)
class ShapeGraph:
    """A captured step of one shape. It reads `step` and leaves the tokens of its rows, (b,)."""

    graph: Graph
    step: MaskedStep
    tokens: Tensor
    took_us: float  # to warm up and capture


class StaticEngine:
    """Serves up to B requests at a time. `graphs`: one for each shape that has come by."""

    def __init__(
        self, model: Model, cache: StaticCache, backend: GraphBackend, *, eager: bool = False
    ) -> None:
        """`model` stands on `cache.blocks()`. `eager`: without graphs."""
        self.model, self.cache, self.backend, self.eager = model, cache, backend, eager
        self.graphs: dict[Key, ShapeGraph] = {}
        self.pool, self.stream = backend.graph_pool_handle(), backend.Stream()

    def forward(self, step: MaskedStep) -> Tensor:
        """One step on the device: the next token of each row, (b,) int32."""
        inputs = step.inputs()
        hidden = self.model.body(inputs, MaskedAttention(step.mask))
        return self.model.head(hidden, inputs)[1]

    def run(self, step: MaskedStep) -> Tensor:
        """The tokens after a step that stands on the host, (b,) int32: good until the next step.

        By the graph of its key, captured when it comes by for the first time; or eagerly.
        """
        if self.eager:
            return self.forward(step.to(self.backend.device))
        if step.key not in self.graphs:
            self.graphs[step.key] = self.capture(step)
        found = self.graphs[step.key]
        for static, new in zip(vars(found.step).values(), vars(step).values(), strict=True):
            static.copy_(new)
        found.graph.replay()
        return found.tokens

    def capture(self, step: MaskedStep) -> ShapeGraph:
        """A graph for steps with the key of this one, which comes next: warmed up and captured on
        `stream`, in `pool`, over static inputs of its own. `stream` first waits for the current
        one, which may still be writing those inputs; no garbage is collected in the capture."""
        # The warm-up is a step like any other. It writes K and V where its inputs say: those of
        # this step, which the replay then writes again, and not zeros, which are row 0's column 0.
        began = time.perf_counter()
        static, graph = step.to(self.backend.device), self.backend.CUDAGraph()
        self.stream.wait_stream(self.backend.current_stream())
        with self.backend.stream(self.stream):
            self.forward(static)
        self.backend.current_stream().wait_stream(self.stream)
        self.backend.synchronize()
        with no_garbage_collection(), self.backend.graph(graph, pool=self.pool, stream=self.stream):
            tokens = self.forward(static)
        return ShapeGraph(graph, static, tokens, (time.perf_counter() - began) * 1e6)

    def generate(
        self, requests: Sequence[Request], on_token: OnToken | None = None
    ) -> tuple[Completion, ...]:
        """Serve the requests, B at a time. `on_token(index of the request, token)`.

        Raises ValueError, before any runs, for one that a row cannot hold.
        """
        for request in requests:
            self.check(request)
        done: list[Completion] = []
        while batch := requests[len(done) : len(done) + self.cache.batch]:
            done += self._timed(batch, len(done), on_token)
        return tuple(done)

    def check(self, request: Request) -> None:
        """ValueError unless prompt and answer have a token each, or more, and together, the last
        one too, fit into a row of the cache."""
        prompt, new = len(request.prompt), request.max_new_tokens
        if not (prompt and new > 0 and prompt + new <= self.cache.t_max):
            raise ValueError(
                f"request {request.request_id!r}: a prompt of {prompt} and {new} new tokens: "
                f"expected 1 of each or more, and {self.cache.t_max} columns at most together: "
                "ask for less, or allocate a larger T_max"
            )

    def _timed(
        self, requests: Sequence[Request], first: int, on_token: OnToken | None
    ) -> list[Completion]:
        """One batch, and when its tokens came. `first`: the index of its first request."""
        check_greedy([request.sampling for request in requests])
        began = time.perf_counter()
        times: list[list[float]] = [[] for _ in requests]

        def told(row: int, token: int) -> None:
            times[row].append((time.perf_counter() - began) * 1e6)
            if on_token:
                on_token(first + row, token)

        return [
            Completion(s.request, tuple(s.output), str(s.finish_reason), tuple(at), 0)
            for s, at in zip(self._serve(requests, told), times, strict=True)
        ]

    def _serve(self, requests: Sequence[Request], told: OnToken) -> list[RequestState]:
        """One batch, from its prompts to the end of its longest answer: each request with its
        `output`, and the `finish_reason` that `Request.ends_with` gives. `told(row, token)` for
        each token that belongs to an answer, before the next step. A row that has ended goes on
        with context 0."""
        states = [RequestState(request) for request in requests]
        step = prompt_step([request.prompt for request in requests], self.cache.t_max)
        while True:
            sampled = self.run(step).tolist()  # waits for the device
            for row, (state, token) in enumerate(zip(states, sampled, strict=True)):
                if state.finish_reason is None:
                    state.output.append(token)
                    state.finish_reason = state.request.ends_with(token, len(state.output))
                    told(row, token)
            if all(state.finish_reason for state in states):
                return states
            contexts = [0 if state.finish_reason else state.num_tokens for state in states]
            step = decode_step(sampled, contexts, self.cache.t_max)
