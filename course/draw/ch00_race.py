"""The race: one decode step on the lanes of CPU and GPU, several ways, and the text it writes.

`race` is the table that the site's widget draws, for every batch; `race_svg` is its still and the
animated picture of the README. Nothing is computed in JavaScript but where a box begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import named_shape
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.step.cards import load_spec
from mini_engine.step.run import around, padded_step
from mini_engine.step.step_model import StepModel

SHAPE, CARD, HOST, CONTEXT, BATCHES = "qwen3-0.6b", "h200", "server", 512, 256
WAYS = {  # what the lane is called, the engine, and the mode that it captures in
    "transformers": ("transformers", "transformers", "NONE"),
    "eager": ("vLLM, eager", "vllm", "NONE"),
    "pieces": ("vLLM, in pieces", "vllm", "PIECEWISE"),
    "graph": ("vLLM, one graph", "vllm", "FULL"),
}
SHOWN = ("transformers", "eager", "graph")  # on the first page and in the README
PROMPT = "Return the number"
SLOWER = 40  # the text appears so many times as slowly as predicted


@dataclass(frozen=True)
class Lane:
    """The steps of one way at each batch from 1 to BATCHES, in µs."""

    name: str
    launches: int
    kernels: int
    itl: list[int]
    before: list[int]  # the engine's own work and the copy of the inputs, before the launches
    busy: list[int]  # GPU at work
    issue: float  # the launches; no batch changes them
    beside: float  # the engine's work on the next step, after the launches
    sync: float  # of the CPU, when the GPU has ended


@cache
def race() -> dict[str, Lane]:
    """What `mini_engine demo --batch N` predicts of each way, for every N."""
    lanes = {}
    for way, (name, engine, mode) in WAYS.items():
        spec = load_spec(CARD, HOST, engine)
        seqs, tokens = spec.batch_defaults
        sizes = default_capture_sizes(seqs, tokens, mode=mode)
        dispatcher, model = GraphDispatcher(mode, sizes, seqs), StepModel(named_shape(SHAPE), spec)
        batches = range(1, BATCHES + 1)
        padded = [
            padded_step(dispatcher.dispatch(n, n, 1), n, n * CONTEXT, n * CONTEXT) for n in batches
        ]
        (launched,) = {launched for launched, _ in padded}
        steps = model.steps(launched, [shape for _, shape in padded])
        before = [around(spec, n)[0] + spec.copy_us for n in batches]
        lanes[way] = Lane(
            name,
            steps[0].launches,
            steps[0].kernels,
            [round(step.itl_us) for step in steps],
            [round(us) for us in before],
            [round(step.gpu_busy_us) for step in steps],
            round(steps[0].cpu_us - before[0] - spec.ahead_us, 1),
            spec.ahead_us,
            spec.sync_us,
        )
    return lanes


@cache
def words() -> tuple[str, ...]:
    """What the shipped checkpoint writes after PROMPT, a piece a token."""
    checkpoint = open_checkpoint(SHIPPED)
    pieces: list[int] = []
    generate(
        checkpoint,
        load_spec(CARD),
        [PROMPT],
        "NONE",
        on_token=lambda _, token: pieces.append(token),
    )
    texts = [checkpoint.tokenizer.decode(pieces[:n]) for n in range(len(pieces) + 1)]
    return tuple(after[len(before) :] for before, after in pairwise(texts))


def table() -> dict[str, Any]:
    """What the widget reads."""
    lanes = {way: vars(lane) for way, lane in race().items()}
    return {"lanes": lanes, "prompt": PROMPT, "words": words(), "slower": SLOWER}
