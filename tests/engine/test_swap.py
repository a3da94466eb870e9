"""Claims about preempting by swap. That no token and no block is lost, whatever the load, is shown
by the properties of test_engine.py, which swap, too."""

from __future__ import annotations

import pytest

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.engine import Completion, Engine
from mini_engine.engine.prefix_cache import SharingPool
from mini_engine.engine.swap import SavesUs, SwappingScheduler
from tests.support.fake_runner import CROWD, FakeRunner, are_right, served


def swap_limits(preemption: str = "swap", host_blocks: int = 50, **more: bool) -> SchedulerLimits:
    """So few blocks of 2 tokens that of four requests some are preempted."""
    return SchedulerLimits(
        4, 8, 13, 2, 40, preemption=preemption, host_blocks=host_blocks, **more
    )  # fmt: skip


def run(
    limits: SchedulerLimits, saves_us: SavesUs | None = None
) -> tuple[list[Completion] | None, list[ScheduledBatch]]:
    """The crowd's completions, None where the cache was corrupted; and all batches."""
    runs = FakeRunner(limits)
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2, 4, 8], 4)
    return served(Engine(runs, limits, dispatcher, saves_us=saves_us)), runs.batches


def computed(batches: list[ScheduledBatch]) -> int:
    return sum(batch.num_tokens for batch in batches)


ONCE = sum(len(r.prompt) + r.max_new_tokens - 1 for r in CROWD)


def test_a_swapped_request_computes_nothing_twice() -> None:
    done, batches = run(swap_limits())
    assert are_right(done)
    assert done
    preemptions = sum(c.num_preemptions for c in done)
    assert preemptions == sum(len(b.preempted) for b in batches) > 0
    assert computed(batches) == ONCE
    again, recomputed = run(swap_limits("recompute", 0))
    assert are_right(again)
    assert computed(recomputed) > ONCE


def test_every_block_comes_back_from_where_it_went_and_never_in_a_step_that_preempts() -> None:
    _, batches = run(swap_limits())
    outs = [host for b in batches for _, host in b.swap_out]
    ins = [host for b in batches for _, host in b.swap_in]
    assert sorted(outs) == sorted(ins) != []
    assert not [b for b in batches if b.swap_out and b.swap_in]
    for batch in batches:
        assert bool(batch.swap_out) == bool(batch.preempted)
        held = {block for entry in batch.entries for block in entry.block_table}
        assert {block for block, _ in batch.swap_in} <= held


def test_a_decode_comes_back_as_a_decode() -> None:
    _, batches = run(swap_limits())
    back = [b for b in batches if b.swap_in and not any(e.start == 0 for e in b.entries)]
    assert back
    assert all(not b.has_prefill for b in back)


def test_a_prompt_that_was_cut_comes_back_as_a_prompt() -> None:
    limits = SchedulerLimits(
        2, 3, 5, 2, 40, reserve_full_isl=False, preemption="swap", host_blocks=9
    )  # fmt: skip
    scheduler = SwappingScheduler(limits)
    scheduler.submit(Request("old", [1], 7))
    scheduler.submit(Request("long", range(7), 1))
    back = []
    while batch := scheduler.step():
        back += [e for e in batch.entries if batch.swap_in and e.request.request_id == "long"]
        scheduler.update(batch, [0] * sum(e.samples for e in batch.entries))
    assert [(e.is_prefill, e.start > 0) for e in back] == [(True, True)]


def test_where_host_memory_is_full_it_is_computed_again() -> None:
    done, batches = run(swap_limits(host_blocks=1))
    assert are_right(done)
    assert computed(batches) > ONCE
    assert not any(b.swap_out for b in batches)


def test_cheaper_asks_what_swapping_saves() -> None:
    asked: list[int] = []

    def saves_us(tokens: int) -> float:
        asked.append(tokens)
        return -1.0 if len(asked) % 2 else 1.0

    done, batches = run(swap_limits("cheaper"), saves_us=saves_us)
    assert are_right(done)
    preempting = [b for b in batches if b.preempted]
    assert len(asked) == sum(len(b.preempted) for b in preempting)
    assert not preempting[0].swap_out
    assert any(b.swap_out for b in preempting)


def test_blocks_that_come_back_are_private_even_with_a_prefix_cache() -> None:
    limits = swap_limits(prefix_caching=True)
    scheduler = SwappingScheduler(limits)
    for i in range(4):
        scheduler.submit(Request(str(i), [7] * 5, 8))
    pool, returned = scheduler.pool, 0
    assert isinstance(pool, SharingPool)
    while batch := scheduler.step():
        for block, _ in batch.swap_in:
            returned += 1
            assert pool.owners[block] == 1
        scheduler.update(batch, [int(e.request.request_id) for e in batch.entries if e.samples])
    assert returned
    assert pool.num_free == limits.num_blocks - 1


def test_a_preemption_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="preemption 'swop'"):
        swap_limits("swop")


def test_cheaper_without_a_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="'cheaper' needs saves_us"):
        SwappingScheduler(swap_limits("cheaper"))
