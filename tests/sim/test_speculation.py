"""Speculation on the simulated device: the text bit for bit, and the distribution of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import StepRecord
from mini_engine.engine.sampling import GREEDY, SamplingParams
from tests.sim.test_runner import MODES, workloads
from tests.sim.test_sampling import some_params
from tests.support.checkpoint_helpers import TINY
from tests.support.engine_helpers import alone, draft_weights, speculating_engine, tokens_by_id
from tests.support.model_helpers import LoneModel

drafts = st.sampled_from([None, 0.0, 0.1, 1.0])  # n-grams, or a model so far from the other


@given(
    workloads(),
    st.lists(st.one_of(st.just(GREEDY), some_params), min_size=6, max_size=6),
    st.sampled_from(MODES),
    drafts,
    st.integers(1, 5),
)
def test_drafts_change_no_bit_of_any_text(
    workload: tuple[list[Request], SchedulerLimits],
    params: list[SamplingParams],
    mode: str,
    strange: float | None,
    count: int,
) -> None:
    """Greedy and drawn, whoever runs beside it: what a seed gives alone and without drafts."""
    requests, limits = workload
    requests = [replace(r, sampling=p) for r, p in zip(requests, params, strict=False)]
    limits = replace(limits, num_speculative_tokens=count)
    weights = None if strange is None else draft_weights(strange)
    engine = speculating_engine(mode, [1, 2, 4, 9], limits, weights, sampling=True)
    assert tokens_by_id(engine.run(requests)) == {
        r.request_id: alone(tuple(r.prompt), r.max_new_tokens, r.sampling) for r in requests
    }
    assert engine.scheduler.pool.num_free == limits.num_blocks - 1


PROMPT, REQUESTS, WARMTH = (1, 2, 1, 2, 1), 400, 1.5
Draw = tuple[tuple[int, ...], int, int | None]  # the text before it, the token, what was drafted


@cache
def lone(strange: float) -> LoneModel:
    return LoneModel(TINY, draft_weights(strange))


@cache
def probabilities(text: tuple[int, ...], strange: float = 0.0) -> np.ndarray:
    """softmax(logits / WARMTH) of the token after a text, (V,), without the engine."""
    scores = lone(strange).logits(text)[-1].astype(np.float64) / WARMTH
    weights = np.exp(scores - scores.max())
    share: np.ndarray = weights / weights.sum()
    return share


@cache
def some_draws(strange: float | None) -> list[Draw]:
    """The written tokens of many requests of one prompt, each with its own seed and 4 tokens."""
    limits = SchedulerLimits(50, 400, 200, 4, 32, num_speculative_tokens=3)
    requests = [
        Request(str(seed), PROMPT, 4, sampling=SamplingParams(WARMTH, seed=seed))
        for seed in range(REQUESTS)
    ]
    weights = None if strange is None else draft_weights(strange)
    engine, found = speculating_engine("NONE", (), limits, weights, sampling=True), list[Draw]()
    texts = dict.fromkeys((r.request_id for r in requests), PROMPT)

    def note(record: StepRecord) -> None:
        drafts = {e.request.request_id: [*e.drafts, None] for e in record.batch.entries}
        for request, token in record.written:
            name = request.request_id
            draft = drafts[name].pop(0)
            found.append((texts[name], token, draft))
            texts[name] = (*texts[name], token)

    engine.run(requests, on_step=note)
    return found


def chi_square(tokens: Sequence[int], shares: Iterable[np.ndarray]) -> float:
    """How far the counts of tokens, each drawn by its own distribution, are from what is expected:
    the statistic over what it exceeds once in a thousand times (Wilson and Hilferty 1931). Tokens
    that are expected less than 5 times are one class."""
    expected = np.sum([*shares], axis=0)
    counts = np.bincount(tokens, minlength=len(expected))
    rare = expected < 5
    wanted = np.append(expected[~rare], expected[rare].sum())
    got = np.append(counts[~rare], counts[rare].sum())
    wanted, got = wanted[wanted > 0], got[wanted > 0]
    ninth = 2 / (9 * (len(wanted) - 1))
    critical = (len(wanted) - 1) * (1 - ninth + 3.0902 * ninth**0.5) ** 3
    return float(((got - wanted) ** 2 / wanted).sum() / critical)


def off_by(draws: list[Draw]) -> dict[int, float]:
    """Of each place in the text: `chi_square` of its tokens against the model's probabilities."""
    return {
        place: chi_square(
            [token for text, token, _ in draws if len(text) == place],
            [probabilities(text) for text, _, _ in draws if len(text) == place],
        )
        for place in sorted({len(text) for text, _, _ in draws})
    }


@pytest.mark.parametrize("strange", [None, 0.1, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_distribution_is_that_of_the_model_at_every_place(strange: float | None) -> None:
    draws = some_draws(strange)
    off = off_by(draws)
    assert len(draws) == 4 * REQUESTS
    assert list(off) == [5, 6, 7, 8]
    assert max(off.values()) < 1
    hits = [token == draft for _, token, draft in draws if draft is not None]
    assert 0.02 < np.mean(hits) < 0.98


def test_a_draft_model_that_shares_the_noise_is_accepted_as_often_as_its_source_promises() -> None:
    """Between (1 - d) / (1 + d) and 1 - d, the most that any rule can accept, with d the total
    variation distance of p and q (Daliri et al. 2024, arXiv 2408.07978)."""
    draws = [(text, token == x) for text, token, x in some_draws(0.1) if x is not None]
    texts = {text for text, _ in draws}
    near = {
        text: 0.5 * np.abs(probabilities(text) - probabilities(text, 0.1)).sum() for text in texts
    }
    distances = np.array([near[text] for text, _ in draws])
    accepted, slack = np.mean([hit for _, hit in draws]), 3.3 * 0.5 / np.sqrt(len(draws))
    assert ((1 - distances) / (1 + distances)).mean() - slack < accepted
    assert accepted < (1 - distances).mean() + slack
    assert distances.mean() > 0.05


def test_drafts_from_the_text_alone_are_accepted_by_the_rejection_rule() -> None:
    """A draft x is accepted with probability p(x), and what replaces it is drawn from p without
    x: min(1, p / q) and max(0, p - q), scaled to 1, for a q that is sure of x."""
    draws = [(text, token, x) for text, token, x in some_draws(None) if x is not None]
    p = [probabilities(text)[x] for text, _, x in draws]
    accepted = [token == x for _, token, x in draws]
    deviation = np.sqrt(sum(share * (1 - share) for share in p))
    assert len(draws) > REQUESTS
    assert abs(sum(accepted) - sum(p)) < 3.3 * deviation  # once in a thousand times it is more
    rejected = [(text, token, x) for text, token, x in draws if token != x]
    residuals = []
    for text, _, x in rejected:
        residual = probabilities(text).copy()
        residual[x] = 0.0
        residuals.append(residual / residual.sum())
    assert chi_square([token for _, token, _ in rejected], residuals) < 1
