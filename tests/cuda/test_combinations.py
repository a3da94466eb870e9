"""What was built alone runs together: kernels, quantised weights, a cache in fp8, drawn tokens,
shared prefixes, swapping, and several steps a replay."""

from __future__ import annotations

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
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.inputs import StepInputs  # noqa: E402
from mini_engine.cuda.kv_scales import measured_scales  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.path import Kernels, decoding_model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.sampling import SamplingParams  # noqa: E402
from tests.cuda.test_runner import MODES, ROOMY, workloads  # noqa: E402
from tests.cuda.test_sampled_engine import CONFIG, some_params  # noqa: E402
from tests.support.torch_helpers import CPU  # noqa: E402


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def weights_of(quant: str | None) -> Weights:
    weights = random_weights(CONFIG, CPU, torch.float32, seed=3)
    return weights.as_quantized(quant) if quant else weights


def engine(
    mode: str,
    sizes: tuple[int, ...],
    limits: SchedulerLimits,
    kernels: Kernels,
    quant: str | None = None,
    *,
    fp8: bool = False,
    sampling: bool = False,
) -> Engine:
    weights, backend = weights_of(quant), graphs_for("cpu")
    scales = measured_scales(weights) if fp8 else ()
    size = limits.num_blocks, limits.block_size
    kv_cache = KVCache.allocate(CONFIG, *size, CPU, torch.float32, scales)
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    model = decoding_model(weights, kv_cache, backend, kernels, pytest.fail)
    runner = TorchRunner(model, limits, dispatcher, backend, sampling=sampling)
    runner.capture()
    return Engine(runner, limits, dispatcher)


@cache
def alone(
    prompt: tuple[int, ...], new: int, params: SamplingParams, quant: str | None, fp8: bool
) -> tuple[int, ...]:
    """The tokens of a request that has the plain model for itself, without graphs."""
    limits = replace(ROOMY, max_num_batched_tokens=32)
    serving = engine("NONE", (), limits, 0, quant, fp8=fp8, sampling=True)
    return serving.run([Request("alone", prompt, new, sampling=params)])[0].tokens


# The same examples in every profile: a number that lies on the edge between two of fp8 may fall to
# either side beside other rows, where sums run in another order. A tenth of the examples: each
# captures a ladder.
@settings(derandomize=True, max_examples=max(1, settings.default.max_examples // 10))
@given(
    workloads(),
    st.lists(some_params, min_size=5, max_size=5),
    st.sampled_from(["NONE", *MODES]),
    st.sampled_from([(2, 8), (3,)]),
    st.sampled_from([0, 5, 9]),
    st.sampled_from([None, "int8", "int4"]),
    st.booleans(),
)
def test_a_request_gets_the_text_of_its_weights_and_cache_whatever_else_is_switched_on(
    workload: tuple[list[Request], SchedulerLimits],
    params: list[SamplingParams],
    mode: str,
    sizes: tuple[int, ...],
    kernels: Kernels,
    quant: str | None,
    fp8: bool,
) -> None:
    requests, limits = workload
    requests = [replace(r, sampling=p) for r, p in zip(requests, params, strict=False)]
    serving = engine(mode, sizes, limits, kernels, quant, fp8=fp8, sampling=True)
    done = serving.run(requests)
    assert {c.request_id: c.tokens for c in done} == {
        r.request_id: alone(tuple(r.prompt), r.max_new_tokens, r.sampling, quant, fp8)
        for r in requests
    }
    assert serving.scheduler.pool.num_free == limits.num_blocks - 1
    assert getattr(serving.scheduler, "num_free_host", limits.host_blocks) == limits.host_blocks


@pytest.mark.parametrize("mode", ["NONE", "FULL", "FULL_AND_PIECEWISE"])
def test_a_prompt_of_one_token_never_stands_in_a_kernel_that_stores_and_reads(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b begins with a block that a, a decode, fills in the step that admits b: in one launch, b
    would race with a. The CPU computes row by row and could not tell."""
    limits = replace(ROOMY, prefix_caching=True)
    serving = engine(mode, () if mode == "NONE" else (1, 2, 4), limits, 5)
    runner = serving.runner
    assert isinstance(runner, TorchRunner)
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
