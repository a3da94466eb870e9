"""Claims about the counts: many steps at once leave the requests as one step at a time does."""

import random

from hypothesis import given
from hypothesis import strategies as st

from mini_engine.serving.decode_clock import DecodeClock, Live


def blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def fill(rng: random.Random, block_size: int) -> tuple[DecodeClock, dict[int, list[int]]]:
    """A clock with requests that began at different times, and their [context, tokens to come]."""
    clock, plain = DecodeClock(block_size), {}
    for number in range(rng.randint(1, 12)):
        prompt, output = rng.randint(1, 30), rng.randint(2, 40)
        clock.begin(Live(number, 0.0, prompt, output, generated=1, computed=prompt))
        plain[number] = [prompt, output - 1]
        if rng.random() < 0.5:
            steps = rng.randint(1, clock.steps_to_ending())
            ended = clock.advance(steps)
            for entry in plain.values():
                entry[0] += steps
                entry[1] -= steps
            assert [live.number for live in ended] == [n for n, e in plain.items() if e[1] == 0]
            plain = {n: entry for n, entry in plain.items() if entry[1] > 0}
    if not plain:
        clock.begin(Live(99, 0.0, 3, 9, generated=1, computed=3))
        plain[99] = [3, 8]
    return clock, plain


seeds = st.integers(0, 2**32)


@given(seed=seeds, block_size=st.integers(1, 9), steps=st.integers(1, 40))
def test_counts_are_those_of_the_requests_one_by_one(
    seed: int, block_size: int, steps: int
) -> None:
    clock, plain = fill(random.Random(seed), block_size)
    contexts = [context for context, _ in plain.values()]
    assert len(clock) == len(plain)
    assert clock.kv_tokens == sum(context + 1 for context in contexts)
    assert clock.steps_to_ending() == min(left for _, left in plain.values())
    taken = [
        sum(blocks(c + k, block_size) - blocks(c, block_size) for c in contexts)
        for k in range(steps + 1)
    ]
    assert clock.blocks_due == taken[1]
    assert [clock.blocks_taken(k) for k in range(steps + 1)] == taken


@given(seed=seeds, block_size=st.integers(1, 9), free=st.integers(0, 40), most=st.integers(1, 50))
def test_steps_with_blocks_is_the_largest_number_that_fits(
    seed: int, block_size: int, free: int, most: int
) -> None:
    clock, _ = fill(random.Random(seed), block_size)
    steps = clock.steps_with_blocks(free, most)
    assert 0 <= steps <= most
    assert clock.blocks_taken(steps) <= free
    assert steps == most or clock.blocks_taken(steps + 1) > free


@given(seed=seeds, steps=st.integers(1, 30))
def test_the_youngest_leaves_with_its_progress_and_its_ending_is_forgotten(
    seed: int, steps: int
) -> None:
    clock, plain = fill(random.Random(seed), 4)
    clock.advance(min(steps, clock.steps_to_ending() - 1))
    youngest, (context, left) = list(plain.items())[-1]
    advanced = clock.now  # contexts of `plain` are those before this advance
    live = clock.evict_youngest()
    assert live.number == youngest
    assert live.output - live.generated == live.ends_at - advanced
    assert live.computed - context == left - (live.output - live.generated)
    assert len(clock) == len(plain) - 1
    # It comes back with more to compute, and does not end at its old time.
    if len(clock):
        old = live.ends_at
        live.generated -= 1
        live.computed = live.prompt + live.generated - 1
        clock.begin(live)
        while len(clock):
            ended = clock.advance(clock.steps_to_ending())
            assert ended
            assert all(one is not live for one in ended) or clock.now == live.ends_at == old + 1


@given(seed=seeds)
def test_requests_that_end_together_end_in_order_of_arrival(seed: int) -> None:
    rng, clock = random.Random(seed), DecodeClock(4)
    numbers = rng.sample(range(100), 6)
    for number in numbers:
        clock.begin(Live(number, 0.0, rng.randint(1, 9), 5, generated=1, computed=1))
    assert clock.advance(3) == []
    assert [live.number for live in clock.advance(1)] == sorted(numbers)
