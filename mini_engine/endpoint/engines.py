"""What may stand behind the endpoint: an engine with a model, or a prediction of one.

In:  names of a model, a wing, a mode, limits.
Out: a `Backend`: an engine that takes one step at a time, and how text becomes its tokens.

The **predicted** engine is the simulated server of `serve` (`serving.replay.Replica`), whose tokens
are given out when the time of their step has passed. Its clock goes by predictions alone: what
Python and a sleep that is too long add to one step is caught up in the next.

The **real** ones are the engine on the simulated GPU, which computes in numpy, and on the CUDA wing
or its emulator: tokens of a checkpoint, as fast as they are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import MAX_CONTEXT, SHIPPED, Tell, sizes_for
from mini_engine.engine.scheduler import Scheduler
from mini_engine.model.chat import ChatTemplate
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import resolve_model
from mini_engine.model.tokenizer import TextStream, Tokenizer
from mini_engine.server import Server
from mini_engine.serving.replay import Replica
from mini_engine.step.cards import load_spec

Step = tuple[ScheduledBatch, BatchDescriptor]
BLOCK_SIZE = 16  # tokens


class Predicted:
    """A `Replica` whose steps take, on the wall's clock, the time that they are predicted to."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.scheduler = replica, replica.scheduler
        self.cancel = replica.cancel
        self._began = time.perf_counter()

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._began) * 1e6

    def submit(self, request: Request) -> None:
        self.replica.enter(request, self.now_us)

    def step(self) -> Step | None:
        """Returns when the tokens may be given out; None: nobody is there."""
        if not self.scheduler.has_unfinished:
            return None
        done = self.replica.step()
        time.sleep(max(0.0, self.replica.now_us - self.now_us) / 1e6)
        return done


class Real:
    """An `Engine`, one step at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.scheduler = engine, engine.scheduler
        self.submit, self.cancel = engine.submit, engine.cancel

    def step(self) -> Step | None:
        record = self.engine.step()
        return (record.batch, record.descriptor) if record else None


class Placeholder:
    """A prediction has no text: each of its tokens is a word."""

    def push(self, token_id: int) -> str:  # noqa: ARG002
        return " token"

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class Backend:
    model: str  # as clients name it
    steps: Predicted | Real  # driven by one thread
    tokenizer: Tokenizer
    template: ChatTemplate
    pieces: Callable[[], TextStream | Placeholder]  # the text of an answer, as its tokens come
    eos_ids: Collection[int] = ()
    vocab_size: int = 2**31  # token ids are below

    @property
    def scheduler(self) -> Scheduler:
        return self.steps.scheduler

    @property
    def limits(self) -> SchedulerLimits:
        return self.steps.scheduler.limits


def predicted(
    server: Server, mode: str, capture_sizes: Sequence[int] | None, *,
    prefix_caching: bool = True, tokenizer: str | Path = SHIPPED,
) -> Backend:  # fmt: skip
    """`tokenizer`: the folder of one in whose tokens prompts are counted. Raises ValueError as
    `Server.sized` does, and for a folder without a tokenizer."""
    sized = server.sized(mode, capture_sizes)
    limits = replace(sized.limits, prefix_caching=prefix_caching)
    steps, folder = Replica(server.costs, limits, sized.dispatcher), resolve_model(tokenizer)
    template = ChatTemplate(folder)
    return Backend(
        server.config.name, Predicted(steps), Tokenizer(folder, ()), template, Placeholder
    )


def real(
    model: str, wing: str, mode: str, capture_sizes: Sequence[int] | None, tell: Tell, *,
    spec: str = "h200", max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None, prefix_caching: bool = True, steps_per_replay: int = 1,
) -> Backend:  # fmt: skip
    """The engine of a wing ("sim" or "cuda") over a checkpoint's folder or hub id, its graphs
    captured. The cache holds `max_num_seqs` requests of `max_model_len` tokens, where they fit.

    Raises ValueError for a folder that is no checkpoint, and for what does not fit.
    """
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids, config.vocab_size)
    context = min(config.max_position_embeddings, max_model_len or MAX_CONTEXT)
    config = replace(config, max_position_embeddings=context)  # RoPE's tables
    seqs = max_num_seqs or 16
    limits = SchedulerLimits(
        seqs, max(max_num_batched_tokens or 256, seqs), 1 + seqs * -(-context // BLOCK_SIZE),
        BLOCK_SIZE, context, prefix_caching=prefix_caching, steps_per_replay=steps_per_replay,
    )  # fmt: skip

    runner: Any  # of either wing
    if wing == "cuda":
        from mini_engine.cuda import generate as cuda
        from mini_engine.cuda import weights as stored

        device = cuda.nearest_backend(tell)
        dtype = cuda.dtype_for(device, tell)
        limits = cuda.limits_that_fit(config, limits, device, dtype, tell)
    dispatcher = GraphDispatcher(mode, sizes_for(mode, limits, capture_sizes, tell), seqs)
    if wing == "cuda":
        weights = stored.load_weights(config, folder, device.device, dtype)
        runner = cuda.runner_of(weights, limits, dispatcher, device, 5, tell, sampling=True)
    else:
        from mini_engine.sim import generate as sim

        checkpoint = replace(sim.open_checkpoint(folder), config=config)
        runner = sim.runner_of(checkpoint, load_spec(spec), limits, dispatcher, sampling=True)
    for line in runner.capture().lines():
        tell(line)
    return Backend(
        config.name, Real(Engine(runner, limits, dispatcher)), tokenizer, ChatTemplate(folder),
        tokenizer.stream, config.eos_token_ids, config.vocab_size,
    )  # fmt: skip
