"""Claims about a server that is driven from outside: whoever drives it sees what `replay` sees."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.serving.replay import Replica, replay
from mini_engine.serving.report import Served
from mini_engine.serving.request_trace import TraceRequest
from tests.serving.test_replay import LIMITS, PlainCosts, one_rung
from tests.support.fake_runner import FakeRunner
from tests.support.serve_cases import Case, cases, sharing_cases


@given(case=st.one_of(cases, sharing_cases), seed=st.integers(0, 9))
def test_a_replica_that_is_looked_at_all_the_time_serves_as_the_trace_does(
    case: Case, seed: int
) -> None:
    report, served = case.run(replay)
    found: list[Served] = []

    def driven(
        trace: list[TraceRequest], costs: object, limits: object, dispatcher: object, **how: object
    ) -> object:
        replica = Replica(costs, limits, dispatcher, **{**how, "on_served": found.append})  # type: ignore
        rng, number, now = random.Random(seed), 0, 0.0
        for request in trace:
            for moment in sorted(rng.uniform(now, request.arrival_us) for _ in range(3)):
                replica.advance_to(moment)
                assert replica.outstanding >= 0
            now = request.arrival_us
            replica.advance_to(now)
            number += replica.submit(number, request)
        replica.advance_to(float("inf"))
        assert (replica.unfinished, replica.outstanding) == (0, 0)
        assert not replica.first_token_us
        assert not replica.paused_us
        return replica.report.finish()

    again, _ = case.run(driven)  # type: ignore[arg-type]
    assert [s.number for s in found] == [s.number for s in served]
    for mine, theirs in zip(found, served, strict=True):
        assert mine.first_token_us == pytest.approx(theirs.first_token_us, abs=1e-3)
        assert mine.finished_us == pytest.approx(theirs.finished_us, abs=1e-3)
    assert (again.ran, again.preemptions) == (report.ran, report.preemptions)


@given(case=st.one_of(cases, sharing_cases), seed=st.integers(0, 2**32))
def test_whoever_leaves_at_any_moment_leaves_no_block_behind(case: Case, seed: int) -> None:
    rng = random.Random(seed)

    def driven(
        trace: list[TraceRequest], costs: object, limits: object, dispatcher: object, **how: object
    ) -> object:
        replica = Replica(costs, limits, dispatcher, **how)  # type: ignore[arg-type]
        scheduler, free = replica.scheduler, replica.scheduler.pool.num_free
        number, here = 0, set[str]()
        for request in trace:
            replica.advance_to(request.arrival_us)
            if replica.submit(number, request):
                here.add(str(number))
                number += 1
            for one in rng.sample(sorted(here), rng.randint(0, len(here))):
                known = {s.request.request_id for s in [*scheduler.running, *scheduler.waiting]}
                assert replica.cancel(one) == (one in known)
                here.discard(one)
        replica.advance_to(float("inf"))
        assert scheduler.pool.num_free == free
        assert (replica.unfinished, replica.outstanding) == (0, 0)
        assert not scheduler.cancel("0")
        return replica.report.finish()

    case.run(driven)  # type: ignore[arg-type]


def test_a_prompt_that_another_server_computed_decodes_at_once() -> None:
    """Worked out by hand: 20 prompt tokens and the first token are there, four more are wanted."""
    served: list[Served] = []
    costs, dispatcher = PlainCosts(), one_rung()
    replica = Replica(costs, LIMITS, dispatcher, on_served=served.append)
    replica.advance_to(50.0)
    assert replica.submit(0, TraceRequest(0.0, 20, 5), at_us=50.0, first_token_us=40.0)
    assert (replica.unfinished, replica.outstanding) == (1, 25)
    replica.advance_to(float("inf"))
    # four decodes at the full rung of 4, 14 us each; the first gap is from 40 to 64
    assert served == [Served(0, 0.0, 40.0, 50.0 + 4 * 14)]
    report = replica.report.finish()
    assert report.steps_by_mode == {"FULL": 4}
    assert (report.itl.count, report.itl_max_us) == (4, 24.0)
    assert report.itl_p50_us == pytest.approx(14.0, rel=0.0025)  # a histogram's bin


def test_a_received_prompt_that_loses_its_blocks_is_computed_again() -> None:
    limits = replace(LIMITS, num_blocks=1 + 12, max_num_seqs=2)
    replica = Replica(PlainCosts(), limits, one_rung(2))
    for number in (0, 1):
        replica.submit(number, TraceRequest(0.0, 20, 16), at_us=0.0, first_token_us=0.0)
    replica.advance_to(float("inf"))
    report = replica.report.finish()
    assert (report.requests, report.preemptions) == (2, 1)
    assert report.recomputed_tokens >= 20
    assert replica.scheduler.pool.num_free == 12


def test_the_engine_forgets_a_request_that_is_cancelled() -> None:
    engine = Engine(FakeRunner(LIMITS), LIMITS, one_rung())
    free = engine.scheduler.pool.num_free
    for name in "ab":
        engine.submit(Request(name, [1, 2, 3], 5))
    engine.step()
    assert engine.cancel("a")
    assert not engine.cancel("a")
    record = engine.step()
    assert record
    assert [entry.request.request_id for entry in record.batch.entries] == ["b"]
    engine.submit(Request("a", [1], 1))  # its id is free again
    while engine.step():
        pass
    assert engine.scheduler.pool.num_free == free
