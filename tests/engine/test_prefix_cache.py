"""Claims about the prefix cache: who shares which blocks, and that nobody's text changes by it."""

import random
from collections import Counter

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, RequestState, SchedulerLimits
from mini_engine.engine.blocks import OutOfBlocks
from mini_engine.engine.prefix_cache import SharingPool, block_key
from mini_engine.engine.scheduler import Scheduler
from tests.support.fake_runner import FakeRunner, tokens_alone


def scheduler(
    *, seqs: int = 8, budget: int = 64, blocks: int = 50, block_size: int = 4, reserve: bool = True
) -> Scheduler:
    limits = SchedulerLimits(seqs, budget, blocks, block_size, 400, reserve, prefix_caching=True)
    return Scheduler(limits)


def run_step(s: Scheduler, token: int = 0) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """One step: start, query_len and block table of each request; all sample `token`."""
    batch = s.step()
    assert batch is not None
    s.update(batch, [token] * sum(entry.samples for entry in batch.entries))
    return {e.request.request_id: (e.start, e.query_len, e.block_table) for e in batch.entries}


def pool_of(s: Scheduler) -> SharingPool:
    assert s.prefix_cache is not None
    return s.prefix_cache


# ---------------------------------------------------------------- who hits what


def test_an_equal_prefix_is_found_in_whole_blocks_and_computed_once() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], 3))
    assert run_step(s)["a"] == (0, 9, (1, 2, 3))
    s.submit(Request("b", [1, 2, 3, 4, 5, 6, 7, 8, 9], 3))
    s.submit(Request("c", [1, 2, 3, 4, 5, 6, 7, 99], 3))
    ran = run_step(s)
    assert ran["b"] == (8, 1, (1, 2, 4))
    assert ran["c"] == (4, 4, (1, 5))
    assert [pool_of(s).owners[block] for block in (1, 2, 3)] == [3, 2, 1]
    assert (s.first_hits.asked, s.first_hits.hit) == (9 + 9 + 8, 8 + 4)


def test_a_request_of_the_same_step_is_hit_already() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 2, 3, 4, 5], 1))
    s.submit(Request("b", [1, 2, 3, 4, 6], 1))
    assert run_step(s) == {"a": (0, 5, (1, 2)), "b": (4, 1, (1, 3))}


def test_a_prompt_of_cached_blocks_alone_computes_its_last_block_again() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 2, 3, 4, 5, 6, 7, 8], 9))
    run_step(s)
    s.submit(Request("b", [1, 2, 3, 4, 5, 6, 7, 8], 9))
    assert run_step(s)["b"] == (4, 4, (1, 4))


def test_a_prompt_that_goes_on_where_an_answer_ended_finds_the_answer() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 2, 3], 6))
    while s.has_unfinished:
        run_step(s, token=5)
    s.submit(Request("next turn", [1, 2, 3, 5, 5, 5, 5, 5, 5, 8], 1))
    assert run_step(s)["next turn"][0] == 8  # the answer's last token was never fed back


def test_an_equal_block_after_another_beginning_is_no_hit() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 1, 1, 1, 2, 2, 2, 2, 3], 9))
    run_step(s)
    s.submit(Request("b", [9, 9, 9, 9, 2, 2, 2, 2, 3], 9))
    assert run_step(s)["b"][0] == 0


def test_a_block_is_cached_by_the_chunk_that_fills_it() -> None:
    s = scheduler(seqs=2, budget=6)
    s.submit(Request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], 9))
    assert run_step(s)["a"] == (0, 6, (1, 2))
    probe = RequestState(Request("probe", [1, 2, 3, 4, 5, 6, 7, 8, 9], 1))
    assert pool_of(s).look_up("probe", probe) == 4
    run_step(s)
    assert pool_of(s).look_up("probe", probe) == 8


def test_two_that_could_not_know_of_each_other_keep_a_copy_each_and_the_older_is_found() -> None:
    s = scheduler()
    pool, copies = pool_of(s), []
    for name in "ab":  # both looked up before either has blocks
        state = RequestState(Request(name, [1, 2, 3, 4, 5], 1))
        assert pool.look_up(name, state) == 0
    for name in "ab":
        copies.append(pool.allocate(name, 5)[0])
    key = block_key(b"", [1, 2, 3, 4])
    assert pool.blocks.find(key) == copies[0]
    pool.blocks.evict(copies[0])
    assert pool.blocks.find(key) == copies[1]
    pool.blocks.evict(copies[1])
    assert pool.blocks.find(key) is None


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    s = scheduler(blocks=6, block_size=2, seqs=2)
    s.submit(Request("a", [1, 2, 3], 5))
    s.submit(Request("b", [4, 5, 6], 3))
    run_step(s)
    assert set(run_step(s)) == {"a", "b"}
    preempted: list[str] = []
    while not preempted:
        batch = s.step()
        assert batch is not None
        preempted = [request.request_id for request in batch.preempted]
        s.update(batch, [0] * batch.num_reqs)
    assert preempted == ["b"]
    ran = run_step(s)
    while "b" not in ran:
        ran = run_step(s)
    assert ran["b"][0] > 0
    assert (s.resumed_hits.asked, s.resumed_hits.hit) == (ran["b"][0] + ran["b"][1], ran["b"][0])


# ---------------------------------------------------------------- which block is next


def test_a_freed_request_gives_back_its_last_block_first_and_keyless_ones_are_next() -> None:
    s = scheduler(blocks=8)
    s.submit(Request("a", range(10), 1))  # two full blocks and a part of one
    run_step(s)
    assert tuple(pool_of(s).blocks) == (3, 4, 5, 6, 7, 2, 1)
    s.submit(Request("b", range(90, 110), 1))
    assert run_step(s)["b"][2] == (3, 4, 5, 6, 7)
    assert tuple(pool_of(s).blocks) == (2, 1, 7, 6, 5, 4, 3)


def test_a_block_that_is_handed_out_again_is_not_found_any_more() -> None:
    s = scheduler(blocks=4)
    s.submit(Request("a", range(9), 1))
    run_step(s)
    s.submit(Request("b", range(90, 98), 1))  # takes the keyless block and the tail of a
    run_step(s)
    s.submit(Request("a again", range(9), 1))
    assert run_step(s)["a again"][:2] == (4, 5)


def test_a_hit_takes_free_blocks_out_of_the_queue_and_counts_them_as_taken() -> None:
    pool = SharingPool(num_blocks=5, block_size=2)
    first = RequestState(Request("a", [1, 2, 3, 4, 5], 1))
    pool.look_up("a", first)
    pool.allocate("a", 5)
    pool.free("a")
    again = RequestState(Request("b", [1, 2, 3, 4, 9, 9, 9, 9, 9], 1))
    assert pool.look_up("b", again) == 4
    before = tuple(pool.blocks)
    assert pool.has_room("b", 8)
    assert not pool.has_room("b", 9)  # 2 found ones are free, 3 more are needed, 4 are free
    with pytest.raises(OutOfBlocks, match=r"'b': 9 tokens, 4 blocks are free"):
        pool.allocate("b", 9)
    assert (tuple(pool.blocks), pool.block_table("b")) == (before, ())
    assert pool.allocate("b", 8)[:2] == (1, 2)
    assert pool.num_free == 0


# ---------------------------------------------------------------- at any interleaving


def tables_agree(s: Scheduler) -> None:
    """Counts, tables and the queue tell the same story; no block is lost."""
    pool, limits = s.pool, s.limits
    tables = [pool.block_table(state.request.request_id) for state in (*s.running, *s.waiting)]
    listed = Counter(block for table in tables for block in table)
    assert 0 not in listed
    assert len(listed) + pool.num_free == limits.num_blocks - 1
    assert all(not pool.block_table(state.request.request_id) for state in s.waiting)
    if s.prefix_cache is None:
        assert set(listed.values()) <= {1}
        return
    for block in range(1, limits.num_blocks):
        assert s.prefix_cache.owners[block] == listed[block]
        assert (block in s.prefix_cache.blocks) == (listed[block] == 0)


@given(seed=st.integers(0, 2**32), caching=st.booleans())
def test_no_block_and_no_token_is_lost_at_any_interleaving(seed: int, caching: bool) -> None:
    rng = random.Random(seed)
    block_size, budget = rng.randint(1, 4), rng.randint(1, 24)
    beginnings = [[rng.randrange(5) for _ in range(rng.randint(0, 12))] for _ in range(2)]
    todo = []
    for i in range(rng.randint(1, 10)):
        prompt = [*rng.choice(beginnings), *(rng.randrange(5) for _ in range(rng.randint(1, 6)))]
        todo.append(Request(f"{i}", prompt, rng.randint(1, 12), eos_ids=(rng.randrange(31),)))
    needed = max(-(-(len(r.prompt) + r.max_new_tokens - 1) // block_size) for r in todo)
    blocks, seqs = 1 + needed + rng.choice([0, 1, 4, 20]), rng.randint(1, min(6, budget))
    limits = SchedulerLimits(seqs, budget, blocks, block_size, 40, rng.random() < 0.7, caching)
    s, runner = Scheduler(limits), FakeRunner(limits)
    wanted = {r.request_id: tokens_alone(r) for r in todo}
    written: dict[str, tuple[int, ...]] = {}
    descriptor = GraphDispatcher("NONE", [], seqs).dispatch
    preempted = 0
    while todo or s.has_unfinished:
        for _ in range(rng.randint(0, 3)):
            if todo:
                s.submit(todo.pop())
                tables_agree(s)
        batch = s.step()
        tables_agree(s)
        if batch is None:
            continue
        preempted += len(batch.preempted)
        tokens = runner.execute(batch, descriptor(batch.num_reqs, batch.num_tokens))
        for state in s.update(batch, tokens)[1]:
            written[state.request.request_id] = tuple(state.output)
        tables_agree(s)
    assert written == wanted
    assert s.pool.num_free == blocks - 1
    event("preempted" if preempted else "never preempted")
    event("hits" if s.first_hits.hit + s.resumed_hits.hit else "no hits")
