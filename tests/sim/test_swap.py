"""Preemption by swap on the simulated GPU. That no text changes is in test_runner.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.engine import StepRecord
from mini_engine.sim.runner import SimRunner
from tests.support.engine_helpers import alone, sim_engine, tokens_by_id

TIGHT = SchedulerLimits(4, 12, 14, 2, 32, preemption="swap", host_blocks=40)
REQUESTS = [Request(str(i), (i + 1, 5, 9, i), 9) for i in range(5)]
EXPECTED = {r.request_id: alone(tuple(r.prompt), r.max_new_tokens) for r in REQUESTS}


def records(limits: SchedulerLimits) -> tuple[list[StepRecord], SimRunner]:
    steps: list[StepRecord] = []
    engine = sim_engine(limits=limits)
    assert tokens_by_id(engine.run(REQUESTS, on_step=steps.append)) == EXPECTED
    assert isinstance(engine.runner, SimRunner)
    return steps, engine.runner


def test_a_step_waits_until_its_blocks_have_passed_the_link() -> None:
    steps, runner = records(TIGHT)
    spec, block_bytes = runner.device.spec, runner.host_blocks.block_bytes
    copying = [s for s in steps if s.batch.swap_out or s.batch.swap_in]
    assert copying
    for step in copying:
        blocks = len(step.batch.swap_out) + len(step.batch.swap_in)
        least_us = blocks * max(block_bytes / (spec.link_gb_s * 1e3), spec.copy_us)
        assert step.ended_us - step.began_us > least_us


def test_whoever_comes_back_decodes_in_a_full_graph() -> None:
    steps, _ = records(TIGHT)
    back = [s for s in steps if s.batch.swap_in and not s.batch.has_prefill]
    assert back
    assert {s.descriptor.mode for s in back} == {CUDAGraphMode.FULL}


def test_a_step_without_copies_costs_what_it_did() -> None:
    without, _ = records(replace(TIGHT, preemption="recompute", host_blocks=0))
    steps, _ = records(TIGHT)
    assert steps[0].ended_us - steps[0].began_us == without[0].ended_us - without[0].began_us


@pytest.mark.parametrize("late", ["swap_out", "swap_in"])
def test_a_copy_after_the_step_is_seen(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = SimRunner.execute

    def hasty(self, batch, descriptor):  # type: ignore[no-untyped-def]
        tokens = execute(self, replace(batch, **{late: ()}), descriptor)
        self.host_blocks.copy(ScheduledBatch((), **{late: getattr(batch, late)}))
        return tokens

    monkeypatch.setattr(SimRunner, "execute", hasty)
    assert tokens_by_id(sim_engine(limits=TIGHT).run(REQUESTS)) != EXPECTED
