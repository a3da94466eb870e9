"""Claims about the replay of traces, above all: strides and single steps tell the same story."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.server import Server
from mini_engine.serving.replay import Replica, prompt_ids, replay
from mini_engine.serving.report import Served, ServeReport, percentile
from mini_engine.serving.request_trace import TraceRequest, synthetic_trace, with_shared_prefix
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import WAYS, Mode
from mini_engine.step.step_model import Line, StepModel
from tests.support.serve_cases import Case, RandomCosts, cases, sharing_cases


def assert_same(fast: ServeReport, slow: ServeReport) -> None:
    assert fast.ran == slow.ran
    fast_dict, slow_dict = fast.to_dict(), slow.to_dict()
    for field in fast_dict:
        if field == "turns":
            continue  # the one thing in which they should differ
        if isinstance(fast_dict[field], float):
            # The same times, added up in another order.
            assert fast_dict[field] == pytest.approx(slow_dict[field], rel=1e-9), field
        else:
            assert fast_dict[field] == slow_dict[field], field


@given(case=st.one_of(cases, sharing_cases))
def test_strides_equal_the_scheduler_step_by_step(case: Case) -> None:
    fast, fast_order = case.run(replay)
    with patch.object(Replica, "stride", lambda *_: False):
        slow, slow_order = case.run(replay)
    event("preempted" if slow.preemptions else "not preempted")
    event("found a prefix" if slow.prefill_tokens_saved else "found none")
    assert_same(fast, slow)
    assert [s.number for s in fast_order] == [s.number for s in slow_order]
    for mine, theirs in zip(fast_order, slow_order, strict=True):
        assert mine.arrival_us == theirs.arrival_us
        assert mine.first_token_us == pytest.approx(theirs.first_token_us, rel=1e-9)
        assert mine.finished_us == pytest.approx(theirs.finished_us, rel=1e-9)


@given(case=st.one_of(cases, sharing_cases))
def test_every_request_is_served_or_refused_and_every_token_counted(case: Case) -> None:
    report, served = case.run(replay)
    limits = case.limits
    context = min(limits.max_model_len, (limits.num_blocks - 1) * limits.block_size)
    fitting = [r for r in case.trace if r.prompt_tokens < context]
    assert report.requests == len(served) == len(fitting)
    assert report.refused == len(case.trace) - len(fitting)
    assert report.truncated == sum(r.prompt_tokens + r.output_tokens > context for r in fitting)
    assert report.prompt_tokens == sum(r.prompt_tokens for r in fitting)
    assert report.output_tokens == sum(
        min(r.output_tokens, context - r.prompt_tokens) for r in fitting
    )
    assert sorted(s.number for s in served) == list(range(len(fitting)))
    assert all(s.arrival_us < s.first_token_us <= s.finished_us for s in served)
    assert [s.finished_us for s in served] == sorted(s.finished_us for s in served)
    # Each token but the last of a request goes through the model once, and again if it was lost.
    once = report.prompt_tokens + report.output_tokens - report.requests
    saved = report.prefill_tokens_saved + report.recompute_tokens_saved
    assert report.rows == once + report.recomputed_tokens - saved
    assert report.kv_blocks_peak <= report.kv_blocks
    assert report.busy_us <= report.elapsed_us * (1 + 1e-9)
    assert report.turns <= report.steps


class CostRunner:
    """Runs nothing, and says how long it took."""

    def __init__(self, costs: RandomCosts) -> None:
        self.costs, self.now_us = costs, 0.0

    def wait_until(self, us: float) -> None:
        self.now_us = max(self.now_us, us)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        shape = StepShape.mixed(batch.query_lens, batch.context_lens)
        reqs = descriptor.num_reqs or batch.num_reqs
        shape = StepShape(descriptor.num_tokens, reqs, shape.kv_tokens, shape.qk_pairs)
        self.now_us += self.costs.itl_us(WAYS[descriptor.mode.name], shape)
        return [-1 - int(entry.request.request_id) for entry in batch.entries if entry.samples]


@given(case=st.one_of(cases, sharing_cases))
def test_the_report_is_what_the_engine_measures(case: Case) -> None:
    """An independent way to the same numbers: the engine itself, on a runner with these costs."""
    limits = case.limits
    context = min(limits.max_model_len, (limits.num_blocks - 1) * limits.block_size)
    trace = [r for r in case.trace if r.prompt_tokens + r.output_tokens <= context]
    assume(trace)
    dispatcher = GraphDispatcher(case.mode, case.sizes, limits.max_num_seqs)
    engine = Engine(CostRunner(case.costs), limits, dispatcher)
    done = engine.run(
        [
            Request(str(i), prompt_ids(i, r), r.output_tokens, r.arrival_us)
            for i, r in enumerate(trace)
        ]
    )
    report = replay(trace, case.costs, limits, dispatcher)
    scheduler = engine.scheduler
    assert report.prefill_tokens_saved == scheduler.first_hits.hit
    assert report.recompute_tokens_saved == scheduler.resumed_hits.hit
    tokens = sum(len(c.tokens) for c in done)
    last_token_us = max(c.token_times_us[-1] for c in done)
    seconds = (last_token_us - min(c.request.arrival_us for c in done)) / 1e6
    assert report.preemptions == sum(c.num_preemptions for c in done)
    assert (report.requests, report.output_tokens) == (len(done), tokens)
    assert report.tokens_per_s == pytest.approx(tokens / seconds, rel=1e-9)
    assert report.requests_per_s == pytest.approx(len(done) / seconds, rel=1e-9)
    itls_us = [us for c in done for us in np.diff(c.token_times_us)]
    ttfts_us = [c.token_times_us[0] - c.request.arrival_us for c in done]
    measured = {"ttft": ttfts_us, "itl": itls_us}
    for name, values in measured.items():
        for percent in (50, 99):
            exact = percentile(values, percent) if values else None
            found = getattr(report, f"{name}_p{percent}_us")
            assert found == (exact and pytest.approx(exact, rel=0.0025))  # half a bin


def one_rung(num_seqs: int = 4) -> GraphDispatcher:
    return GraphDispatcher("FULL_AND_PIECEWISE", [4, 8], num_seqs)


class PlainCosts(StepModel):
    """10 us a step, 1 us a row, padding included, and something for each key."""

    def __init__(self, us_per_key: float = 0.0) -> None:
        self.us_per_key = us_per_key

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        assert mode in ("eager", "piecewise", "full")
        return 10.0 + shape.num_tokens + self.us_per_key * shape.kv_tokens

    def lines(
        self,
        mode: Mode,
        num_tokens: int,
        num_reqs: int,
        served: int | None = None,  # noqa: ARG002
    ) -> tuple[Line, ...]:
        assert mode in ("eager", "piecewise", "full")
        assert num_reqs <= num_tokens
        return (10.0 + num_tokens, self.us_per_key), (11.0, 0.0)


LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=101, block_size=4, max_model_len=200
)


def test_a_report_worked_out_by_hand() -> None:
    # Prompt of 20: 16 rows eagerly (26 us), 4 rows in the piecewise rung of 4 (14 us), first
    # token at 40. Four decodes more, each at the full rung of 4: 14 us.
    # At 1000 us the other: 3 rows at rung 4, that is all.
    trace = [TraceRequest(0.0, 20, 5), TraceRequest(1000.0, 3, 1)]
    report = replay(trace, PlainCosts(), LIMITS, one_rung())
    assert report.ttft_p50_us == pytest.approx(14.0, rel=0.0025)  # a histogram's bin
    assert report.ttft_p99_us == pytest.approx(40.0, rel=0.0025)
    assert report.itl_p50_us == report.itl_max_us == 14.0
    assert report.steps_by_mode == {"NONE": 1, "PIECEWISE": 2, "FULL": 4}
    assert report.steps_by_rung == {"NONE": {16: 1}, "PIECEWISE": {4: 2}, "FULL": {4: 4}}
    assert (report.rows, report.padded_rows) == (16 + 4 + 4 + 3, 4 * 3 + 1)
    assert report.padding_waste == 13 / 40
    assert report.elapsed_us == 1014.0
    assert report.busy_us == 26 + 14 + 4 * 14 + 14
    assert report.tokens_per_s == pytest.approx(6 / 1014e-6)
    assert report.requests_per_s == pytest.approx(2 / 1014e-6)
    assert report.kv_blocks_peak == 6  # 24 tokens in blocks of 4
    assert (report.steps, report.turns) == (7, 4)


def test_a_million_tokens_cost_as_many_turns_as_ten() -> None:
    limits = SchedulerLimits(4, 16, 2_000_000, 4, 4_000_000)
    few, many = (
        replay([TraceRequest(0.0, 5, n)], PlainCosts(1e-3), limits, one_rung())
        for n in (10, 1_000_000)
    )
    assert few.turns == many.turns == 2
    assert many.steps == 1_000_000
    # Prefill pads 5 rows to 8, decode 1 row to 4; contexts run from 5 to 1,000,004.
    keys_us = sum(range(5, 1_000_005)) / 1000
    assert many.busy_us == pytest.approx(18 + 999_999 * 14 + keys_us, rel=1e-9)


def test_requests_out_of_order_are_refused() -> None:
    trace = [TraceRequest(5.0, 1, 1), TraceRequest(4.0, 1, 1)]
    with pytest.raises(ValueError, match=r"request 1 arrives at 4.0 us, before 5.0"):
        replay(trace, PlainCosts(), LIMITS, one_rung())


def test_nothing_to_serve_is_an_empty_report() -> None:
    for trace in ([], [TraceRequest(0.0, 500, 1)]):
        report = replay(trace, PlainCosts(), LIMITS, one_rung())
        assert (report.requests, report.refused) == (0, len(trace))
        assert (report.ttft_p50_us, report.itl_p99_us, report.tokens_per_s) == (None, None, 0.0)


def test_a_trace_may_be_a_generator_and_is_read_as_it_is_served() -> None:
    ahead: list[int] = []
    served: list[Served] = []

    def watched():  # type: ignore[no-untyped-def]
        for i, request in enumerate(synthetic_trace(300, seed=5, requests_per_s=1.0)):
            ahead.append(i - len(served))
            yield request

    limits = SchedulerLimits(64, 512, 9000, 16, 9999)
    replay(watched(), PlainCosts(), limits, one_rung(), on_served=served.append)
    assert len(served) == 300
    assert max(ahead) < 20  # those being served, and one


ROOMY = SchedulerLimits(256, 8192, 40_000, 16, 40_960)
TRACE = list(synthetic_trace(200, seed=3, requests_per_s=50.0))


def serve(trace: list[TraceRequest], limits: SchedulerLimits) -> ServeReport:
    server = Server("qwen3-0.6b", max_num_seqs=256)
    return replay(trace, server.costs, limits, server.sized("FULL_AND_PIECEWISE").dispatcher)


def test_prompts_are_alike_where_it_is_declared_and_nowhere_else() -> None:
    one, other = TraceRequest(0.0, 20, 1, shared_tokens=12), TraceRequest(0.0, 9, 1, 12)
    assert [*prompt_ids(3, one)[:12]] == list(range(12))
    assert [*prompt_ids(4, other)] == list(range(9))
    assert not set(prompt_ids(3, one)[12:]) & set(prompt_ids(5, one)[12:])
    assert len(prompt_ids(3, one)) == 20


def test_the_declared_share_is_found_and_nothing_else() -> None:
    shared = list(with_shared_prefix(TRACE, 512, 0.6, seed=1))
    alike = [r for r in shared if r.shared_tokens]
    assert 0.5 < len(alike) / len(shared) < 0.7
    report = serve(shared, replace(ROOMY, prefix_caching=True))
    # whole blocks, not the last token; and somebody has to be the first
    blocks = [(min(512, r.prompt_tokens) - (r.prompt_tokens <= 512)) // 16 for r in alike]
    found = sum(blocks) - max(blocks)
    assert 0.97 * 16 * found <= report.prefill_tokens_saved <= 16 * found
    asked = sum(r.prompt_tokens for r in shared)
    assert report.prefix_hit_rate == pytest.approx(report.prefill_tokens_saved / asked)
    nothing = serve(TRACE, replace(ROOMY, prefix_caching=True))
    assert (nothing.prefill_tokens_saved, nothing.prefix_hit_rate) == (0, 0.0)


def test_without_a_prefix_cache_a_share_changes_nothing() -> None:
    shared = list(with_shared_prefix(TRACE, 512, 1.0))
    assert serve(shared, ROOMY) == serve(TRACE, ROOMY)
