"""The service that had the incidents: a toy small enough that every answer is known without a GPU.

In: a module with runners, yours or the engine's, and what users say. Out: what they are answered.

    service = Service(runner_a)
    service.step({3: 5.0})     # the user who owns slot 3 says 5: {3: 50.0}
    service.step({3: 1.0})     # half of 5, and 1: {3: 35.0}

Each user owns a slot of a cache on the simulated device, as a request owns its blocks. A step
halves what the slot holds, adds what the user said and answers ten times that. Slot 0 is nobody's.
`service.expected(said)` computes the same on the host, without device, graph or padding.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.engine import Engine
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.model.config import named_shape
from mini_engine.predict.hardware import load_spec
from mini_engine.sim.device import Device
from mini_engine.sim.kernels import scale
from mini_engine.sim.launch import Buffer, kernel
from mini_engine.sim.weights import random_weights

SLOTS, WIDTH = 24, 4
OPS = ["scale", "forget", "remember", "recall", "scale"]  # what a step launches


@kernel()
def forget(cache: np.ndarray, slots: np.ndarray) -> None:
    """cache[slots] /= 2. cache (SLOTS, WIDTH), slots (rows,) int32."""
    cache[slots] *= np.float32(0.5)


@kernel()
def remember(cache: np.ndarray, x: np.ndarray, slots: np.ndarray) -> None:
    """cache[slots] += x. x (rows, WIDTH)."""
    cache[slots] += x


@kernel()
def recall(out: np.ndarray, cache: np.ndarray, slots: np.ndarray) -> None:
    """out = cache[slots]. out (rows, WIDTH)."""
    out[...] = cache[slots]


class Service:
    """Users, their slots, one device and one runner."""

    def __init__(
        self,
        graphs: ModuleType,
        sizes: Sequence[int] = (1, 2, 4, 8),
        *,
        live: Sequence[str] = (),
        capture: bool = True,
        settling: bool = False,
    ) -> None:
        """`live` names ops that resist capture: then the graphs are pieces.

        `settling`: some kernels wait for the GPU the first time that they run with so many rows.
        """
        self.device = Device(load_spec("h200"), memory_bytes=2**26, record=True)
        self.cache = self.device.upload(np.zeros((SLOTS, WIDTH), np.float32))
        self.memory = np.zeros(SLOTS, np.float32)  # what the cache should hold
        top = max(sizes)
        shapes = {"x": ((top, WIDTH), "float32"), "slots": ((top,), "int32")}
        self.inputs = graphs.StaticInputs(self.device, shapes)
        self.settled: set[int] | None = set() if settling else None
        if live:
            self.runner = graphs.PiecewiseGraphRunner(
                self.device, self.forward, self.inputs, sizes, live
            )
        else:
            self.runner = graphs.GraphRunner(self.device, self.forward, self.inputs, sizes)
        if capture:
            self.runner.capture()

    def forward(self, rows: int) -> Buffer:
        """The launches of one step of so many rows. Returns the answers, (rows, WIDTH)."""
        if self.settled is not None and rows not in self.settled:
            self.device.synchronize()  # as an autotuner does, to read its stopwatch
            self.settled.add(rows)
        device, view = self.device, self.inputs.view(rows)
        out = device.empty((rows, WIDTH))
        with device.scratch() as scratch:
            said, held = scratch.empty(rows, WIDTH), scratch.empty(rows, WIDTH)
            device.launch(scale, said, view["x"], by=1.0)
            device.launch(forget, self.cache, view["slots"])
            device.launch(remember, self.cache, said, view["slots"])
            device.launch(recall, held, self.cache, view["slots"])
            device.launch(scale, out, held, by=10.0)
        return out

    def step(self, said: Mapping[int, float], kind: object = "float32") -> dict[int, float]:
        """One step through the runner. `said`: slot of a user -> number; answers by slot.

        `kind` is the type in which the client sends its numbers; `list` for a Python list.
        """
        return self._answers(said, self.runner.run(len(said), self._arrays(said, kind)))

    def eager_step(self, said: Mapping[int, float]) -> dict[int, float]:
        """The same without a graph."""
        self.inputs.stage(len(said), self._arrays(said, "float32"))
        return self._answers(said, self.forward(len(said)))

    def expected(self, said: Mapping[int, float]) -> dict[int, float]:
        """What the same step answers, computed on the host. Keeps count: ask once for each step."""
        for slot, number in said.items():
            self.memory[slot] = self.memory[slot] / 2 + np.float32(number)
        return {slot: float(10 * self.memory[slot]) for slot in said}

    def _arrays(self, said: Mapping[int, float], kind: object) -> dict[str, object]:
        rows = [[number] * WIDTH for number in said.values()]
        x = rows if kind is list else np.array(rows).astype(str(kind))
        return {"x": x, "slots": np.array(list(said), np.int32)}

    def _answers(self, said: Mapping[int, float], answers: Buffer) -> dict[int, float]:
        found = self.device.read(answers)
        assert found.shape == (len(said), WIDTH), f"answers of {found.shape} for {len(said)} users"
        return {slot: float(row[0]) for slot, row in zip(said, found, strict=True)}


def text_engine(graphs: ModuleType, mode: str, sizes: Sequence[int] = (1, 2, 3, 12)) -> Engine:
    """The whole engine with a tiny model, over the runners of `graphs`. It has captured."""
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=12, num_blocks=40, block_size=4, max_model_len=32
    )
    shape = replace(
        named_shape("qwen3-0.6b"), hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=8, vocab_size=37, max_position_embeddings=32, eos_token_ids=(),
    )  # fmt: skip
    dispatcher = GraphDispatcher(mode, [] if mode == "NONE" else sizes, limits.max_num_seqs)
    device = Device(load_spec("h200"), memory_bytes=2**26)
    runners = _engines_runner_over(graphs)
    runner = runners.SimRunner(device, shape, random_weights(shape, seed=3), limits, dispatcher)
    runner.capture()
    return Engine(runner, limits, dispatcher)


def _engines_runner_over(graphs: ModuleType) -> ModuleType:
    """`mini_engine.sim.runner`, loaded once more, so that it takes its runners from `graphs`."""
    place = "mini_engine.sim.graphs"
    spec = importlib.util.find_spec("mini_engine.sim.runner")
    if spec is None or spec.loader is None:
        raise ImportError("mini_engine.sim.runner is not where it should be")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(place)
    sys.modules[place] = graphs
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[place]
        if before is not None:
            sys.modules[place] = before
    return module
