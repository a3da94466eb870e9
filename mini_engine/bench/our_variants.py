"""Our own variants: the plain model eager, in graphs, in pieces, compiled; the Triton kernels.

In:  a `DecodeSetup`. Out: variants that run its `Model`, or a `FusedModel` on the same weights and
     cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from mini_engine.bench.decode_setup import DecodeSetup, Variant, new_step
from mini_engine.bench.few_bits import in_format, stored_in
from mini_engine.bench.op_record import OpRecorder, WatchedAttention
from mini_engine.cuda.graphs.capture import GraphRunner, PiecewiseGraphRunner
from mini_engine.step.oplists import OpCost, StepShape, step_ops

Compiler = Callable[[Any], Any]  # a function, compiled


class OursEager:
    """Our plain model, every op launched from Python."""

    steps_a_call = 1

    def __init__(self, setup: DecodeSetup) -> None:
        self.setup, self.model, self.inputs = setup, setup.model, setup.inputs()
        self._logits: list[Tensor] = []
        self._tokens: list[Tensor] = []

    def prepare(self) -> None:
        self.step()

    def place(self, tokens: Tensor, context: int) -> None:
        self.setup.place(self.inputs, tokens, context)

    def rewind(self) -> None:
        self.place(self.setup.first_tokens, self.setup.context)

    def step(self) -> None:
        logits, tokens = self._decode()
        self._logits, self._tokens = [logits], [tokens]

    def feed(self, tokens: Tensor) -> None:
        self.inputs.input_ids.copy_(tokens)

    def logits(self) -> Sequence[Tensor]:
        return self._logits

    def tokens(self) -> Sequence[Tensor]:
        return self._tokens

    def ops(self) -> list[OpCost]:
        recorder = OpRecorder()
        with recorder:
            for _ in range(self.steps_a_call):
                self._decode()
        return recorder.ops

    def release(self) -> None:
        self._logits, self._tokens = [], []

    def _decode(self) -> tuple[Tensor, Tensor]:
        """One step, from embed to the token written and fed back: logits and tokens."""
        hidden = self.model.body(self.inputs, self.setup.attention)
        return self.model.next_step(hidden, self.inputs)


class _Captured(OursEager):
    """With graphs, which `prepare` captures."""

    graphs: GraphRunner | PiecewiseGraphRunner

    def prepare(self) -> None:
        if self.graphs.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {self.setup.batch}")

    def release(self) -> None:
        super().release()
        self.graphs.reset()


class OursGraph(_Captured):
    """The same in one graph, which holds `steps_a_call` steps."""

    def __init__(self, setup: DecodeSetup, steps_a_call: int = 1) -> None:
        super().__init__(setup)
        self.steps_a_call = steps_a_call
        pool = setup.backend.graph_pool_handle()
        self.graphs = GraphRunner(setup.backend, self._forward, [setup.batch], pool)

    def step(self) -> None:
        self.graphs.replay(self.setup.batch)

    def feed(self, tokens: Tensor) -> None:
        if self.steps_a_call > 1:
            raise ValueError(f"{self.steps_a_call} steps a replay feed themselves: none can be fed")
        super().feed(tokens)

    def _forward(self, rung: int) -> Tensor:  # noqa: ARG002 (there is one rung)
        """Keeps the logits of every step for the gate: they are computed anyway."""
        self._logits, self._tokens = [], []
        for _ in range(self.steps_a_call):
            logits, tokens = self._decode()
            self._logits.append(logits)
            self._tokens.append(tokens)
        return logits


class OursPiecewise(_Captured):
    """Graphs between the attentions; attention, head and feedback are launched live."""

    graphs: PiecewiseGraphRunner

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        pool = setup.backend.graph_pool_handle()
        self.graphs = PiecewiseGraphRunner(
            setup.backend,
            lambda _, attention: self.model.body(self.inputs, attention),
            [setup.batch],
            pool,
        )

    def step(self) -> None:
        attend = self.setup.attention.begin(self.inputs)
        hidden = self.graphs.run(self.setup.batch, attend)
        logits, tokens = self.model.next_step(hidden, self.inputs)
        self._logits, self._tokens = [logits], [tokens]

    def ops(self) -> list[OpCost]:
        recorder = OpRecorder()
        with recorder:
            hidden = self.model.body(self.inputs, WatchedAttention(self.setup.attention, recorder))
            with recorder.live():
                self.model.next_step(hidden, self.inputs)
        return recorder.ops


class OursCompiled(OursEager):
    """torch.compile of the whole step of our plain model."""

    def __init__(self, setup: DecodeSetup, compiler: Compiler) -> None:
        super().__init__(setup)
        self._compiled = compiler(self._decode)

    def prepare(self) -> None:
        """Compiles at the first call; CUDA graphs are recorded at the second, run from the third.

        Addresses are marked as static. Otherwise Inductor expects weights, cache and inputs to
        move: it copies them in before each replay, and makes no graph that writes to them
        (torch/_inductor/cudagraph_utils.py, check_for_mutation).
        """
        weights, cache = self.model.weights, self.model.cache
        layers = [t for layer in weights.layers for t in vars(layer).values() if t is not None]
        rope = self.model.cos, self.model.sin
        tables = (weights.embed, weights.final_norm, weights.lm_head, *rope)
        inputs = vars(self.inputs).values()
        for tensor in (*layers, *tables, *cache.keys, *cache.values, *inputs):
            torch._dynamo.mark_static_address(tensor)
        for _ in range(3):
            self.step()

    def step(self) -> None:
        new_step()  # the last step's outputs may be overwritten
        logits, tokens = self._compiled()
        self._logits, self._tokens = [logits], [tokens]

    def ops(self) -> list[OpCost]:
        """What a compiler is expected to leave: the usual nine kernels a layer."""
        shape = StepShape.decode(self.setup.batch, self.setup.context)
        return step_ops(self.model.config, shape, "fused9")

    def release(self) -> None:
        super().release()
        torch.compiler.reset()


class FusedGraph(OursGraph):
    """`OursGraph` with the layer in Triton kernels, with or without PDL; with `few_bits` on
    weights or a cache in this format, beside the setup's own."""

    def __init__(
        self,
        setup: DecodeSetup,
        kernels_per_layer: Literal[9, 5],
        pdl: bool,
        steps_a_call: int,
        few_bits: str | None = None,
    ) -> None:
        from mini_engine.cuda.fused import FusedModel  # imports Triton, which not every system has

        self.few_bits = few_bits
        plain = setup.model if few_bits is None else in_format(setup, few_bits).model
        model = FusedModel(plain.weights, plain.cache, kernels_per_layer=kernels_per_layer, pdl=pdl)
        super().__init__(replace(setup, model=model), steps_a_call)
        self.style = f"fused{model.kernels_of(setup.batch)}"

    def ops(self) -> list[OpCost]:
        """The op list that the kernels of this batch were written to."""
        config, batch = self.model.config, self.setup.batch
        shape, stored = (
            StepShape.decode(batch, self.setup.context),
            stored_in(config, self.few_bits),
        )
        return step_ops(config, shape, self.style, stored) * self.steps_a_call


def fused(
    kernels_per_layer: Literal[9, 5],
    *,
    pdl: bool = False,
    steps_a_call: int = 1,
    few_bits: str | None = None,
) -> Callable[[DecodeSetup], Variant]:
    """What makes a `FusedGraph` of a setup."""
    return lambda setup: FusedGraph(setup, kernels_per_layer, pdl, steps_a_call, few_bits)
