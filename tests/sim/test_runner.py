"""The engine on the simulated device: in every mode, the tokens a request gets alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import StepRecord
from mini_engine.sim.launch import Buffer
from mini_engine.sim.model import StepInputs
from mini_engine.sim.runner import SimRunner
from tests.support.capture_events import capture_events
from tests.support.engine_helpers import VOCAB, alone, sim_engine, tokens_by_id

MODES = ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
ENDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14).map(tuple)
BEGINNINGS = st.sampled_from([(), (1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 7, 7)])
PROMPTS = st.builds(lambda beginning, end: beginning + end, BEGINNINGS, ENDS)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Request], SchedulerLimits]:
    """Requests, and a cache just large enough for the longest of them, or somewhat larger."""
    requests = [
        Request(str(i), prompt, draw(st.integers(1, 8)), arrival_us=draw(st.integers(0, 2000)))
        for i, prompt in enumerate(draw(st.lists(PROMPTS, min_size=1, max_size=6)))
    ]
    block_size = draw(st.integers(1, 6))
    longest = max(len(r.prompt) + r.max_new_tokens - 1 for r in requests)
    enough = 1 + -(-longest // block_size)
    budget = draw(st.integers(1, 20))
    limits = SchedulerLimits(
        max_num_seqs=draw(st.integers(1, min(6, budget))),
        max_num_batched_tokens=budget,
        num_blocks=enough + draw(st.integers(0, 6)),
        block_size=block_size,
        max_model_len=32,
        prefix_caching=draw(st.booleans()),
    )
    return requests, limits


@given(
    workloads(),
    st.sampled_from(MODES),
    st.lists(st.integers(1, 20), unique=True, max_size=4).map(sorted),
)
def test_every_request_gets_the_tokens_it_gets_alone(
    workload: tuple[list[Request], SchedulerLimits], mode: str, sizes: list[int]
) -> None:
    requests, limits = workload
    engine = sim_engine(mode, sizes, limits)
    done = tokens_by_id(engine.run(requests))
    expected = {r.request_id: alone(tuple(r.prompt), r.max_new_tokens) for r in requests}
    assert done == expected
    assert engine.scheduler.pool.num_free == limits.num_blocks - 1


def test_each_step_runs_in_the_mode_it_was_dispatched_to() -> None:
    requests = [Request(str(i), tuple(range(1, 6 + i)), 6) for i in range(3)]
    engine = sim_engine()
    device = engine.runner.device  # type: ignore[attr-defined]
    graphs: Counter[CUDAGraphMode] = Counter()
    before = device.counters.copy()

    def count(record: StepRecord) -> None:
        nonlocal before
        graphs[record.descriptor.mode] += 1
        done = device.counters.since(before)
        before = device.counters.copy()
        layers = 2
        expected = {
            CUDAGraphMode.NONE: (0, 1 + 1 + 9 * layers + 1 + 3),
            CUDAGraphMode.PIECEWISE: (layers + 1, 1 + layers + 1 + layers + 3),
            CUDAGraphMode.FULL: (1, 2),
        }[record.descriptor.mode]
        assert (done.graphs, done.launches) == expected

    engine.run(requests, on_step=count)
    assert graphs[CUDAGraphMode.FULL] > 0
    assert graphs[CUDAGraphMode.PIECEWISE] > 0
    assert graphs[CUDAGraphMode.NONE] > 0  # the first prefill is longer than the top rung


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_a_batch_runs_at_the_rung_it_was_ordered_to(mode: str) -> None:
    """Ordered to run 3 rows at 8, the runner must not replay 4, which they would fit as well."""
    engine = sim_engine(mode)
    runner = engine.runner
    assert isinstance(runner, SimRunner)
    for i in range(3):
        engine.submit(Request(str(i), (i + 1,), 4))
    batch = engine.scheduler.step()
    assert batch
    expected = runner.execute(batch, BatchDescriptor(CUDAGraphMode.NONE, 3, 3))
    order = next(d for d in engine.dispatcher.descriptors() if d.num_tokens == 8)
    runner.device.recording = True
    assert runner.execute(batch, order) == expected
    replays = [e.name.split(" (")[0] for e in runner.device.timeline if e.category == "graph"]
    assert replays
    assert all(name.endswith(" of 8") for name in replays)


def test_out_of_memory_while_capturing_drops_rungs_and_serves_on() -> None:
    # 8,192 tokens want more activations than this device has room for beside the model
    sizes = (1, 2, 4, 8, 8192)
    engine = sim_engine("FULL", sizes, capture=False, megabytes=6)
    runner = engine.runner
    assert isinstance(runner, SimRunner)
    report = runner.capture()
    assert report.dropped == [8192]
    assert 8192 not in [d.num_tokens for d in engine.dispatcher.descriptors()]
    assert "dropped rung 8192" in report.lines()[0]
    done = engine.run([Request("a", (1, 2, 3), 5)])
    assert done[0].tokens == alone((1, 2, 3), 5)


def test_capturing_while_requests_are_in_flight_changes_nothing() -> None:
    engine = sim_engine(capture=False)
    engine.dispatcher.graphs_captured = False
    requests = [Request(str(i), (i + 1, 7, 9), 8) for i in range(3)]
    for request in requests:
        engine.submit(request)
    for _ in range(4):
        engine.step()
    engine.runner.capture()  # type: ignore[attr-defined]
    engine.dispatcher.graphs_captured = True
    tokens = {}
    while engine.scheduler.has_unfinished:
        record = engine.step()
        assert record
        tokens |= tokens_by_id(record.completions)
    assert tokens == {r.request_id: alone(tuple(r.prompt), 8) for r in requests}


def test_a_step_costs_the_host_its_scheduling() -> None:
    engine = sim_engine("NONE", ())
    host = engine.runner.device.spec.host_step_us  # type: ignore[attr-defined]
    completion = engine.run([Request("a", (1,), 3)])[0]
    assert (np.diff(completion.token_times_us) > host).all()


@pytest.mark.parametrize("mode", MODES)
def test_the_runner_captures_in_the_order_that_vllm_0_33_does(mode: str) -> None:
    """`capture_events` is held against vLLM's own sequence; here the runner is held against it."""
    engine = sim_engine(mode, (1, 2, 4), capture=False)
    runner = engine.runner
    assert isinstance(runner, SimRunner)
    ran: list[tuple[str, int]] = []
    body = runner.model.body

    def watched(inputs: StepInputs) -> Buffer:
        ran.append(("record" if runner.device.recorder else "warmup", len(inputs.input_ids)))
        return body(inputs)

    runner.model.body = watched  # type: ignore[method-assign]
    runner.capture()
    planned: list[tuple[str, int]] = []
    for event in capture_events(engine.dispatcher.descriptors()):
        if event[0] == "forward":
            planned.append(("record" if len(planned) % 2 else "warmup", event[2]))
    assert ran == planned
