"""Lab 10: who runs when, and in whose memory. What you write is held against the rules, played by
hand, and against a text that comes out wrong when one token lies in the wrong place.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.blocks import NULL_BLOCK, BlockPool, OutOfBlocks, usable_blocks
from mini_engine.engine.scheduler import Scheduler

STEPS = 3000  # no workload here takes a tenth of it


def scheduler(
    *, seqs: int = 8, budget: int = 16, blocks: int = 100, block_size: int = 4, reserve: bool = True
) -> Scheduler:
    return Scheduler(SchedulerLimits(min(seqs, budget), budget, blocks, block_size, 400, reserve))


def request(name: str, prompt: int, new: int) -> Request:
    return Request(name, range(prompt), new)


def run_step(s: Scheduler) -> ScheduledBatch:
    """One step in which every entry that samples gets token 0."""
    batch = s.step()
    assert batch is not None, "step() has nothing to do, and requests are unfinished"
    s.update(batch, [0] * sum(entry.samples for entry in batch.entries))
    return batch


def shares(batch: ScheduledBatch) -> list[tuple[str, int, int]]:
    """(request, first position, tokens) of each entry."""
    return [(e.request.request_id, e.start, e.query_len) for e in batch.entries]


def names(requests: Sequence[Request]) -> list[str]:
    return [r.request_id for r in requests]


# ---------------------------------------------------------------- blocks


@pytest.mark.catches("null-block-is-handed-out")
def test_every_block_but_the_null_block_is_usable() -> None:
    for num_blocks in (2, 3, 10, 500):
        assert sorted(usable_blocks(num_blocks)) == list(range(1, num_blocks))


@pytest.mark.catches("table-is-made-anew")
def test_a_table_that_grows_keeps_its_blocks_and_takes_only_what_is_missing() -> None:
    pool, table = BlockPool(20, 4), ()
    for num_tokens in range(1, 30):
        longer = pool.allocate("a", num_tokens)
        assert type(longer) is tuple, "who holds an earlier table would see a list grow"
        assert longer[: len(table)] == table, "blocks that hold its keys were taken away"
        assert len(longer) == -(-num_tokens // 4), f"blocks of 4 for {num_tokens} tokens"
        assert longer == pool.block_table("a")
        assert pool.num_free == 19 - len(longer)
        table = longer
    assert pool.allocate("a", 3) == table, "asked for less, it gives nothing back"


@pytest.mark.catches("blocks-from-the-front")
def test_blocks_are_taken_from_the_end_of_the_free_ones() -> None:
    pool = BlockPool(10, 4)
    free = usable_blocks(10)
    assert pool.allocate("a", 9) == (free[-1], free[-2], free[-3])
    assert pool.allocate("b", 1) == (free[-4],)
    pool.free("a")  # its last block is on top now
    assert pool.allocate("c", 8) == (free[-3], free[-2]), "those that came back last"


@pytest.mark.catches("takes-what-there-is")
def test_who_finds_too_few_blocks_gets_none_of_them() -> None:
    pool = BlockPool(4, 2)
    table = pool.allocate("a", 2)
    for name, num_tokens in (("a", 9), ("b", 5)):
        with pytest.raises(OutOfBlocks):
            pool.allocate(name, num_tokens)
        assert (pool.block_table("a"), pool.block_table("b")) == (table, ())
        assert pool.num_free == 2, f"free blocks after {name} was refused"
    assert len(pool.allocate("b", 4)) == 2  # all that is left is still to be had


@pytest.mark.catches("refused-but-listed")
def test_who_was_refused_holds_nothing_that_could_be_freed() -> None:
    pool = BlockPool(4, 2)
    with pytest.raises(OutOfBlocks):
        pool.allocate("a", 9)
    assert pool.allocate("a", 0) == (), "no token needs no block"
    with pytest.raises(ValueError):
        pool.free("a")
    pool.allocate("a", 2)
    with pytest.raises(OutOfBlocks):
        pool.allocate("a", 9)
    pool.free("a")
    assert pool.num_free == 3


@pytest.mark.catches("given-back-in-another-order")
def test_who_comes_after_a_refusal_gets_the_blocks_that_were_next_before_it() -> None:
    rng = random.Random(6)
    for _ in range(40):
        names, num_blocks = "abcd", rng.randint(6, 12)
        asked, refused = BlockPool(num_blocks, 2), BlockPool(num_blocks, 2)
        for pool in (asked, refused):
            for name in names:
                pool.allocate(name, 2)
        for name in rng.sample(names, 3):
            asked.free(name)
            refused.free(name)
        left = refused.num_free
        with pytest.raises(OutOfBlocks):
            refused.allocate("e", 2 * left + 1)
        given, expected = refused.allocate("f", 2 * left), asked.allocate("f", 2 * left)
        assert given == expected, f"all {left} free blocks, after a request for {left + 1} of them"


def test_no_block_has_two_owners_whatever_is_asked_and_given_back() -> None:
    rng = random.Random(1)
    for _ in range(30):
        num_blocks, block_size = rng.randint(2, 20), rng.randint(1, 5)
        pool = BlockPool(num_blocks, block_size)
        for _ in range(40):
            name = rng.choice("abcd")
            try:
                if pool.block_table(name) and rng.random() < 0.3:
                    pool.free(name)
                else:
                    pool.allocate(name, rng.randint(1, 2 * num_blocks))
            except OutOfBlocks:
                pass
            held = [block for name in "abcd" for block in pool.block_table(name)]
            assert len(set(held)) == len(held), "a block has two owners"
            assert NULL_BLOCK not in held
            assert len(held) + pool.num_free == num_blocks - 1, "blocks were lost"


# ---------------------------------------------------------------- a request's share


def known(prompt: int, written: int, computed: int, prefill: int) -> RequestState:
    """A request with so many tokens of each kind."""
    return RequestState(request("a", prompt, 50), [0] * written, computed, prefill)


@pytest.mark.catches("chunk-exceeds-the-budget", "every-chunk-samples")
def test_a_share_is_what_is_known_and_not_computed_as_far_as_the_budget_goes() -> None:
    rng = random.Random(4)
    for _ in range(200):
        prompt, written = rng.randint(1, 9), rng.randint(0, 5)
        computed, prefill = rng.randint(0, prompt + written - 1), rng.randint(1, prompt + written)
        budget = rng.randint(1, 12)
        s, state = scheduler(block_size=3), known(prompt, written, computed, prefill)
        entry = s._try_schedule(state, budget)
        assert entry is not None
        tokens = min(prompt + written - computed, budget)
        case = f"prompt {prompt}, written {written}, computed {computed}, budget {budget}"
        assert entry.state is state
        share, samples, is_prefill = (entry.start, entry.query_len), entry.samples, entry.is_prefill
        reaches_the_end, below_prefill = computed + tokens == prompt + written, computed < prefill
        blocks, needed = len(entry.block_table), -(-(computed + tokens) // 3)
        assert share == (computed, tokens), f"first position and tokens: {case}"
        assert samples == reaches_the_end, case
        assert is_prefill == below_prefill, f"{case}, num_prefill {prefill}"
        assert blocks == needed, f"blocks of 3: {case}"
        assert entry.block_table == s.pool.block_table("a")
        counts = (len(state.output), state.num_computed, state.num_prefill)
        assert counts == (written, computed, prefill), "a share changes nothing of its request"


@pytest.mark.catches("takes-what-there-is")
def test_a_share_without_blocks_is_none_and_nothing_has_changed() -> None:
    s, state = scheduler(blocks=4, block_size=2), known(9, 0, 0, 9)
    assert s._try_schedule(state, 7) is None, "7 tokens need 4 blocks of 2, and there are 3"
    assert (s.pool.num_free, s.pool.block_table("a")) == (3, ())
    assert (state.num_computed, state.num_prefill, state.num_preemptions) == (0, 9, 0)
    entry = s._try_schedule(state, 6)
    assert entry is not None, "6 tokens fit"
    assert entry.query_len == 6


@pytest.mark.catches("every-error-is-a-shortage")
def test_an_error_that_is_no_shortage_of_blocks_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> tuple[int, ...]:
        raise error

    for error in (RuntimeError("the table is broken"), KeyError("a"), ValueError("-1 tokens")):
        s, state = scheduler(), known(9, 0, 0, 9)
        monkeypatch.setattr(s.pool, "allocate", broken)
        with pytest.raises(type(error)):
            s._try_schedule(state, 7)


# ---------------------------------------------------------------- the youngest gives way


@pytest.mark.catches("preempts-the-oldest", "victim-keeps-its-blocks", "victim-keeps-its-place",
                     "victim-goes-to-the-back")  # fmt: skip
def test_the_last_that_came_gives_its_blocks_back_and_waits_at_the_front() -> None:
    s = scheduler(block_size=2)
    for name in "abcd":
        s.submit(request(name, 3, 4))
    for _ in range(3):
        state = s.waiting.popleft()
        state.output, state.num_computed, state.num_prefill = [7, 8], 4, 3
        state.num_preemptions = len(s.running)
        s.pool.allocate(state.request.request_id, 4)
        s.running.append(state)
    c = s.running[2]
    s.running[0].output = [7]  # who has written least need not be the youngest
    assert s._preempt_youngest() is c.request, "the request that was preempted"
    assert [state.request.request_id for state in s.running] == ["a", "b"]
    assert [state.request.request_id for state in s.waiting] == ["c", "d"]
    assert s.pool.block_table("c") == ()
    assert s.pool.num_free == 99 - 4, "free blocks: a and b hold two each"
    assert (c.num_computed, c.output, c.num_preemptions) == (0, [7, 8], 2 + 1)
    s._preempt_youngest()
    assert [state.request.request_id for state in s.waiting] == ["b", "c", "d"]
    assert [state.num_preemptions for state in s.waiting] == [1 + 1, 2 + 1, 0]


# ---------------------------------------------------------------- those who run


def running(s: Scheduler, **written: int) -> Scheduler:
    """Requests with prompts of 2 that have written so many tokens; the last one is not computed."""
    for name, tokens in written.items():
        state = RequestState(request(name, 2, 50), [0] * tokens, 1 + tokens, 2)
        s.pool.allocate(name, state.num_computed)
        s.running.append(state)
    return s


@pytest.mark.catches("prompts-first")
def test_running_requests_get_their_tokens_oldest_first_and_the_rest_of_the_budget_is_left() -> (
    None
):
    for budget, expected, left in ((8, "abc", 5), (3, "abc", 0)):
        s = running(scheduler(budget=budget, seqs=3), a=2, b=1, c=3)
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        assert s._schedule_running(scheduled, preempted) == left, f"left of a budget of {budget}"
        assert [entry.request.request_id for entry in scheduled] == list(expected)
        assert [entry.query_len for entry in scheduled] == [1, 1, 1]
        assert not preempted
        assert names([state.request for state in s.running]) == ["a", "b", "c"]


def test_the_oldest_takes_what_it_lacks_and_preempts_as_often_as_it_must() -> None:
    """6 blocks of 1. a holds 2 and lacks 4 tokens; b holds 2, and c the last two."""
    for budget, tokens, expected in ((4, 4, ["c", "b"]), (3, 3, ["c", "b"]), (2, 2, ["c"])):
        s = running(scheduler(blocks=7, block_size=1, budget=budget, seqs=1), a=1, b=1, c=1)
        s.running[0].output += [0] * 3
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        assert s._schedule_running(scheduled, preempted) == 0, "left of the budget"
        found = [(e.request.request_id, e.query_len) for e in scheduled]
        assert found == [("a", tokens)], f"budget {budget}: oldest first"
        assert names(preempted) == expected, f"budget {budget}: who was preempted"


def test_one_that_lacks_many_blocks_preempts_many() -> None:
    """24 blocks of 1, two for each of twelve. The oldest lacks nine."""
    s = scheduler(blocks=25, block_size=1, budget=16, seqs=12)
    s = running(s, **dict.fromkeys("abcdefghijkl", 1))
    s.running[0].output += [0] * 8
    scheduled: list[ScheduledRequest] = []
    preempted: list[Request] = []
    s._schedule_running(scheduled, preempted)
    assert (scheduled[0].request.request_id, scheduled[0].query_len) == ("a", 9)
    assert names(preempted)[:5] == list("lkjih")


# ---------------------------------------------------------------- those who wait


@pytest.mark.catches("a-chunk-is-enough", "what-it-wrote-needs-no-room")
def test_one_may_enter_with_room_for_all_that_it_knows_unless_nothing_is_reserved() -> None:
    for prompt, written, reserve, expected in (
        (8, 0, True, True),  # 4 blocks of 2 are free
        (9, 0, True, False),
        (5, 3, True, True),
        (5, 4, True, False),  # what it wrote is computed again, too
        (9, 0, False, True),
        (5, 40, False, True),
    ):
        s = scheduler(blocks=5, block_size=2, reserve=reserve)
        may = s._may_enter(known(prompt, written, 0, 0))
        assert may == expected, f"prompt {prompt}, written {written}, reserve {reserve}"
        assert s.pool.num_free == 4, "asking takes no blocks"
        table = s.pool.allocate("b", 8)
        assert table == BlockPool(5, 2).allocate("b", 8), "nor does it change which are next"


def test_blocks_of_a_prefix_that_others_hold_need_no_room() -> None:
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=16, num_blocks=8, block_size=2, max_model_len=32,
        prefix_caching=True,
    )  # fmt: skip
    s = Scheduler(limits)  # 7 blocks
    s.submit(Request("a", range(8), 4))
    run_step(s)
    s.submit(Request("b", [0, 1, 2, 3, 4, 5, 90, 91], 4))
    assert shares(run_step(s)) == [("a", 8, 1), ("b", 6, 2)], "b lacks one block, and two are free"
    assert s.pool.block_table("b")[:3] == s.pool.block_table("a")[:3], "three blocks are shared"


@pytest.mark.catches("what-it-lacks-must-fit")
def test_blocks_of_a_prefix_make_room_once_and_not_twice() -> None:
    """b knows 20 tokens. Of their 10 blocks a holds 3, and its first chunk of 7 takes 4 more."""
    for num_blocks, expected in ((13, True), (12, False)):
        limits = SchedulerLimits(
            max_num_seqs=4, max_num_batched_tokens=8, num_blocks=num_blocks, block_size=2,
            max_model_len=32, prefix_caching=True,
        )  # fmt: skip
        s = Scheduler(limits)
        s.submit(Request("a", range(8), 4))
        run_step(s)
        s.submit(Request("b", [0, 1, 2, 3, 4, 5, *range(90, 104)], 1))
        batch = run_step(s)  # a takes a fifth block
        entered = "b" in [name for name, *_ in shares(batch)]
        assert entered == expected, f"b lacks 7 blocks, and {num_blocks - 1 - 5} are free"
        if entered:
            num_prefill = s.running[1].num_prefill
            assert num_prefill == 20, "all that b knows, with what the cache holds of it"


@pytest.mark.catches("a-resumed-request-decodes", "the-door-reads-the-last-count")
def test_who_is_admitted_moves_from_the_line_to_those_who_run() -> None:
    s = scheduler(budget=16, blocks=9, block_size=2)  # 8 blocks
    for name, prompt, written in (("a", 3, 2), ("b", 4, 0), ("c", 14, 0), ("d", 1, 0)):
        s.waiting.append(RequestState(request(name, prompt, 50), [0] * written))
    scheduled: list[ScheduledRequest] = []
    s._schedule_waiting(scheduled, 16)
    assert [(e.request.request_id, e.query_len) for e in scheduled] == [("a", 5), ("b", 4)]
    assert names([state.request for state in s.running]) == ["a", "b"]
    assert names([state.request for state in s.waiting]) == ["c", "d"], "c needs 7 blocks of 3"
    assert [state.num_prefill for state in s.running] == [5, 4], "known tokens, its own included"
    assert [e.is_prefill for e in scheduled] == [True, True]


def test_nobody_is_admitted_without_budget_or_a_free_seat() -> None:
    for budget, seqs, expected in ((0, 3, ""), (5, 3, "ab"), (16, 3, "abc"), (16, 2, "ab")):
        s = scheduler(budget=16, seqs=seqs)
        for name in "abcd":
            s.submit(request(name, 4, 2))
        scheduled: list[ScheduledRequest] = []
        s._schedule_waiting(scheduled, budget)
        found = [entry.request.request_id for entry in scheduled]
        assert found == list(expected), f"budget {budget}, at most {seqs} requests"
        assert sum(entry.query_len for entry in scheduled) <= budget


def test_the_budget_is_spent_once_however_many_come() -> None:
    s = scheduler(seqs=300, budget=300, blocks=900)
    for number in range(200):
        s.submit(request(str(number), 2, 4))
    batch = s.step()
    assert batch is not None
    assert sum(entry.query_len for entry in batch.entries) == 300
    assert len(s.waiting) == 50


def test_seats_are_taken_by_all_who_run_also_by_those_without_a_share() -> None:
    s = running(scheduler(seqs=3), a=1, b=1)
    for name in "cd":
        s.submit(request(name, 4, 2))
    scheduled: list[ScheduledRequest] = []
    s._schedule_waiting(scheduled, 16)
    assert [entry.request.request_id for entry in scheduled] == ["c"], "one seat of three is free"


# ---------------------------------------------------------------- chunks and decodes, step by step


@pytest.mark.catches("every-chunk-samples")
def test_a_chunk_samples_when_it_reaches_the_last_known_token() -> None:
    s = scheduler(budget=5)
    s.submit(request("a", 12, 3))
    for tokens, samples in ((5, False), (5, False), (2, True), (1, True), (1, True)):
        (entry,) = run_step(s).entries
        assert (entry.query_len, entry.samples) == (tokens, samples)
    assert not s.has_unfinished


@pytest.mark.catches("blocks-for-the-longest-answer")
def test_a_request_holds_blocks_for_what_is_computed_and_no_more() -> None:
    s = scheduler(budget=6, block_size=4)
    s.submit(request("a", 10, 50))
    held = [len(run_step(s).entries[0].block_table) for _ in range(4)]
    assert held == [2, 3, 3, 3]  # for 6, 10, 11 and 12 tokens
    assert len(run_step(s).entries[0].block_table) == 4


@pytest.mark.catches("one-token-is-a-decode", "the-door-reads-the-last-count")
def test_a_chunk_of_one_token_is_prefill_and_a_decode_is_not() -> None:
    s = scheduler(budget=4)
    s.submit(request("a", 5, 3))
    assert [run_step(s).has_prefill for _ in range(4)] == [True, True, False, False]


# ---------------------------------------------------------------- when blocks run out


def two_that_collide() -> Scheduler:
    """4 blocks of 2. a and b have two blocks each; with its 5th token, a needs one more."""
    s = scheduler(blocks=5, block_size=2)
    s.submit(request("a", 3, 4))
    s.submit(request("b", 3, 4))
    run_step(s)
    run_step(s)
    return s


@pytest.mark.catches("victim-keeps-its-place")
def test_a_victim_has_nothing_computed_and_keeps_what_it_wrote() -> None:
    s = two_that_collide()
    run_step(s)
    (victim,) = s.waiting
    computed, written = victim.num_computed, len(victim.output)
    assert computed == 0, "tokens that are computed, though their keys and values are gone"
    assert (written, victim.num_preemptions) == (2, 1)


@pytest.mark.catches("recomputes-the-prompt-alone")
def test_a_victim_computes_its_prompt_and_what_it_wrote_again() -> None:
    s = two_that_collide()
    seen = []
    while s.has_unfinished:
        seen += [share for share in shares(run_step(s)) if share[0] == "b"]
    assert seen == [("b", 0, 5), ("b", 5, 1)]  # 3 tokens of its prompt and 2 of its own


@pytest.mark.catches("a-resumed-request-decodes")
def test_what_a_victim_computes_again_is_prefill_to_its_last_token() -> None:
    """6 blocks of 2. When a needs a fourth, b has 3 prompt tokens and 4 of its own: 6 + 1."""
    s = scheduler(budget=6, blocks=7, block_size=2)
    s.submit(request("a", 3, 5))
    s.submit(request("b", 3, 7))
    again = []
    while s.has_unfinished:
        for e in run_step(s).entries:
            if e.state.num_preemptions:
                again.append((e.start, e.query_len, "prefill" if e.is_prefill else "decode"))
    assert again == [(0, 6, "prefill"), (6, 1, "prefill"), (7, 1, "decode"), (8, 1, "decode")]


def test_several_are_preempted_if_one_is_not_enough_and_at_last_oneself() -> None:
    # 6 blocks of 1: a holds 2, b and c hold 2 each; a's third token takes c's, and so on
    s = scheduler(blocks=7, block_size=1)
    for name in "abc":
        s.submit(request(name, 2, 4))
    run_step(s)
    second = run_step(s)  # a takes the place of c; b then takes the other
    assert (shares(second), names(second.preempted)) == ([("a", 2, 1), ("b", 2, 1)], ["c"])
    third = run_step(s)  # 6 blocks: a has 3 and needs 4, so b goes
    assert (shares(third), names(third.preempted)) == ([("a", 3, 1)], ["b"])


def test_a_step_that_preempts_admits_nobody() -> None:
    s = two_that_collide()
    s.submit(request("c", 1, 1))  # would fit into the blocks of b
    assert shares(run_step(s)) == [("a", 4, 1)]


# ---------------------------------------------------------------- who comes first


@pytest.mark.catches("prompts-first")
def test_decodes_are_served_before_the_rest_of_a_prompt() -> None:
    s = scheduler(budget=4)
    s.submit(request("a", 2, 9))
    s.submit(request("b", 30, 2))
    assert shares(run_step(s)) == [("a", 0, 2), ("b", 0, 2)]
    for i in range(5):
        assert shares(run_step(s)) == [("a", 2 + i, 1), ("b", 2 + 3 * i, 3)]


def test_prompts_share_a_step_until_the_budget_is_spent() -> None:
    s = scheduler(budget=16)
    for name, prompt in (("a", 10), ("b", 10), ("c", 3)):
        s.submit(request(name, prompt, 2))
    assert shares(run_step(s)) == [("a", 0, 10), ("b", 0, 6)]
    assert shares(run_step(s)) == [("a", 10, 1), ("b", 6, 4), ("c", 0, 3)]


@pytest.mark.catches("a-chunk-is-enough")
def test_a_prompt_enters_when_all_of_it_has_room() -> None:
    """6 blocks of 4. a grows to 4 of them; the prompt of b needs 5, its chunks 2 each."""
    s = scheduler(budget=8, blocks=7)
    s.submit(request("a", 7, 7))
    s.submit(request("b", 20, 1))
    seen = []
    while s.has_unfinished:
        batch = run_step(s)
        assert not batch.preempted, "b entered for a chunk, and was in the way of a"
        seen.append(shares(batch))
    assert seen[:7] == [[("a", 0, 7)], *([("a", 7 + i, 1)] for i in range(6))]
    assert seen[7:] == [[("b", 0, 8)], [("b", 8, 8)], [("b", 16, 4)]]


def test_without_the_reserve_room_for_a_chunk_is_enough() -> None:
    """b enters three times in vain, and ends in the same step as with the reserve."""
    s = scheduler(budget=8, blocks=7, reserve=False)
    s.submit(request("a", 7, 7))
    s.submit(request("b", 20, 1))
    batches = []
    while s.has_unfinished:
        batches.append(run_step(s))
    first, second, third, *_ = [shares(batch) for batch in batches]
    assert first == [("a", 0, 7), ("b", 0, 1)]
    assert second == [("a", 7, 1), ("b", 1, 7)]
    assert third == [("a", 8, 1)]
    assert sum(len(batch.preempted) for batch in batches) == 3
    computed = sum(n for batch in batches for name, _, n in shares(batch) if name == "b")
    assert (len(batches), computed) == (10, 20 + 22)


@pytest.mark.catches("what-it-wrote-needs-no-room")
def test_a_victim_comes_back_when_what_it_wrote_has_room_too() -> None:
    """3 blocks of 2. While a holds two, there is one for b: room for its prompt and one more."""
    s = scheduler(budget=3, blocks=4, block_size=2)
    s.submit(request("a", 1, 4))
    s.submit(request("b", 1, 3))
    for _ in range(2):
        assert shares(run_step(s))[1][0] == "b"
    third = run_step(s)
    assert (shares(third), names(third.preempted)) == ([("a", 2, 1)], ["b"])
    assert shares(run_step(s)) == [("a", 3, 1)], "b knows 3 tokens, and there is room for 2"
    assert shares(run_step(s)) == [("b", 0, 3)]


@pytest.mark.catches("small-requests-overtake")
def test_nobody_overtakes_one_who_waits_for_blocks() -> None:
    s = scheduler(budget=40, blocks=7, block_size=4)  # 6 blocks: 24 tokens
    s.submit(request("a", 10, 6))
    s.submit(request("large", 14, 2))
    s.submit(request("small", 2, 1))
    arrived: list[str] = []
    while s.has_unfinished:
        arrived += [name for name, start, _ in shares(run_step(s)) if start == 0]
    assert arrived == ["a", "large", "small"]


# ---------------------------------------------------------------- all together


@dataclass
class Counted:
    """A request as the rules see it: numbers, no tokens and no blocks."""

    name: str
    known: int
    left: int  # tokens it still wants
    done: int = 0
    blocks: int = 0


@dataclass
class ByHand:
    """The rules at the top of scheduler.py, played with numbers alone."""

    limits: SchedulerLimits
    free: int
    waiting: list[Counted] = field(default_factory=list)
    running: list[Counted] = field(default_factory=list)

    def step(self) -> tuple[list[tuple[str, int, int]], list[str]]:
        """(name, start, query_len) of all who run, and who was preempted; then books the step."""
        budget, ran, out = self.limits.max_num_batched_tokens, [], []
        for one in list(self.running):
            if budget == 0 or one not in self.running:
                break
            tokens = min(budget, one.known - one.done)
            while self.missing(one, tokens) > self.free and one in self.running:
                victim = self.running[-1]
                self.running.remove(victim)
                self.free, victim.blocks, victim.done = self.free + victim.blocks, 0, 0
                self.waiting.insert(0, victim)
                out.append(victim.name)
            if one in self.running:
                ran.append(self.give(one, tokens))
                budget -= tokens
        while self.waiting and budget and not out and len(self.running) < self.limits.max_num_seqs:
            first = self.waiting[0]
            tokens = min(budget, first.known)
            reserved = first.known if self.limits.reserve_full_isl else tokens
            if self.missing(first, reserved) > self.free:
                break
            self.running.append(self.waiting.pop(0))
            ran.append(self.give(self.running[-1], tokens))
            budget -= tokens
        for one in list(self.running):
            if one.done == one.known:
                one.known, one.left = one.known + 1, one.left - 1
                if one.left == 0:
                    self.running.remove(one)
                    self.free += one.blocks
        return ran, out

    def missing(self, one: Counted, tokens: int) -> int:
        return -(-(one.done + tokens) // self.limits.block_size) - one.blocks

    def give(self, one: Counted, tokens: int) -> tuple[str, int, int]:
        self.free -= self.missing(one, tokens)
        one.blocks += self.missing(one, tokens)
        one.done += tokens
        return one.name, one.done - tokens, tokens


def random_case(rng: random.Random) -> tuple[SchedulerLimits, list[Request]]:
    """Little memory, so that many are preempted; every request fits when it is alone."""
    requests = []
    for i in range(rng.randint(1, 12)):
        prompt = [rng.randrange(100) for _ in range(rng.randint(1, 20))]
        requests.append(Request(f"{i:02}", prompt, rng.randint(1, 12)))
    block_size = rng.randint(1, 5)
    needed = max(-(-(len(r.prompt) + r.max_new_tokens - 1) // block_size) for r in requests)
    blocks = 1 + needed + rng.randint(0, 6)
    budget, reserve = rng.randint(1, 24), rng.random() < 0.5
    seqs = rng.randint(1, min(6, budget))
    return SchedulerLimits(seqs, budget, blocks, block_size, 400, reserve), requests


def test_every_step_is_the_one_that_the_rules_give() -> None:
    rng = random.Random(2)
    for _ in range(60):
        limits, todo = random_case(rng)
        s, rules, steps = Scheduler(limits), ByHand(limits, limits.num_blocks - 1), 0
        while todo or s.has_unfinished:
            for one in [todo.pop(0) for _ in range(min(len(todo), rng.randint(0, 3)))]:
                s.submit(one)
                rules.waiting.append(Counted(one.request_id, len(one.prompt), one.max_new_tokens))
            if s.has_unfinished:
                ran, out = rules.step()
                batch = run_step(s)
                assert shares(batch) == ran, f"(request, start, tokens) of step {steps}: {limits}"
                assert names(batch.preempted) == out, f"preempted in step {steps}: {limits}"
            steps += 1
            assert steps < STEPS, "requests that never end"
        assert s.pool.num_free == limits.num_blocks - 1, "blocks that nobody gave back"


def next_token(context: Sequence[int]) -> int:
    return zlib.crc32(bytes(context)) % 100


def alone(one: Request) -> list[int]:
    """What a request writes with no batch, no cache and no scheduler."""
    text = list(one.prompt)
    for _ in range(one.max_new_tokens):
        text.append(next_token(text))
    return text[len(one.prompt) :]


class Cache:
    """Runs batches as a model does that knows nothing but its KV cache.

    Each token is written to its slot; the next token is made of all that the block table finds.
    A graph pads the batch, and padded rows write to block 0.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.rows: list[tuple[int, int]] = [(-1, -1)] * (limits.num_blocks * limits.block_size)

    def slot(self, table: Sequence[int], position: int) -> int:
        block, offset = divmod(position, self.limits.block_size)
        return table[block] * self.limits.block_size + offset

    def run(self, batch: ScheduledBatch) -> list[int]:
        for entry in batch.entries:
            for position, token in enumerate(entry.token_ids, start=entry.start):
                self.rows[self.slot(entry.block_table, position)] = (position, token)
        for padded in range(self.limits.block_size):
            self.rows[NULL_BLOCK * self.limits.block_size + padded] = (-1, -1)
        return [self.sample(e.block_table, e.context_len) for e in batch.entries if e.samples]

    def sample(self, table: Sequence[int], length: int) -> int:
        found = [self.rows[self.slot(table, position)] for position in range(length)]
        for position, (stored, _) in enumerate(found):
            assert stored != -1, (
                f"position {position} was overwritten by a padded row, or never set"
            )
            assert stored == position, f"at position {position} stands a token of another place"
        return next_token([token for _, token in found])


@pytest.mark.catches("null-block-is-handed-out")
def test_every_request_writes_what_it_would_write_alone() -> None:
    rng = random.Random(3)
    preempted = 0
    for _ in range(40):
        limits, requests = random_case(rng)
        s, cache, written, steps = Scheduler(limits), Cache(limits), {}, 0
        for one in requests:
            s.submit(one)
        while s.has_unfinished:
            batch = s.step()
            assert batch is not None, "step() has nothing to do, and requests are unfinished"
            assert batch.num_tokens <= limits.max_num_batched_tokens, "tokens over the budget"
            assert batch.num_reqs <= limits.max_num_seqs
            preempted += len(batch.preempted)
            for state in s.update(batch, cache.run(batch))[1]:
                written[state.request.request_id] = state.output
            steps += 1
            assert steps < STEPS, "requests that never end"
        assert written == {one.request_id: alone(one) for one in requests}
        assert s.pool.num_free == limits.num_blocks - 1, "blocks that nobody gave back"
    assert preempted > 50, "these workloads are meant to run out of blocks"
