"""Claims about continuous batching: what a request gets never depends on who runs beside it."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.blocks import BlockPool
from mini_engine.engine.engine import Engine, StepRecord
from tests.support.fake_runner import (
    VOCAB,
    FakeRunner,
    SteppingRunner,
    are_right,
    served,
    tokens_alone,
)

MODES = list(CUDAGraphMode)


@dataclass(frozen=True)
class Workload:
    requests: tuple[Request, ...]
    limits: SchedulerLimits
    mode: CUDAGraphMode
    sizes: tuple[int, ...]

    def engine(self) -> Engine:
        dispatcher = GraphDispatcher(self.mode, list(self.sizes), self.limits.max_num_seqs)
        runner = SteppingRunner if self.limits.steps_per_replay > 1 else FakeRunner
        return Engine(runner(self.limits), self.limits, dispatcher)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    tokens = st.integers(0, VOCAB - 1)
    requests = tuple(
        Request(
            request_id=f"r{i}",
            prompt=draw(st.lists(tokens, min_size=1, max_size=18)),
            max_new_tokens=draw(st.integers(1, 12)),
            arrival_us=draw(st.sampled_from([0.0, 0.0, 15.0, 40.0, 41.5, 300.0])),
            eos_ids=draw(st.sets(tokens, max_size=2)),
        )
        for i in range(draw(st.integers(1, 9)))
    )
    block_size = draw(st.integers(1, 5))
    fits_one = max(-(-(len(r.prompt) + r.max_new_tokens - 1) // block_size) for r in requests)
    budget = draw(st.integers(1, 24))
    limits = SchedulerLimits(
        max_num_seqs=draw(st.integers(1, min(8, budget))),
        max_num_batched_tokens=budget,
        num_blocks=1 + fits_one + draw(st.sampled_from([0, 0, 1, 3, 8, 100])),
        block_size=block_size,
        max_model_len=30,
        reserve_full_isl=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        steps_per_replay=draw(st.sampled_from([1, 1, 2, 3, 7])),
    )
    sizes = draw(st.sets(st.integers(1, 24), min_size=1, max_size=6))
    return Workload(requests, limits, draw(st.sampled_from(MODES)), tuple(sorted(sizes)))


@given(workload=workloads())
def test_every_request_gets_the_tokens_it_gets_alone(workload: Workload) -> None:
    engine = workload.engine()
    done = engine.run(workload.requests)
    preemptions = sum(c.num_preemptions for c in done)
    event("preempted" if preemptions else "never preempted")
    assert {c.request_id: c.tokens for c in done} == {
        r.request_id: tokens_alone(r) for r in workload.requests
    }
    assert len(done) == len(workload.requests)
    assert engine.scheduler.pool.num_free == workload.limits.num_blocks - 1
    assert not engine.scheduler.has_unfinished


@given(workload=workloads())
def test_first_come_first_token_and_time_never_goes_back(workload: Workload) -> None:
    done = workload.engine().run(workload.requests)
    ends = [c.token_times_us[-1] for c in done]
    assert ends == sorted(ends)
    by_arrival = sorted(done, key=lambda c: (c.request.arrival_us, c.request_id))
    firsts = [c.token_times_us[0] for c in by_arrival]
    assert firsts == sorted(firsts)
    for c in done:
        assert len(c.token_times_us) == len(c.tokens)
        assert c.request.arrival_us < c.token_times_us[0]
        # the tokens of one replay are known at once
        itls_us = np.diff(c.token_times_us)
        assert (itls_us > 0).all() or workload.limits.steps_per_replay > 1
        assert (itls_us >= 0).all()
        ended_by_eos = c.tokens[-1] in c.request.eos_ids
        assert c.finish_reason == ("stop" if ended_by_eos else "length")


@given(workload=workloads())
def test_every_token_is_announced_once_in_order(workload: Workload) -> None:
    heard: dict[str, list[int]] = {}
    records: list[StepRecord] = []
    done = workload.engine().run(
        workload.requests,
        on_token=lambda request, token: heard.setdefault(request.request_id, []).append(token),
        on_step=records.append,
    )
    assert heard == {c.request_id: list(c.tokens) for c in done}
    assert [c for record in records for c in record.completions] == done
    assert all(a.ended_us <= b.began_us for a, b in pairwise(records))


def small_engine(blocks: int = 50, budget: int = 8) -> tuple[Engine, FakeRunner]:
    limits = SchedulerLimits(4, budget, blocks, 2, 40)
    runner = FakeRunner(limits)
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    return Engine(runner, limits, GraphDispatcher(mode, [1, 2, 4, 8], 4)), runner


def test_decode_runs_full_and_anything_with_a_prompt_in_it_piecewise() -> None:
    engine, runner = small_engine(budget=4)
    engine.run([Request("a", [1, 2, 3, 4, 5], 3)])
    # 4 + 1 prompt tokens, then two decodes. The chunk of one token is no decode.
    assert [b.query_lens for b in runner.batches] == [(4,), (1,), (1,), (1,)]
    assert [d.mode for d in runner.descriptors] == [
        CUDAGraphMode.PIECEWISE,
        CUDAGraphMode.PIECEWISE,
        CUDAGraphMode.FULL,
        CUDAGraphMode.FULL,
    ]


def test_the_clock_jumps_to_the_next_arrival_when_nothing_runs() -> None:
    engine, runner = small_engine()
    done = engine.run([Request("late", [1], 1, arrival_us=5000.0), Request("now", [1], 1)])
    assert [c.request_id for c in done] == ["now", "late"]
    [first_us], [late_us] = (one.token_times_us for one in done)
    assert runner.now_us == late_us == 5000.0 + first_us


def test_submit_and_step_drive_the_engine_by_hand() -> None:
    engine, _ = small_engine()
    assert engine.step() is None
    engine.submit(Request("a", [3, 1], 2))
    first, second = engine.step(), engine.step()
    assert first is not None
    assert second is not None
    assert first.completions == ()
    assert second.completions[0].tokens == tokens_alone(Request("a", [3, 1], 2))
    assert engine.step() is None


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Request("bad", [], 3), "'bad': the prompt is empty"),
        (Request("bad", [1] * 40, 1), "> context of 40"),
    ],
)
def test_a_bad_request_is_refused_before_anything_runs(bad: Request, says: str) -> None:
    engine, runner = small_engine()
    with pytest.raises(ValueError, match=says):
        engine.run([Request("ok", [1], 3), bad])
    assert not runner.batches


# --- The tests above are only worth something if the fake runner sees a broken engine. ---


def test_a_block_with_two_owners_is_seen() -> None:
    class Sharing(BlockPool):
        def allocate(self, request_id: str, num_tokens: int) -> tuple[int, ...]:
            table = super().allocate(request_id, num_tokens)
            return tuple(max(1, block - 1) if block > 6 else block for block in table)

    engine, _ = small_engine()
    engine.scheduler.pool = Sharing(50, 2)
    assert not are_right(served(engine))


def test_a_padded_row_that_writes_a_block_in_use_is_seen() -> None:
    engine, runner = small_engine()
    runner.padding_block = 1
    engine.run([Request("one", [4], 3)])  # rungs fit exactly: nothing padded, nothing broken
    assert not are_right(served(engine))
