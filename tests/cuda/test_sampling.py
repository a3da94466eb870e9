"""cuda/sampling.py: the right distribution, and the same draw in any batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.sampling import TemperatureSampler, _mixed, greedy, gumbel  # noqa: E402

CPU = torch.device("cpu")
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def draws(temperature: float, count: int = 40_000, seed: int = 5) -> np.ndarray:
    """One request, `count` tokens from the same logits at consecutive positions."""
    sampler = TemperatureSampler(count, len(LOGITS), CPU)
    sampler.set_rows([temperature] * count, [seed] * count)
    drawn: np.ndarray = sampler(LOGITS.expand(count, -1), torch.arange(count)).numpy()
    return drawn


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    drawn = draws(temperature)
    expected = torch.softmax(LOGITS / temperature, -1).numpy() * len(drawn)
    # Counts spread by sqrt(n p (1 - p)) < sqrt(expected); five of these, and the seed is fixed.
    counts = np.bincount(drawn, minlength=len(LOGITS))
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_consecutive_draws_are_independent() -> None:
    drawn = draws(1.0)
    p = torch.softmax(LOGITS, -1).numpy()
    pairs = np.bincount(drawn[:-1] * len(p) + drawn[1:], minlength=len(p) ** 2)
    expected = np.outer(p, p).ravel() * (len(drawn) - 1)
    enough = expected > 5
    assert (np.abs(pairs - expected) < 5 * np.sqrt(expected))[enough].all()


def test_two_seeds_draw_differently_and_one_seed_the_same() -> None:
    one, same, other = draws(1.0, 500), draws(1.0, 500), draws(1.0, 500, seed=6)
    assert (one == same).all()
    p = torch.softmax(LOGITS, -1)
    # Independent draws meet with probability sum p² = 0.36; five spreads of 500 coins are 0.11.
    assert abs((one == other).mean() - float((p * p).sum())) < 0.11


def test_temperature_zero_is_greedy_and_temperatures_may_be_mixed() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 50)
    sampler = TemperatureSampler(64, 50, CPU)
    sampler.set_rows([0.0, 5.0] * 32, list(range(64)))
    drawn, largest = sampler(logits, torch.arange(64)), greedy(logits, torch.arange(64))
    assert drawn.dtype == largest.dtype == torch.int32
    assert torch.equal(drawn[::2], largest[::2])
    assert (drawn[1::2] != largest[1::2]).float().mean() > 0.5


@given(
    rows=st.permutations(range(4)),
    seeds=st.lists(st.integers(-(2**31), 2**40), min_size=4, max_size=4),
    length=st.integers(1, 4),
)
def test_a_request_draws_the_same_token_in_any_row_beside_anyone(
    rows: list[int], seeds: list[int], length: int
) -> None:
    torch.manual_seed(3)
    logits, context_lens = torch.randn(4, 200), torch.tensor([7, 8, 3000, 7], dtype=torch.int32)
    sampler = TemperatureSampler(4, 200, CPU)
    sampler.set_rows([1.5] * 4, seeds)
    all_four = sampler(logits, context_lens)
    chosen = rows[:length]
    sampler.set_rows([1.5] * length, [seeds[i] for i in chosen])
    assert torch.equal(sampler(logits[chosen], context_lens[chosen]), all_four[chosen])


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
    assert _mixed(torch.tensor(words)).tolist() == [lowbias32(word) for word in words]


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf")])
def test_a_temperature_that_means_nothing_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature is"):
        TemperatureSampler(2, 8, CPU).set_rows([1.0, temperature], [0, 0])
