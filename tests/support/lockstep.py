"""Several runners under one scheduler, step by step: the same batch for each, logits compared.

In: an eager `TorchRunner` and some with graphs. Out: `Lockstep`, a runner for the engine that fails
at the first step where a graph differs, and counts what it has seen.

Tokens must be equal, with one exception: where the eager logits of the two choices lie nearer to
each other than their rounding, there is nothing to be equal about. The eager token goes on then, so
that all runners keep one history. `ties` says how often that was.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import Model
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.dispatch.dispatcher import BatchDescriptor, uniform_token_count
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.engine import Engine

JOIN = 0.3  # how likely someone joins before a step


class Watch:
    """Takes down the logits of every step, in static buffers: a graph that holds it does, too."""

    def __init__(self, model: Model, max_num_seqs: int) -> None:
        device = model.weights.embed.device
        self.logits = torch.zeros(max_num_seqs, model.config.vocab_size, device=device)
        self.all_finite = torch.ones((), dtype=torch.bool, device=device)  # padded rows, too
        self._head = model.head
        model.head = self.head  # type: ignore[method-assign]

    def head(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        logits, tokens = self._head(hidden, inputs, sample)
        self.logits[: len(logits)].copy_(logits)
        self.all_finite.logical_and_(logits.isfinite().all())
        return logits, tokens


@dataclass
class Watched:
    """A runner, what its model says, and how its steps were run."""

    runner: TorchRunner
    watch: Watch
    modes: Counter[CUDAGraphMode] = field(default_factory=Counter)
    padded_steps: int = 0
    ties: int = 0
    furthest: float = 0.0  # of a logit from the eager one

    @classmethod
    def of(cls, runner: TorchRunner) -> Watched:
        """Attach before capturing, so that the graphs hold the watch."""
        return cls(runner, Watch(runner.model, runner.limits.max_num_seqs))

    def execute(self, batch: ScheduledBatch) -> list[int]:
        """The step as the runner's own dispatcher wants it."""
        uniform = uniform_token_count(batch.query_lens, has_prefill=batch.has_prefill)
        how = self.runner.dispatcher.dispatch(batch.num_reqs, batch.num_tokens, uniform)
        self.modes[how.mode] += 1
        self.padded_steps += how.num_tokens > batch.num_tokens
        return self.runner.execute(batch, how)


class Lockstep:
    """Fits `mini_engine.engine.engine.Runner`; the engine's own dispatcher is not asked."""

    def __init__(self, eager: Watched, graphs: list[Watched], tolerance: float) -> None:
        self.eager, self.graphs, self.tolerance = eager, graphs, tolerance

    @property
    def now_us(self) -> float:
        return self.eager.runner.now_us

    def wait_until(self, us: float) -> None:
        self.eager.runner.wait_until(us)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        del descriptor
        wanted = self.eager.execute(batch)
        truth = self.eager.watch.logits[: batch.num_reqs]
        sampling = [row for row, entry in enumerate(batch.entries) if entry.samples]
        for one in self.graphs:
            got = one.execute(batch)
            away = float((one.watch.logits[: batch.num_reqs] - truth).abs().max())
            one.furthest = max(one.furthest, away)
            assert away <= self.tolerance, f"{one.runner.dispatcher.mode.name}: off by {away}"
            if got != wanted:
                for row, ours, theirs in zip(sampling, got, wanted, strict=True):
                    apart = float(truth[row, theirs] - truth[row, ours])
                    assert apart <= 2 * self.tolerance, f"token {ours}, eagerly {theirs}"
                    one.ties += ours != theirs
        return wanted

    @property
    def all_finite(self) -> bool:
        return all(bool(one.watch.all_finite) for one in (self.eager, *self.graphs))


@dataclass
class Traffic:
    """What a random run was made of."""

    decode_steps: int = 0
    requests: int = 0
    preemptions: int = 0
    stopped: int = 0  # by sampling their end, at no known time
    sizes: set[int] = field(default_factory=set)  # requests in a batch


def random_traffic(engine: Engine, steps: int, vocab_size: int, seed: int) -> Traffic:
    """Requests of random length join and leave until `steps` steps have decoded; then all end."""
    rng, seen = Random(seed), Traffic()
    scheduler, limits = engine.scheduler, engine.scheduler.limits
    while seen.decode_steps < steps or scheduler.has_unfinished:
        crowded = len(scheduler.waiting) > 2 or seen.decode_steps >= steps
        if not crowded and (not scheduler.has_unfinished or rng.random() < JOIN):
            engine.submit(_random_request(seen.requests, rng, limits, vocab_size))
            seen.requests += 1
        record = engine.step()
        assert record is not None
        seen.decode_steps += any(not entry.is_prefill for entry in record.batch.entries)
        seen.preemptions += len(record.batch.preempted)
        seen.stopped += sum(done.finish_reason == "stop" for done in record.completions)
        seen.sizes.add(record.batch.num_reqs)
    return seen


def _random_request(number: int, rng: Random, limits: SchedulerLimits, vocab_size: int) -> Request:
    """A short prompt and many tokens: it is the decode steps that are wanted."""
    longest = limits.max_model_len // 4
    prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, longest))]
    new = rng.randint(1, limits.max_model_len - longest)
    return Request(str(number), prompt, new, eos_ids=rng.sample(range(vocab_size), 3))
