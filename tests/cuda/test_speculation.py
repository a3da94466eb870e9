"""Speculation in PyTorch: with kernels or without, in any mode, the text of plain decoding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.generate import Kernels, decoding_model  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.dispatch.modes import CUDAGraphMode  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine, StepRecord  # noqa: E402
from mini_engine.engine.sampling import SamplingParams  # noqa: E402
from mini_engine.engine.speculation import DraftModel, Ngram  # noqa: E402
from tests.cuda.test_runner import (  # noqa: E402
    CONFIG,
    MODES,
    ROOMY,
    alone,
    garbage_is_garbage_again,
    weights_of,
    workloads,
)
from tests.support.torch_helpers import DEVICES, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__, garbage_is_garbage_again.__name__)


def runner_of(
    weights: Weights, mode: str, sizes: tuple[int, ...], limits: SchedulerLimits,
    kernels: Kernels, device: str, *, sampling: bool,
) -> TorchRunner:  # fmt: skip
    """A runner with its own cache, which has captured what it may use."""
    size, backend = (limits.num_blocks, limits.block_size), graphs_for(device)
    cache = KVCache.allocate(CONFIG, *size, weights.embed.device, torch.float32)
    sizes = () if mode == "NONE" else sizes
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs, limits.decode_query_len)
    model = decoding_model(weights, cache, backend, kernels, pytest.fail)
    runner = TorchRunner(model, limits, dispatcher, backend, sampling=sampling)
    runner.capture()
    return runner


def speculating(
    mode: str, sizes: tuple[int, ...], limits: SchedulerLimits, draft: Weights | None = None,
    kernels: Kernels = 0, device: str = "cpu", *, sampling: bool = False,
) -> Engine:  # fmt: skip
    runner = runner_of(weights_of(device), mode, sizes, limits, kernels, device, sampling=sampling)
    if draft is None:
        return Engine(runner, limits, runner.dispatcher, proposer=Ngram())
    alone = replace(limits, num_speculative_tokens=0)
    drafting = runner_of(draft, mode, sizes, alone, kernels, device, sampling=sampling)
    proposer = DraftModel(drafting, drafting.dispatcher)
    return Engine(runner, limits, runner.dispatcher, proposer=proposer)


@pytest.mark.parametrize("device", DEVICES)
@settings(derandomize=True, max_examples=max(1, settings.default.max_examples // 2))
@given(
    workloads(),
    st.sampled_from(MODES),
    st.sampled_from([(2, 8), (3,), (4, 9)]),
    st.sampled_from([0, 5, 9]),
    st.sampled_from(["n-grams", "the model", "another"]),
    st.integers(1, 4),
)
def test_every_request_gets_the_tokens_it_gets_alone_and_without_drafts(
    device: str,
    workload: tuple[list[Request], SchedulerLimits],
    mode: str,
    sizes: tuple[int, ...],
    kernels: Kernels,
    drafts: str,
    count: int,
) -> None:
    """Tokens, not bits of logits: see `tests/cuda/test_runner.py`."""
    requests, limits = workload
    limits = replace(limits, num_speculative_tokens=count, steps_per_replay=1)
    weights = {
        "n-grams": None,
        "the model": weights_of(device),
        "another": random_weights(CONFIG, torch.device(device), torch.float32, seed=4),
    }
    sampling = any(request.sampling.temperature for request in requests)
    serving = speculating(mode, sizes, limits, weights[drafts], kernels, device, sampling=sampling)
    done = serving.run(requests)
    assert {c.request_id: c.tokens for c in done} == {
        r.request_id: alone(tuple(r.prompt), r.max_new_tokens, r.sampling, device) for r in requests
    }
    assert serving.scheduler.pool.num_free == limits.num_blocks - 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernels", [0, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_k_plus_one_rows_of_every_request_run_in_one_full_graph(
    device: str, kernels: Kernels, temperature: float
) -> None:
    """A draft model that is the model is always right, so each step writes k + 1 tokens."""
    limits = replace(ROOMY, num_speculative_tokens=3)
    params = SamplingParams(temperature, seed=3)
    requests = [Request(str(i), (i, 2 * i, 5), 13, sampling=params) for i in range(3)]
    draft, sampling = weights_of(device), temperature > 0
    engine = speculating(
        "FULL_AND_PIECEWISE", (4, 8, 16), limits, draft, kernels, device, sampling=sampling
    )
    records: list[StepRecord] = []
    engine.run(requests, on_step=records.append)
    assert [len(record.written) for record in records] == [3, 12, 12, 12]
    used = Counter((r.descriptor.mode, r.descriptor.num_tokens) for r in records)
    assert used == {(CUDAGraphMode.PIECEWISE, 16): 1, (CUDAGraphMode.FULL, 16): 3}
    assert engine.scheduler.drafts.hit == engine.scheduler.drafts.asked == 27
