"""The engine in PyTorch: whatever is switched on, a request gets the text that it gets alone."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.attention import Attention, DecodeAttention  # noqa: E402
from mini_engine.cuda.generate import Kernels, decoding_model  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.dispatch.modes import CUDAGraphMode  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.sampling import GREEDY, SamplingParams  # noqa: E402
from tests.cuda.test_fused import random_step  # noqa: E402
from tests.support.torch_helpers import DEVICES, TINY, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)
CONFIG = replace(TINY, num_layers=1, head_dim=32)  # which the fused attention asks for
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
ROOMY = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4, max_model_len=32
)


@pytest.fixture(autouse=True, scope="module")
def garbage_is_garbage_again() -> Iterator[None]:
    yield
    gc.unfreeze()


@cache
def weights_of(device: str) -> Weights:
    return random_weights(CONFIG, torch.device(device), torch.float32, seed=3)


def engine(
    mode: str,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    limits: SchedulerLimits = ROOMY,
    kernels: Kernels = 0,
    device: str = "cpu",
    *,
    sampling: bool = False,
    capture: bool = True,
) -> tuple[Engine, TorchRunner]:
    weights, backend = weights_of(device), graphs_for(device)
    size = limits.num_blocks, limits.block_size
    kv_cache = KVCache.allocate(CONFIG, *size, weights.embed.device, torch.float32)
    dispatcher = GraphDispatcher(mode, () if mode == "NONE" else sizes, limits.max_num_seqs)
    model = decoding_model(weights, kv_cache, backend, kernels, pytest.fail)
    runner = TorchRunner(model, limits, dispatcher, backend, sampling=sampling)
    if capture:
        gc.freeze()  # each capture collects garbage: it need not look at what was imported
        runner.capture()
    return Engine(runner, limits, dispatcher), runner


@cache
def alone(
    prompt: tuple[int, ...], new: int, params: SamplingParams = GREEDY, device: str = "cpu"
) -> tuple[int, ...]:
    """The tokens of a request that has the plain model for itself, without graphs."""
    limits = replace(ROOMY, max_num_batched_tokens=32)
    serving, _ = engine("NONE", (), limits, 0, device, sampling=True)
    return serving.run([Request("alone", prompt, new, sampling=params)])[0].tokens


# ---------------------------------------------------------------- one text, come what may

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    top_k=st.sampled_from([0, 3, 20]),
    top_p=st.sampled_from([1.0, 0.9, 0.5]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[Request], SchedulerLimits]:
    beginning = st.sampled_from([(), (1, 2, 3, 4, 5, 6)])
    ends = st.lists(st.integers(0, TINY.vocab_size - 1), min_size=1, max_size=12).map(tuple)
    prompts = st.builds(lambda a, b: a + b, beginning, ends)
    sampling = params if draw(st.booleans()) else st.just(GREEDY)
    requests = [
        Request(str(i), prompt, draw(st.integers(1, 7)), sampling=draw(sampling))
        for i, prompt in enumerate(draw(st.lists(prompts, min_size=1, max_size=5)))
    ]
    block_size = draw(st.integers(1, 5))
    longest = max(len(r.prompt) + r.max_new_tokens - 1 for r in requests)
    budget = draw(st.integers(1, 16))
    limits = SchedulerLimits(
        max_num_seqs=draw(st.integers(1, min(5, budget))),
        max_num_batched_tokens=budget,
        num_blocks=1 + -(-longest // block_size) + draw(st.integers(0, 5)),
        block_size=block_size,
        max_model_len=32,
        prefix_caching=draw(st.booleans()),
        steps_per_replay=draw(st.sampled_from([1, 1, 1, 3])),
    )
    return requests, limits


# The tokens are compared, not the bits of the logits: PyTorch adds a row up in another order when
# other rows stand beside it. Random weights leave no two scores that close.
# Half of the profile's examples: each captures a ladder, and the emulator takes its time.
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=max(1, settings.default.max_examples // 2))
@given(
    workloads(),
    st.sampled_from(MODES),
    st.sampled_from([(2, 8), (3,), (5,)]),
    st.sampled_from([0, 5, 9]),
)
def test_every_request_gets_the_tokens_it_gets_alone(
    device: str,
    workload: tuple[list[Request], SchedulerLimits],
    mode: str,
    sizes: tuple[int, ...],
    kernels: Kernels,
) -> None:
    """In any batch, block size, mode and number of steps a replay, after preemption,
    with shared prefixes, kernels; greedy or drawn."""
    requests, limits = workload
    sampling = any(request.sampling.temperature for request in requests)
    serving, _ = engine(mode, sizes, limits, kernels, device, sampling=sampling)
    done = serving.run(requests)
    assert {c.request_id: c.tokens for c in done} == {
        r.request_id: alone(tuple(r.prompt), r.max_new_tokens, r.sampling, device) for r in requests
    }
    assert serving.scheduler.pool.num_free == limits.num_blocks - 1


@pytest.mark.parametrize("device", DEVICES)
def test_all_three_run_time_modes_are_used(device: str) -> None:
    used: Counter[CUDAGraphMode] = Counter()
    requests = [Request(str(i), tuple(range(1, 7 + i)), 6) for i in range(3)]
    serving, _ = engine("FULL_AND_PIECEWISE", device=device)
    serving.run(requests, on_step=lambda r: used.update([r.descriptor.mode]))
    assert set(used) == {CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL}


@pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_AND_PIECEWISE"])
def test_a_prompt_of_one_token_never_stands_in_a_kernel_that_stores_and_reads(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b begins with a block that a, a decode, fills in the step that admits b: in one launch, b
    would race with a. The CPU computes row by row and could not tell."""
    limits = replace(ROOMY, prefix_caching=True)
    serving, runner = engine(mode, (1, 2, 4), limits, 5)
    serving.submit(Request("a", (1, 2, 3, 4, 5, 6), 9))
    for _ in range(2):
        serving.step()
    (a,) = serving.scheduler.running
    assert (a.num_tokens, a.num_computed) == (8, 7)
    serving.submit(Request("b", (*a.token_ids(0, 8), 9), 5))

    def refused(_rung: int) -> None:
        pytest.fail("the graph of decodes was replayed")

    def body(self: Model, inputs: StepInputs, attention: Attention) -> Any:
        assert not isinstance(attention, DecodeAttention)
        return eagerly(self, inputs, attention)

    eagerly: Callable[..., Any] = type(runner.model).body
    monkeypatch.setattr(runner.full, "replay", refused)
    monkeypatch.setattr(type(runner.model), "body", body)
    record = serving.step()
    assert record is not None
    first, second = record.batch.entries
    assert (first.start, first.query_len, second.start, second.query_len) == (7, 1, 8, 1)
    assert second.block_table[1] == first.block_table[1]


# ---------------------------------------------------------------- what is captured


@pytest.mark.parametrize("device", DEVICES)
def test_layers_plus_one_graphs_for_a_piecewise_rung_and_one_for_a_full_one(device: str) -> None:
    _, runner = engine("FULL_AND_PIECEWISE", device=device, capture=False)
    report = runner.capture()
    pieces = [(r.rung, r.graphs) for r in report.rungs]
    assert pieces == [(8, 2), (4, 2), (2, 2), (1, 2), (4, 1), (2, 1), (1, 1)]
    assert report.time_us > 0


@pytest.mark.parametrize("device", DEVICES)
def test_all_ladders_of_a_runner_share_one_pool_and_one_stream(device: str) -> None:
    limits = replace(ROOMY, steps_per_replay=2)
    _, runner = engine("FULL_AND_PIECEWISE", limits=limits, device=device)
    ladders = (runner.piecewise, runner.mixed, runner.full, runner.several)
    assert all(ladder.stream is runner.full.stream for ladder in ladders)
    assert all(ladder.pool is runner.full.pool for ladder in ladders)


# ---------------------------------------------------------------- drawn tokens


@pytest.mark.parametrize("rows", [3, 7])
def test_the_graph_of_a_greedy_step_ends_in_our_kernels(rows: int) -> None:
    """Up to 4 rows our head, then a library's."""
    weights, backend = weights_of("cpu"), graphs_for("cpu")
    inputs, cache = random_step(weights, rows)
    model = decoding_model(weights, cache, backend, 5, pytest.fail)
    hidden, graph = torch.randn(rows, CONFIG.hidden_size), backend.CUDAGraph()
    with backend.graph(graph):
        model.next_step(hidden, inputs)
    ops = [op.removeprefix("launch_bound.").removesuffix(".default") for op in graph.ops]
    argmax = ["aten.argmax", "aten._to_copy"] if rows > 4 else []
    first = ["rms_norm", "aten.mm"] if rows > 4 else ["norm_lm_head"]
    assert ops == [*first, *argmax, "pick_and_advance"]


def test_an_engine_that_is_greedy_refuses_a_request_that_is_not() -> None:
    serving, _ = engine("FULL", (2,))
    with pytest.raises(ValueError, match=r"temperature is 0.8"):
        serving.run([Request("b", (1, 2), 3, sampling=SamplingParams(0.8))])
