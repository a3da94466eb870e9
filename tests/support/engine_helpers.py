"""The engine on the simulated device with a model small enough to run thousands of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from labs.support.inputs import random_weights
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Completion, Engine
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.engine.speculation import DraftModel, Ngram
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.weights import Weights
from tests.support.checkpoint_helpers import TINY
from tests.support.sim_helpers import small_device

VOCAB = TINY.vocab_size
WEIGHTS = random_weights(TINY, seed=11)
ROOMY = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4, max_model_len=32
)


def sim_engine(
    mode: str = "FULL_AND_PIECEWISE",
    sizes: Sequence[int] = (1, 2, 4, 8),
    limits: SchedulerLimits = ROOMY,
    *,
    capture: bool = True,
    megabytes: int = 64,
    sampling: bool = False,
) -> Engine:
    """An engine whose runner has captured what it may use."""
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    device = small_device(megabytes=megabytes)
    runner = SimRunner(device, TINY, WEIGHTS, limits, dispatcher, sampling=sampling)
    if capture:
        runner.capture()
    return Engine(runner, limits, dispatcher)


@cache
def draft_weights(strange: float) -> Weights:
    """Of a draft model: the model's own (0), those of another (1), or a mixture."""
    other = random_weights(TINY, seed=12)
    return Weights(
        TINY, lambda name: (1 - strange) * WEIGHTS.read(name) + strange * other.read(name)
    )


def speculating_engine(
    mode: str,
    sizes: Sequence[int],
    limits: SchedulerLimits,
    draft: Weights | None = None,
    *,
    sampling: bool = False,
) -> Engine:
    """An engine that drafts `limits.num_speculative_tokens` by n-grams or, with weights, by a model
    of the same shape, on the same device."""
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs, limits.decode_query_len)
    device = small_device(megabytes=64)
    runner = SimRunner(device, TINY, WEIGHTS, limits, dispatcher, sampling=sampling)
    runner.capture()
    if draft is None:
        return Engine(runner, limits, dispatcher, proposer=Ngram())
    alone = replace(limits, num_speculative_tokens=0)
    decodes = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    drafting = SimRunner(device, TINY, draft, alone, decodes, sampling=sampling)
    drafting.capture()
    return Engine(runner, limits, dispatcher, proposer=DraftModel(drafting, decodes))


@cache
def alone(
    prompt: tuple[int, ...], max_new_tokens: int, params: SamplingParams = GREEDY
) -> tuple[int, ...]:
    """The tokens of a request that has the device for itself, eagerly, in one chunk."""
    limits = replace(ROOMY, max_num_batched_tokens=32)
    engine = sim_engine("NONE", (), limits, sampling=params.temperature > 0)
    return engine.run([Request("alone", prompt, max_new_tokens, sampling=params)])[0].tokens


def tokens_by_id(completions: Sequence[Completion]) -> dict[str, tuple[int, ...]]:
    return {c.request_id: c.tokens for c in completions}
