"""Claims about the scheduler against vLLM 0.33.0's own: every step, down to the block numbers."""

from collections.abc import Iterator
from typing import Any

import pytest

from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.scheduler import Scheduler
from tests.support.vllm_vectors import label, scheduled_workloads

PLAIN, CACHED = scheduled_workloads("scheduler"), scheduled_workloads("prefix_cache")
STOP = 7


def scheduler_for(workload: dict[str, Any], *, reserve: bool = True) -> Scheduler:
    sizes = workload["limits"]
    return Scheduler(
        SchedulerLimits(
            sizes["max_num_seqs"],
            sizes["max_num_batched_tokens"],
            sizes["num_blocks"],
            sizes["block_size"],
            sizes["max_model_len"],
            reserve_full_isl=reserve,
            prefix_caching=sizes["enable_prefix_caching"],
        )
    )


def request_for(asked: dict[str, Any]) -> Request:
    prompt = asked.get("prompt") or range(asked["prompt_len"])
    return Request(asked["id"], prompt, asked["max_tokens"], eos_ids=(STOP,))


def evictions(s: Scheduler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with each block that loses its key, from now on."""
    evicted: list[int] = []
    if s.prefix_cache:
        blocks = s.prefix_cache.blocks
        really = blocks.evict
        monkeypatch.setattr(blocks, "evict", lambda block: evicted.append(block) or really(block))
    return evicted


def steps_of(
    workload: dict[str, Any], s: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What our scheduler does with a workload, told as vLLM's steps are."""
    evicted = evictions(s, monkeypatch)
    todo = sorted(workload["requests"], key=lambda asked: asked["arrival_step"])
    by_id = {asked["id"]: asked for asked in todo}
    step = 0
    while todo or s.has_unfinished:
        while todo and todo[0]["arrival_step"] <= step:
            s.submit(request_for(todo.pop(0)))
        if s.has_unfinished:
            waited = {state.request.request_id: state.num_preemptions for state in s.waiting}
            evicted.clear()
            batch = s.step()
            assert batch is not None
            told = {"step": step} | told_of(batch) | {"free_blocks_scheduled": s.pool.num_free}
            if s.prefix_cache:
                starts = {e.request.request_id: e.start for e in batch.entries}
                starts = {name: start for name, start in starts.items() if name in waited}
                told["evicted_blocks"] = list(evicted)
                told["first_cached_tokens"] = {n: k for n, k in starts.items() if not waited[n]}
                told["resumed_cached_tokens"] = {n: k for n, k in starts.items() if waited[n]}
            sampling = [e.state for e in batch.entries if e.samples]
            tokens = [
                token_of(by_id[state.request.request_id], len(state.output)) for state in sampling
            ]
            _, finished = s.update(batch, tokens)
            told["finished"] = [state.request.request_id for state in finished]
            told["free_blocks"] = s.pool.num_free
            told["running"] = [state.request.request_id for state in s.running]
            told["waiting"] = [state.request.request_id for state in s.waiting]
            if s.prefix_cache:
                told["free_queue"] = list(s.prefix_cache.blocks)
            yield told
        step += 1


def told_of(batch: ScheduledBatch) -> dict[str, Any]:
    return {
        "scheduled": [[e.request.request_id, e.query_len] for e in batch.entries],
        "start": [e.start for e in batch.entries],
        "preempted": [request.request_id for request in batch.preempted],
        "block_tables": {e.request.request_id: list(e.block_table) for e in batch.entries},
        "sampled": [e.request.request_id for e in batch.entries if e.samples],
    }


def token_of(asked: dict[str, Any], index: int) -> int:
    """The token that the recorded run gave: no two requests ever write the same."""
    return STOP if index + 1 == asked.get("stop_at") else 10_000 * (asked["number"] + 1) + index


def compare(
    workload: dict[str, Any],
    recorded: list[dict[str, Any]],
    s: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = list(steps_of(workload, s, monkeypatch))
    for mine, theirs in zip(ours, recorded, strict=False):
        assert mine == theirs, f"step {theirs['step']}"
    assert len(ours) == len(recorded)
    assert s.pool.num_free == workload["limits"]["num_blocks"] - 1


@pytest.mark.parametrize("workload", PLAIN, ids=label)
def test_every_step_is_that_of_vllm_0_33(
    workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(workload, workload["steps"], scheduler_for(workload), monkeypatch)


@pytest.mark.parametrize("workload", PLAIN, ids=label)
def test_without_the_reserve_every_step_is_that_of_vllm_0_33_without_it(
    workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = scheduler_for(workload, reserve=False)
    compare(workload, workload["steps_without_reserve"], s, monkeypatch)


@pytest.mark.parametrize("workload", CACHED, ids=label)
def test_with_the_prefix_cache_every_step_is_that_of_vllm_0_33_with_it(
    workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = scheduler_for(workload)
    compare(workload, workload["steps"], s, monkeypatch)
    first = [step["first_cached_tokens"] for step in workload["steps"]]
    assert s.first_hits.hit == sum(sum(hits.values()) for hits in first)
    assert s.first_hits.asked == sum(len(asked["prompt"]) for asked in workload["requests"])
    resumed = [step["resumed_cached_tokens"] for step in workload["steps"]]
    assert s.resumed_hits.hit == sum(sum(hits.values()) for hits in resumed)


def test_the_workloads_reach_what_they_are_meant_to_reach() -> None:
    """Preemptions with and without the reserve, hits, hits after a preemption, evictions."""
    with_it = sum(len(step["preempted"]) for w in PLAIN for step in w["steps"])
    without = sum(len(step["preempted"]) for w in PLAIN for step in w["steps_without_reserve"])
    assert 0 < with_it < without
    steps = [step for w in CACHED for step in w["steps"]]
    assert any(any(step["first_cached_tokens"].values()) for step in steps)
    assert any(any(step["resumed_cached_tokens"].values()) for step in steps)
    assert any(step["evicted_blocks"] for step in steps)
