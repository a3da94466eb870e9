"""Claims about who runs when. Prompts are ranges: the scheduler looks at counts only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.scheduler import Scheduler


def scheduler(
    *, seqs: int = 8, budget: int = 16, blocks: int = 100, block_size: int = 4, context: int = 400
) -> Scheduler:
    return Scheduler(SchedulerLimits(min(seqs, budget), budget, blocks, block_size, context))


def request(name: str, prompt: int, new: int) -> Request:
    return Request(name, range(prompt), new)


def run_step(s: Scheduler) -> ScheduledBatch:
    batch = s.step()
    assert batch is not None
    s.update(batch, [0] * sum(entry.samples for entry in batch.entries))
    return batch


def test_a_text_ends_where_the_context_does() -> None:
    s = scheduler(context=10)
    s.submit(request("a", 7, 50))
    finished = []
    while s.has_unfinished:
        batch = s.step()
        assert batch is not None
        finished += s.update(batch, [0])[1]
    assert [(len(f.output), f.finish_reason) for f in finished] == [(3, "length")]


def test_a_budget_that_cannot_hold_a_token_of_every_request_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens is 3"):
        SchedulerLimits(4, 3, 10, 4, 100)


def test_eos_ends_a_request_early_and_frees_its_blocks() -> None:
    s = scheduler()
    s.submit(Request("a", [1, 2], 9, eos_ids={7}))
    for token in (3, 7):
        batch = s.step()
        assert batch is not None
        _, finished = s.update(batch, [token])
    assert [(f.output, f.finish_reason) for f in finished] == [([3, 7], "stop")]
    assert s.pool.num_free == 99
    s.submit(Request("a", [1], 1))  # the id is free again


def test_update_wants_a_token_for_each_entry_that_samples() -> None:
    s = scheduler()
    s.submit(request("a", 3, 2))
    batch = s.step()
    assert batch is not None
    with pytest.raises(ValueError, match="2 tokens for 1 entries"):
        s.update(batch, [1, 2])


@pytest.mark.parametrize(
    ("prompt", "new", "says"),
    [
        (0, 1, "'x': the prompt is empty"),
        (1, 0, "'x': max_new_tokens is 0"),
        (400, 1, r"prompt of 400 \+ max_new_tokens 1 > context of 400: shorten the prompt"),
        (38, 4, r"needs 11 blocks of 4, and the cache has 10 beside the null block"),
    ],
)
def test_a_request_that_can_never_run_is_refused(prompt: int, new: int, says: str) -> None:
    s = scheduler(blocks=11)
    with pytest.raises(ValueError, match=says):
        s.submit(request("x", prompt, new))
    assert not s.has_unfinished


def test_an_id_in_use_is_refused() -> None:
    s = scheduler()
    s.submit(request("a", 1, 1))
    with pytest.raises(ValueError, match="'a' is being served"):
        s.submit(request("a", 1, 1))


@pytest.mark.parametrize("field", range(5))
def test_limits_below_the_least_are_refused(field: int) -> None:
    sizes = [1, 1, 2, 1, 1]
    SchedulerLimits(*sizes)
    sizes[field] -= 1
    with pytest.raises(ValueError, match="at least"):
        SchedulerLimits(*sizes)


workloads = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=12)


@given(
    workload=workloads,
    seqs=st.integers(1, 6),
    budget=st.integers(1, 24),  # and never fewer requests than that
    block_size=st.integers(1, 5),
    spare=st.integers(0, 12),
    arrive_every=st.integers(0, 4),
    reserve=st.booleans(),
)
def test_every_step_keeps_the_rules(
    workload: list[tuple[int, int]],
    seqs: int,
    budget: int,
    block_size: int,
    spare: int,
    arrive_every: int,
    reserve: bool,
) -> None:
    blocks = 1 + spare + max(-(-(p + n - 1) // block_size) for p, n in workload)
    s = Scheduler(SchedulerLimits(min(seqs, budget), budget, blocks, block_size, 400, reserve))
    todo = [request(f"{i:02}", p, n) for i, (p, n) in enumerate(workload)]
    first_seen: list[str] = []
    known_at_admission: dict[str, int] = {}
    steps = 0
    while todo or s.has_unfinished:
        arriving = todo if arrive_every == 0 else todo[: steps % arrive_every == 0]
        for r in arriving:
            s.submit(r)
        todo = todo[len(arriving) :]
        steps += 1
        free_before = s.pool.num_free
        running_before = [state.request.request_id for state in s.running]
        batch = s.step()
        if batch is None:
            continue
        ids = [e.request.request_id for e in batch.entries]
        assert 1 <= batch.num_tokens <= budget
        assert len(set(ids)) == batch.num_reqs == len(s.running) <= min(seqs, budget)
        # every running request moves on, in order of arrival, and that puts decodes before chunks
        assert [r.request.request_id for r in s.running] == ids == sorted(ids)
        chunks = [e.is_prefill for e in batch.entries]
        assert chunks == sorted(chunks)
        assert sum(not e.samples for e in batch.entries) <= 1
        for e in batch.entries:
            assert e.start == e.state.num_computed
            known_at_admission[e.request.request_id] = (
                e.state.num_tokens if e.start == 0 else known_at_admission[e.request.request_id]
            )
            assert e.is_prefill == (e.start < known_at_admission[e.request.request_id])
            assert (e.query_len == 1) or e.is_prefill
            assert len(e.block_table) * block_size >= e.context_len
        # the youngest were preempted, and no request took their place in the same step
        victims = [r.request_id for r in batch.preempted]
        assert victims == running_before[::-1][: len(victims)]
        if victims:
            assert set(ids) == set(running_before) - set(victims)
        admitted = [e for e in batch.entries if e.request.request_id not in running_before]
        if reserve and admitted:  # the others' new blocks come off what was free before
            needed = -(-admitted[0].state.num_tokens // block_size)
            assert needed <= free_before
        first_seen += [e.request.request_id for e in batch.entries if not e.state.output]
        s.update(batch, [0] * sum(e.samples for e in batch.entries))
        held = sum(len(s.pool.block_table(f"{i:02}")) for i in range(len(workload)))
        assert held + s.pool.num_free == blocks - 1
    assert list(dict.fromkeys(first_seen)) == sorted(set(first_seen))  # none overtakes another
    assert len(set(first_seen)) == len(workload)
    assert s.pool.num_free == blocks - 1
