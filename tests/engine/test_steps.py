"""Claims about several decode steps a replay. That text, blocks and the order of tokens are those
of single steps is part of the properties in test_engine.py, which draw the number of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine
from tests.support.fake_runner import FakeRunner, SteppingRunner, tokens_alone

LIMITS = SchedulerLimits(
    max_num_seqs=4,
    max_num_batched_tokens=16,
    num_blocks=50,
    block_size=2,
    max_model_len=40,
    steps_per_replay=4,
)


def engine(limits: SchedulerLimits = LIMITS) -> tuple[Engine, SteppingRunner]:
    runner = SteppingRunner(limits)
    return Engine(runner, limits, GraphDispatcher("FULL_DECODE_ONLY", [1, 2, 4], 4)), runner


def test_whole_replays_come_first_and_what_is_left_runs_step_by_step() -> None:
    serving, runner = engine()
    (done,) = serving.run([Request("a", [5, 6], 12)])
    assert [batch.steps for batch in runner.batches] == [1, 4, 4, 1, 1, 1]
    assert done.tokens == tokens_alone(done.request)


def test_a_batch_runs_several_steps_as_long_as_one_request_wants_them_all() -> None:
    serving, runner = engine()
    done = serving.run([Request("short", [5, 6], 3), Request("long", [7], 9)])
    assert [(batch.num_reqs, batch.steps) for batch in runner.batches] == [(2, 1), (2, 4), (1, 4)]
    assert [len(one.tokens) for one in done] == [3, 9]


def test_tokens_of_one_replay_are_known_at_its_end() -> None:
    serving, runner = engine()
    (done,) = serving.run([Request("a", [5, 6], 9)])
    assert runner.batches[1].steps == 4
    first, *_ = done.token_times_us
    assert np.diff(done.token_times_us).tolist() == [4 * 11.0, 0, 0, 0, 4 * 11.0, 0, 0, 0]
    assert first == 10.0 + 2


def test_who_arrives_meanwhile_waits_for_one_replay_at_most() -> None:
    serving, runner = engine()
    late = Request("late", [1, 2], 2, arrival_us=20.0)  # during the first replay: 12 to 56 µs
    serving.run([Request("a", [5, 6], 20), late])
    assert [len(batch.entries) for batch in runner.batches[:3]] == [1, 1, 2]


def test_blocks_that_are_short_mean_one_step_and_preempt_nobody() -> None:
    requests = [Request("a", [1, 2], 5), Request("b", [3, 4], 5)]  # 6 slots each in the end
    for num_blocks, steps in ((7, [1, 4]), (6, [1, 1])):  # 6 blocks of 2 slots, and 5
        serving, runner = engine(replace(LIMITS, num_blocks=num_blocks))
        done = serving.run(requests)
        assert [batch.steps for batch in runner.batches][:2] == steps
        assert not runner.batches[1].preempted
        assert [one.tokens for one in done] == [tokens_alone(request) for request in requests]
        assert serving.scheduler.pool.num_free == num_blocks - 1


def test_a_runner_of_single_steps_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="a FakeRunner runs one step"):
        Engine(FakeRunner(LIMITS), LIMITS, GraphDispatcher("NONE", [], 4))
