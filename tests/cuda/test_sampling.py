"""cuda/sampling.py: the right distribution, the right filters, and the same draw in any batch."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.sampling import SeededSampler, cutoffs_of, greedy, gumbel, mixed, noise_words  # noqa: E402
from mini_engine.engine.sampling import SamplingParams  # noqa: E402

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 2.5, 0.7])
SIGNIFICANCE = 0.001  # a right sampler fails one such test in a thousand; seeds are fixed


rows_of = attrgetter("temperatures", "top_ps", "log_min_ps", "top_ks", "seeds")


def sampler_of(params: list[SamplingParams]) -> SeededSampler:
    made = SeededSampler(len(params), CPU)
    made.set_rows(params)
    return made


def draws(params: SamplingParams, count: int = 40_000, *, by_seed: bool = False) -> np.ndarray:
    """`count` tokens from the same logits: of one request at consecutive positions, or of requests
    with consecutive seeds at one position."""
    seeds = range(params.seed, params.seed + count) if by_seed else [params.seed] * count
    sampler = sampler_of([replace(params, seed=seed) for seed in seeds])
    lens = torch.full((count,), 9) if by_seed else torch.arange(count)
    drawn: np.ndarray = sampler(LOGITS.expand(count, -1), lens.int()).numpy()
    return drawn


# ---------------------------------------------------------------- the distribution


def filtered(logits: list[float], params: SamplingParams) -> list[int]:
    """Tokens that may be drawn, by sorting and counting: temperature, min-p, top-k, top-p."""
    weights = np.exp((np.array(logits, np.float64) - max(logits)) / params.temperature)
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    order = [token for token in order if weights[token] >= params.min_p]
    if params.top_k:
        last = logits[order[min(params.top_k, len(order)) - 1]]
        order = [token for token in order if logits[token] >= last]
    total, held, kept = sum(weights[order]), 0.0, list[int]()
    for token in order:
        if held < params.top_p * total or (kept and logits[token] == logits[kept[-1]]):
            kept.append(token)
        held += weights[token]
    return sorted(kept)


PARAMS = [
    *(SamplingParams(t, seed=5) for t in (0.5, 1.0, 2.0)),
    SamplingParams(1.0, top_k=3, seed=6),
    SamplingParams(0.8, top_p=0.9, seed=7),
    SamplingParams(1.5, min_p=0.2, seed=8),
    SamplingParams(1.2, top_k=6, top_p=0.9, min_p=0.1, seed=9),
]


@pytest.mark.parametrize("by_seed", [False, True], ids=["by position", "by seed"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_draws_follow_the_filtered_softmax_as_those_of_torch_do(
    params: SamplingParams, by_seed: bool
) -> None:
    """Pearson's chi-square of two samples of one size: the sum of (a - b)² / (a + b) over the
    tokens, with one degree of freedom less than there are tokens."""
    drawn = torch.from_numpy(draws(params, 10_000, by_seed=by_seed)).long()
    kept = torch.tensor(filtered(LOGITS.tolist(), params))
    assert torch.isin(drawn, kept).all()
    probabilities = torch.softmax(LOGITS[kept].double() / params.temperature, -1)
    generator = torch.Generator().manual_seed(params.seed)
    theirs = kept[torch.multinomial(probabilities, len(drawn), True, generator=generator)]
    a, b = (torch.bincount(one, minlength=len(LOGITS))[kept] for one in (drawn, theirs))
    statistic = ((a - b) ** 2 / (a + b).clamp(min=1)).sum()  # nobody drew it: 0
    freedom = torch.tensor((len(kept) - 1) / 2)
    assert torch.special.gammaincc(freedom, statistic / 2) > SIGNIFICANCE


def test_consecutive_draws_are_independent() -> None:
    drawn = draws(SamplingParams(1.0, seed=5))
    p = torch.softmax(LOGITS, -1).numpy()
    pairs = np.bincount(drawn[:-1] * len(p) + drawn[1:], minlength=len(p) ** 2)
    expected = np.outer(p, p).ravel() * (len(drawn) - 1)
    enough = expected > 5
    # counts spread by sqrt(n p (1 - p)) < sqrt(expected): five of these
    assert (np.abs(pairs - expected) < 5 * np.sqrt(expected))[enough].all()


# ---------------------------------------------------------------- filters and rows


def test_under_no_seed_does_a_position_choose_its_token() -> None:
    """Seed 0, the usual one, once drew token n at position n, whatever its logit."""
    lens = torch.arange(1, 1000, dtype=torch.int32)
    for seed in (0, 1, 2):
        words = noise_words(torch.full_like(lens, seed), lens, 1000)
        assert words.min() > 0
        assert len(words.argmin(1).unique()) > 600  # 632 expected, were all words random


def test_what_may_be_drawn_is_what_sorting_and_counting_keeps() -> None:
    """Random filters over random logits, many of them rounded until some are equal."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        vocab = int(rng.integers(2, 9))
        logits = (rng.normal(size=vocab) * 2).round(int(rng.integers(0, 4))).tolist()
        params = SamplingParams(
            temperature=float(rng.uniform(0.5, 3)),
            top_k=int(rng.integers(0, vocab + 2)),
            top_p=float(rng.choice([1.0, rng.uniform(0.05, 0.99)])),
            min_p=float(rng.choice([0.0, rng.uniform(0.01, 0.9)])),
        )
        sampler = sampler_of([params])
        warmth, top_p, log_min_p, top_k, _ = rows_of(sampler)
        row = torch.tensor([logits])
        cutoff = float(cutoffs_of(row, warmth, top_k, top_p, log_min_p))
        allowed = [token for token, logit in enumerate(logits) if np.float32(logit) >= cutoff]
        assert allowed == filtered(logits, params), (logits, params)


def test_temperature_zero_is_greedy_whatever_the_filters_and_beside_sampled_rows() -> None:
    torch.manual_seed(0)
    logits, lens = torch.randn(64, 50), torch.arange(64, dtype=torch.int32)
    cold, hot = SamplingParams(0.0, top_k=3, top_p=0.1), SamplingParams(5.0)
    sampler = sampler_of([replace(p, seed=i) for i in range(32) for p in (cold, hot)])
    drawn, largest = sampler(logits, lens), greedy(logits, lens)
    assert drawn.dtype == largest.dtype == torch.int32
    assert torch.equal(drawn[::2], largest[::2])
    assert (drawn[1::2] != largest[1::2]).float().mean() > 0.5


def test_rows_are_set_in_place_and_those_of_no_request_are_greedy() -> None:
    """Graphs hold the addresses; a batch of the same requests is not copied again."""
    sampler = SeededSampler(3, CPU)
    addresses = [one.data_ptr() for one in rows_of(sampler)]
    sampler.set_rows([SamplingParams(0.5, top_k=2, top_p=0.9, min_p=0.5, seed=2**32 - 1)] * 2)
    sampler.set_rows([SamplingParams(0.5, top_k=2**40, seed=7)])
    assert [one.data_ptr() for one in rows_of(sampler)] == addresses
    temperatures, top_ps, log_min_ps, top_ks, seeds = (one.tolist() for one in rows_of(sampler))
    assert (temperatures, top_ps) == ([0.5, 0, 0], [1, 1, 1])
    assert (log_min_ps, top_ks) == ([-float("inf")] * 3, [2**31 - 1, 0, 0])
    assert seeds == [7, 0, 0]
    sampler.temperatures.fill_(3.0)  # would be overwritten
    sampler.set_rows([SamplingParams(0.5, top_k=2**40, seed=7)])
    assert sampler.temperatures.tolist() == [3.0] * 3


@given(
    rows=st.permutations(range(4)),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
    length=st.integers(1, 4),
)
@example([3, 2, 1, 0], [2**32 - 1, 2**31, 0, 1], 2)
def test_a_request_draws_the_same_token_in_any_row_beside_anyone(
    rows: list[int], seeds: list[int], length: int
) -> None:
    torch.manual_seed(3)
    logits, context_lens = torch.randn(4, 200), torch.tensor([7, 8, 3000, 7], dtype=torch.int32)
    params = [SamplingParams(1.5, top_k=50 * i, top_p=0.9, seed=s) for i, s in enumerate(seeds)]
    all_four = sampler_of(params)(logits, context_lens)
    chosen = rows[:length]
    sampler = sampler_of([params[i] for i in chosen])
    assert torch.equal(sampler(logits[chosen], context_lens[chosen]), all_four[chosen])


# ---------------------------------------------------------------- the noise


def test_noise_is_finite_at_both_ends_and_finest_where_it_is_largest() -> None:
    ends = gumbel(torch.tensor([0, 1, 2**31, 2**32 - 1]))
    assert ends.isfinite().all()
    assert ends[0] == ends.max()
    assert ends[0] - ends[1] > 1  # the largest two of 2^32 values are told apart
    assert float(ends[2]) == pytest.approx(-np.log(np.log(2)), abs=1e-6)  # the median
    tenths = torch.arange(1, 10) / 10
    expected = -torch.log(-torch.log1p(-tenths))
    torch.testing.assert_close(gumbel((tenths * 2**32).long()), expected, atol=1e-5, rtol=0)


def lowbias32(x: int) -> int:
    """As its author writes it, in Python's unbounded integers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_the_hash_is_exact_in_64_bit_integers(words: list[int]) -> None:
    assert mixed(torch.tensor(words)).tolist() == [lowbias32(word) for word in words]
