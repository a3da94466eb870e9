"""The engine in PyTorch: graphs, real or emulated, write what eager writes, come what may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.dispatch.modes import CUDAGraphMode  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Completion, Engine  # noqa: E402
from tests.support.torch_helpers import DEVICES, TINY, EagerRunner, torch_model  # noqa: E402

MODES = ["PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
ROOMY = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4, max_model_len=32
)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def weights_on(device: str) -> Weights:
    return random_weights(TINY, torch.device(device), torch.float32, seed=3)


def engine(
    device: str,
    mode: str,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    limits: SchedulerLimits = ROOMY,
    *,
    capture: bool = True,
) -> Engine:
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    model = torch_model(weights_on(device), limits.num_blocks, limits.block_size)
    runner = TorchRunner(model, limits, dispatcher, graphs_for(device))
    if capture:
        runner.capture()
    return Engine(runner, limits, dispatcher)


def tokens(completions: list[Completion]) -> dict[str, tuple[int, ...]]:
    return {c.request_id: c.tokens for c in completions}


@cache
def alone(device: str, prompt: tuple[int, ...], new: int) -> tuple[int, ...]:
    """The tokens of a request that has the engine for itself, without graphs."""
    limits = replace(ROOMY, max_num_batched_tokens=32)
    none = GraphDispatcher("NONE", [], limits.max_num_seqs)
    runner = EagerRunner(weights_on(device), limits)
    return Engine(runner, limits, none).run([Request("alone", prompt, new)])[0].tokens


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Request], SchedulerLimits]:
    beginning = st.sampled_from([(), (1, 2, 3, 4, 5, 6)])
    ends = st.lists(st.integers(0, TINY.vocab_size - 1), min_size=1, max_size=12).map(tuple)
    prompts = st.builds(lambda a, b: a + b, beginning, ends)
    requests = [
        Request(str(i), prompt, draw(st.integers(1, 7)))
        for i, prompt in enumerate(draw(st.lists(prompts, min_size=1, max_size=5)))
    ]
    block_size = draw(st.integers(1, 5))
    longest = max(len(r.prompt) + r.max_new_tokens - 1 for r in requests)
    budget = draw(st.integers(1, 16))
    preemption = draw(st.sampled_from(["recompute", "swap"]))
    limits = SchedulerLimits(
        max_num_seqs=draw(st.integers(1, min(5, budget))),
        max_num_batched_tokens=budget,
        num_blocks=1 + -(-longest // block_size) + draw(st.integers(0, 5)),
        block_size=block_size,
        max_model_len=32,
        prefix_caching=draw(st.booleans()),
        preemption=preemption,
        host_blocks=0 if preemption == "recompute" else draw(st.sampled_from([3, 99])),
        steps_per_replay=draw(st.sampled_from([1, 1, 1, 3])),
    )
    return requests, limits


# The tokens are compared, not the bits of the logits: PyTorch adds a row up in another order when
# other rows stand beside it. Random weights leave no two logits that close.
# A quarter of the profile's examples: each captures a ladder, and the emulator takes its time.
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=settings.default.max_examples // 4)
@given(workloads(), st.sampled_from(MODES), st.sampled_from([(2, 8), (3,), (5,)]))
def test_every_request_gets_the_tokens_it_gets_alone(
    device: str, workload: tuple[list[Request], SchedulerLimits], mode: str, sizes: tuple[int, ...]
) -> None:
    requests, limits = workload
    serving = engine(device, mode, sizes, limits)
    done = tokens(serving.run(requests))
    assert done == {
        r.request_id: alone(device, tuple(r.prompt), r.max_new_tokens) for r in requests
    }
    assert serving.scheduler.pool.num_free == limits.num_blocks - 1


@pytest.mark.parametrize("device", DEVICES)
def test_all_three_run_time_modes_are_used(device: str) -> None:
    used: Counter[CUDAGraphMode] = Counter()
    requests = [Request(str(i), tuple(range(1, 7 + i)), 6) for i in range(3)]
    serving = engine(device, "FULL_AND_PIECEWISE")
    done = serving.run(requests, on_step=lambda r: used.update([r.descriptor.mode]))
    assert set(used) == {CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL}
    for completion in done:
        assert completion.tokens == alone(device, tuple(completion.request.prompt), 6)


@pytest.mark.parametrize("device", DEVICES)
def test_layers_plus_one_graphs_for_a_piecewise_rung_and_one_for_a_full_one(device: str) -> None:
    runner = engine(device, "FULL_AND_PIECEWISE", capture=False).runner
    assert isinstance(runner, TorchRunner)
    report = runner.capture()
    pieces = [(r.rung, r.graphs) for r in report.rungs]
    assert pieces == [(8, 3), (4, 3), (2, 3), (1, 3), (4, 1), (2, 1), (1, 1)]
    assert report.time_us > 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_largest_first_makes_the_pool_and_the_others_live_in_it(device: str) -> None:
    runner = engine(device, "FULL_DECODE_ONLY", (1, 2, 4), capture=False).runner
    assert isinstance(runner, TorchRunner)
    report = runner.capture()
    first, *others = report.rungs
    assert first.rung == 4
    assert first.pool_growth_bytes > 0
    assert sum(r.pool_growth_bytes for r in others) <= first.pool_growth_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_all_ladders_of_a_runner_share_one_pool_and_one_stream(device: str) -> None:
    limits = replace(ROOMY, steps_per_replay=2)
    runner = engine(device, "FULL_AND_PIECEWISE", limits=limits).runner
    assert isinstance(runner, TorchRunner)
    ladders = (runner.piecewise, runner.mixed, runner.full, runner.several)
    assert all(ladder.stream is runner.full.stream for ladder in ladders)
    assert all(ladder.pool is runner.full.pool for ladder in ladders)


class Stop(BaseException):
    """Ctrl-C, as far as the code can tell."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_DECODE_ONLY"])
def test_an_interrupt_while_capturing_leaves_no_broken_state(
    device: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = engine(device, mode, capture=False)
    runner = serving.runner
    assert isinstance(runner, TorchRunner)
    head, body, calls = runner.model.head, runner.model.body, 0

    def interrupted(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:  # the capture of the second rung
            raise Stop
        return body(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(runner.model, "body", interrupted)
    with pytest.raises(Stop):
        runner.capture()
    assert runner.model.head == head
    assert not runner.backend.is_current_stream_capturing()
    assert not runner.full.captured
    assert not runner.piecewise.captured
    done = serving.run([Request("a", (1, 2, 3), 5)])  # eagerly
    assert done[0].tokens == alone(device, (1, 2, 3), 5)
    runner.capture()
    serving.dispatcher.graphs_captured = True
    used: list[CUDAGraphMode] = []
    done = serving.run(
        [Request("b", (1, 2, 3), 5)], on_step=lambda r: used.append(r.descriptor.mode)
    )
    assert done[0].tokens == alone(device, (1, 2, 3), 5)
    assert set(used) - {CUDAGraphMode.NONE}
