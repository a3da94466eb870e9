"""speculation.py: whatever is drafted, and however much of it is right, the text is that of plain
decoding, in every mode."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, ScheduledBatch, ScheduledRequest, SchedulerLimits
from mini_engine.engine.engine import Engine, Proposer, StepRecord
from mini_engine.engine.speculation import DraftModel, Ngram, continued
from tests.engine.test_engine import Workload, workloads
from tests.support.fake_runner import FakeRunner, tokens_alone

LIMITS = SchedulerLimits(4, 16, 50, 2, 40, num_speculative_tokens=3)


class Oracle:
    """Drafts what a request will write, but for some guesses that it spoils: of request i all if i
    is 0, none if it is 3, and so on in between and again."""

    def propose(self, batch: ScheduledBatch) -> ScheduledBatch:
        return replace(batch, entries=tuple(self._with_drafts(entry) for entry in batch.entries))

    def _with_drafts(self, entry: ScheduledRequest) -> ScheduledRequest:
        known, request = entry.state.num_tokens, entry.request
        written = len(entry.state.output)
        plain = tokens_alone(replace(request, eos_ids=()))[written:]
        luck = int(request.request_id[1:]) % 4
        drafts = [
            token if zlib.crc32(f"{request.request_id},{known + i}".encode()) % 3 < luck else -1
            for i, token in enumerate(plain[: max(entry.context_len - known, 0)])
        ]
        return entry._replace(drafts=tuple(drafts))


def speculating(workload: Workload, kind: str, count: int) -> tuple[Engine, FakeRunner]:
    limits = replace(workload.limits, num_speculative_tokens=count, steps_per_replay=1)
    runner, sizes, seqs = FakeRunner(limits), list(workload.sizes), limits.max_num_seqs
    dispatcher = GraphDispatcher(workload.mode, sizes, seqs, limits.decode_query_len)
    proposer: Proposer = Oracle() if kind == "oracle" else Ngram()
    if kind == "draft model":
        decodes = GraphDispatcher(workload.mode, sizes, seqs)
        proposer = DraftModel(FakeRunner(replace(limits, num_speculative_tokens=0)), decodes)
    return Engine(runner, limits, dispatcher, proposer=proposer), runner


kinds, counts = st.sampled_from(["oracle", "n-grams", "draft model"]), st.integers(1, 7)


def check_text_and_blocks(workload: Workload, kind: str, count: int) -> None:
    engine, _ = speculating(workload, kind, count)
    done = engine.run(workload.requests)
    assert {one.request_id: one.tokens for one in done} == {
        request.request_id: tokens_alone(request) for request in workload.requests
    }
    for one in done:
        assert one.finish_reason == ("stop" if one.tokens[-1] in one.request.eos_ids else "length")
        assert len(one.token_times_us) == len(one.tokens)
    assert engine.scheduler.pool.num_free == workload.limits.num_blocks - 1
    assert not engine.scheduler.has_unfinished
    if kind == "draft model":
        assert engine.scheduler.drafts.hit == engine.scheduler.drafts.asked


@given(workloads(), kinds, counts)
def test_every_request_gets_the_tokens_it_gets_alone(
    workload: Workload, kind: str, count: int
) -> None:
    """With preemption, shared prefixes, ends inside accepted drafts, contexts that end inside a
    draft. A draft model that is the model itself is always right: its cache has
    what the other one's has."""
    check_text_and_blocks(workload, kind, count)


def records_of(engine: Engine, requests: list[Request]) -> list[StepRecord]:
    records: list[StepRecord] = []
    engine.run(requests, on_step=records.append)
    return records


def engine_of(
    proposer: Proposer, limits: SchedulerLimits = LIMITS, mode: str = "FULL_AND_PIECEWISE"
) -> Engine:
    width = limits.decode_query_len
    dispatcher = GraphDispatcher(mode, [1, 2, width, 2 * width, 4 * width], 4, width)
    return Engine(FakeRunner(limits), limits, dispatcher, proposer=proposer)


def test_decodes_with_equally_many_drafts_run_in_full_graphs_of_k_plus_one_rows_each() -> None:
    requests = [Request(f"r{i}", [i, 7], 13) for i in (3, 7)]  # whose drafts are all right
    records = records_of(engine_of(Oracle()), requests)
    ran = [(r.descriptor.mode, r.batch.query_lens, r.descriptor.num_tokens) for r in records]
    assert ran == [(CUDAGraphMode.PIECEWISE, (2, 2), 4), *[(CUDAGraphMode.FULL, (4, 4), 8)] * 3]
    assert [len(r.written) for r in records] == [2, 8, 8, 8]


def test_a_wrong_draft_costs_its_step_and_nothing_else() -> None:
    records = records_of(engine_of(Oracle()), [Request("r0", [1, 2], 6)])
    assert [len(r.written) for r in records] == [1, 1, 1, 1, 1, 1]
    assert [r.batch.query_lens for r in records] == [(2,), (4,), (4,), (3,), (2,), (1,)]


def test_the_last_token_that_may_be_written_is_never_drafted() -> None:
    """Nor is one behind the end of the context: the batch then has fewer rows, in another mode."""
    records = records_of(engine_of(Oracle()), [Request("r3", [1, 2], 7)])
    assert [r.batch.query_lens for r in records] == [(2,), (4,), (2,)]
    short = replace(LIMITS, max_model_len=9)
    records = records_of(engine_of(Oracle(), short), [Request("r3", [1, 2], 99)])
    assert max(max(r.batch.context_lens) for r in records) == 8
    assert sum(len(r.written) for r in records) == 7


def test_nobody_is_preempted_for_drafts() -> None:
    requests = [Request("r3", [1, 2], 5), Request("r7", [3, 4], 5)]  # 6 slots each in the end
    for num_blocks, lens in ((7, (4, 4)), (6, (4, 1)), (5, (1, 1))):  # of 2 slots, one of them null
        engine = engine_of(Oracle(), replace(LIMITS, num_blocks=num_blocks))
        second = records_of(engine, requests)[1]
        assert second.batch.query_lens == lens
        assert not second.batch.preempted


def test_no_prompt_waits_for_drafts() -> None:
    requests = [Request("r3", [1, 2], 9), Request("r1", list(range(20)), 2, arrival_us=11.0)]
    engine = engine_of(Oracle(), replace(LIMITS, max_num_batched_tokens=6))
    lens = [record.batch.query_lens for record in records_of(engine, requests)]
    assert lens[:4] == [(2,), (1, 5), (1, 5), (1, 5)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 8))
def test_an_n_gram_is_continued_as_it_was_the_last_time(text: list[int], count: int) -> None:
    drafts = continued(text, count)
    assert len(drafts) == count
    whole = [*text, *drafts]
    known = len(text)
    for size in (3, 2, 1):
        places = [at for at in range(known - size) if text[at : at + size] == text[known - size :]]
        if size < known and places:
            period = known - size - places[-1]
            break
    else:
        period = 1
    assert all(whole[at] == whole[at - period] for at in range(known, known + count))


def test_drafts_without_a_proposer_and_beside_several_steps_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens is set, and nothing proposes"):
        Engine(FakeRunner(LIMITS), LIMITS, GraphDispatcher("NONE", [], 4))
    with pytest.raises(ValueError, match="num_speculative_tokens 3 and steps_per_replay 2"):
        replace(LIMITS, steps_per_replay=2)
    with pytest.raises(ValueError, match="num_speculative_tokens is -1"):
        replace(LIMITS, num_speculative_tokens=-1)
