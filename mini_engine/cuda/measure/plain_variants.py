"""Our plain model as a variant: eager, one graph, pieces around live attention, torch.compile.

In:  a `DecodeSetup`. Out: variants that run `Model` on it, all of them with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mini_engine.cuda.graphs.capture import GraphRunner, PiecewiseGraphRunner
from mini_engine.cuda.measure.decode_setup import DecodeSetup
from mini_engine.cuda.measure.hf_variants import new_step
from mini_engine.cuda.measure.op_record import OpRecorder, WatchedAttention
from mini_engine.cuda.runner import NullAttention
from mini_engine.predict.oplists import OpCost, StepShape, step_ops

Compiler = Callable[[Any], Any]


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
        self._decode()

    def feed(self, tokens: Tensor) -> None:
        self.inputs.input_ids.copy_(tokens)

    def logits(self) -> Sequence[Tensor]:
        return self._logits

    def tokens(self) -> Sequence[Tensor]:
        return self._tokens

    def ops(self) -> list[OpCost]:
        recorder = OpRecorder()
        with recorder:
            self._decode()
        return recorder.ops

    def release(self) -> None:
        self._logits, self._tokens = [], []

    def _decode(self) -> Tensor:
        """One step, from embed to the token written and fed back."""
        hidden = self.model.body(self.inputs, self.setup.attention)
        logits, tokens = self.model.next_step(hidden, self.inputs)
        self._logits, self._tokens = [logits], [tokens]
        return logits


class OursGraph(OursEager):
    """The same in one graph; with `steps_a_call` above 1, that many steps in one replay."""

    def __init__(self, setup: DecodeSetup, steps_a_call: int = 1) -> None:
        super().__init__(setup)
        self.steps_a_call = steps_a_call
        pool = setup.backend.graph_pool_handle()
        self.graphs = GraphRunner(setup.backend, self._forward, [setup.batch], pool)

    def prepare(self) -> None:
        if self.graphs.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {self.setup.batch}")

    def step(self) -> None:
        self.graphs.replay(self.setup.batch)

    def feed(self, tokens: Tensor) -> None:
        if self.steps_a_call > 1:
            raise ValueError(f"{self.steps_a_call} steps a replay feed themselves: no way in")
        super().feed(tokens)

    def ops(self) -> list[OpCost]:
        kept = self._logits, self._tokens  # in the graph's memory
        recorder = OpRecorder()
        with recorder:
            self._forward(self.setup.batch)
        self._logits, self._tokens = kept
        return recorder.ops

    def release(self) -> None:
        super().release()
        self.graphs.reset()

    def _forward(self, rung: int) -> Tensor:  # noqa: ARG002 (there is one rung)
        """Keeps every step's logits: they are computed anyway, and the gate wants to see them."""
        logits, tokens = [], []
        for _ in range(self.steps_a_call):
            last = self._decode()
            logits += self._logits
            tokens += self._tokens
        self._logits, self._tokens = logits, tokens
        return last


class OursPiecewise(OursEager):
    """Graphs between the attentions; attention, head and feedback are launched live."""

    def __init__(self, setup: DecodeSetup) -> None:
        super().__init__(setup)
        pool = setup.backend.graph_pool_handle()
        self.graphs = PiecewiseGraphRunner(
            setup.backend,
            lambda _, attention: self.model.body(self.inputs, attention),
            [setup.batch],
            pool,
            NullAttention(),
        )

    def prepare(self) -> None:
        if self.graphs.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {self.setup.batch}")

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

    def release(self) -> None:
        super().release()
        self.graphs.reset()


class OursCompiled(OursEager):
    """torch.compile of the whole step of our plain model."""

    def __init__(self, setup: DecodeSetup, compiler: Compiler) -> None:
        super().__init__(setup)
        self._compiled = compiler(self._decode_once)

    def prepare(self) -> None:
        """Compiles at the first call; CUDA graphs are recorded at the second, run from the third.

        Static addresses: else Inductor takes weights, cache and inputs for arguments that may
        move, copies them in before each replay, and gives up on graphs that write to them
        (torch/_inductor/cudagraph_utils.py, check_for_mutation).
        """
        weights, cache = self.model.weights, self.model.cache
        layers = [t for layer in weights.layers for t in vars(layer).values() if t is not None]
        tables = (
            weights.embed,
            weights.final_norm,
            weights.lm_head,
            self.model.cos,
            self.model.sin,
        )
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

    def _decode_once(self) -> tuple[Tensor, Tensor]:
        hidden = self.model.body(self.inputs, self.setup.attention)
        return self.model.next_step(hidden, self.inputs)
