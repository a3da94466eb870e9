"""Sampling in the engine and in its graphs: a seed gives one text, however the engine runs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from mini_engine.cuda.attention import DecodeAttention  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.graphs.capture import GraphRunner  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.sampling import SeededSampler, greedy  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.engine.sampling import GREEDY, SamplingParams  # noqa: E402
from tests.cuda.test_fused import random_step  # noqa: E402
from tests.cuda.test_runner import MODES, ROOMY, workloads  # noqa: E402
from tests.support.torch_helpers import DEVICES, TINY  # noqa: E402

CONFIG = replace(TINY, num_layers=1, head_dim=32)  # which the fused attention asks for


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="module")
def garbage_is_garbage_again() -> Iterator[None]:
    yield
    gc.unfreeze()


@cache
def weights_on(device: str) -> Weights:
    return random_weights(CONFIG, torch.device(device), torch.float32, seed=3)


def model_of(device: str, num_blocks: int, block_size: int, *, fused: bool) -> Model:
    weights = weights_on(device)
    cache = KVCache.allocate(CONFIG, num_blocks, block_size, weights.embed.device, torch.float32)
    return FusedModel(weights, cache, kernels_per_layer=5) if fused else Model(weights, cache)


def engine(
    device: str,
    mode: str,
    sizes: tuple[int, ...] = (),
    limits: SchedulerLimits = ROOMY,
    *,
    fused: bool = False,
    sampling: bool = True,
) -> Engine:
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    model = model_of(device, limits.num_blocks, limits.block_size, fused=fused)
    runner = TorchRunner(model, limits, dispatcher, graphs_for(device), sampling=sampling)
    if sizes:
        gc.freeze()  # each capture collects garbage: it need not look at what was imported
        runner.capture()
    return Engine(runner, limits, dispatcher)


@cache
def alone(
    device: str, prompt: tuple[int, ...], new: int, params: SamplingParams
) -> tuple[int, ...]:
    """The tokens of a request that has the engine for itself, without graphs."""
    limits = replace(ROOMY, max_num_batched_tokens=32)
    request = Request("alone", prompt, new, sampling=params)
    return engine(device, "NONE", (), limits).run([request])[0].tokens


some_params = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.6, 1.0, 3.0]),
        top_k=st.sampled_from([0, 3, 20]),
        top_p=st.sampled_from([1.0, 0.9, 0.5]),
        min_p=st.sampled_from([0.0, 0.05]),
        seed=st.integers(0, 2**32 - 1),
    ),
)


# The tokens are compared, not the bits of logits, which are sums in another order beside other
# rows: no two scores of these lie so near, nor a mass so near to its top-p. A tenth of the
# profile's examples: each captures a ladder, and the emulator takes its time.
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=max(1, settings.default.max_examples // 10))
@given(
    workloads(),
    st.lists(some_params, min_size=5, max_size=5),
    st.sampled_from(MODES),
    st.sampled_from([(2, 8), (3,), (5,)]),
    st.booleans(),
)
def test_a_seed_gives_one_text_in_any_batch_mode_block_size_and_after_preemption(
    device: str,
    workload: tuple[list[Request], SchedulerLimits],
    params: list[SamplingParams],
    mode: str,
    sizes: tuple[int, ...],
    fused: bool,
) -> None:
    """Greedy and sampled requests side by side; by the plain model and by the fused one."""
    requests, limits = workload
    requests = [replace(r, sampling=p) for r, p in zip(requests, params, strict=False)]
    done = engine(device, mode, sizes, limits, fused=fused).run(requests)
    assert {c.request_id: c.tokens for c in done} == {
        r.request_id: alone(device, tuple(r.prompt), r.max_new_tokens, r.sampling) for r in requests
    }


def test_a_preempted_request_goes_on_with_the_text_that_it_would_have_had() -> None:
    limits = replace(ROOMY, num_blocks=9, max_num_seqs=3)
    requests = [
        Request(str(i), (i + 1, 5, 9), 14, sampling=SamplingParams(1.5, seed=i)) for i in range(3)
    ]
    done = engine("cpu", "FULL_AND_PIECEWISE", (1, 2, 4), limits, fused=True).run(requests)
    assert sum(c.num_preemptions for c in done) > 0
    for c in done:
        assert c.tokens == alone("cpu", tuple(c.request.prompt), 14, c.request.sampling)
    assert len({c.tokens for c in done}) == 3


def test_requests_that_share_the_blocks_of_a_prompt_draw_texts_of_their_own() -> None:
    limits, prompt = replace(ROOMY, prefix_caching=True), tuple(range(9))
    several = [SamplingParams(2.0, seed=7), SamplingParams(2.0, seed=8), GREEDY]
    serving = engine("cpu", "FULL_AND_PIECEWISE", (1, 2, 4), limits, fused=True)
    texts = []
    for number, params in enumerate(several):  # one after the other: the first fills the cache
        (done,) = serving.run([Request(str(number), prompt, 8, sampling=params)])
        texts.append(done.tokens)
    assert texts == [alone("cpu", prompt, 8, params) for params in several]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(("steps", "replays"), [(1, 6), (3, 2), (6, 1)])
def test_k_steps_a_replay_draw_what_single_steps_draw(
    steps: int, replays: int, fused: bool, device: str
) -> None:
    """The counter of the noise is a tensor that the graph moves on."""
    inputs, cache = random_step(weights_on(device), 3)
    start = [tensor.clone() for tensor in vars(inputs).values()]
    caches = [t.clone() for t in (*cache.keys, *cache.values)]
    sampler = SeededSampler(3, inputs.input_ids.device)
    plain, attention = Model(weights_on(device), cache), DecodeAttention(8, 4)
    sampler.set_rows([SamplingParams(2.0, seed=1), SamplingParams(1.0, top_k=5, seed=2)])
    wanted = torch.cat([plain.decode(inputs, attention, 1, sampler) for _ in range(6)])

    fused_model = FusedModel(weights_on(device), cache, kernels_per_layer=5)
    model = fused_model if fused else plain
    backend = graphs_for(device)
    runner = GraphRunner(
        backend,
        lambda _: model.decode(inputs, attention, steps, sampler),
        [3],
        backend.graph_pool_handle(),
    )
    runner.capture()
    before = (*vars(inputs).values(), *cache.keys, *cache.values)
    for tensor, value in zip(before, [*start, *caches], strict=True):
        tensor.copy_(value)
    got = torch.cat([runner.replay(3).clone() for _ in range(replays)])
    assert got[:, :2].tolist() == wanted[:, :2].tolist()  # the third row is padding
    assert len(got[:, 0].unique()) > 1


@pytest.mark.parametrize("rows", [3, 7])
def test_a_sampled_step_has_two_kernels_more_and_a_greedy_one_is_as_before(rows: int) -> None:
    """Up to 4 rows our head, then a library's: the graph of a greedy engine holds no draw."""
    inputs, cache = random_step(weights_on("cpu"), rows)
    model = FusedModel(weights_on("cpu"), cache, kernels_per_layer=5)
    hidden, backend = torch.randn(rows, CONFIG.hidden_size), graphs_for("cpu")
    ops = []
    for sample in (greedy, SeededSampler(rows, torch.device("cpu"))):
        graph = backend.CUDAGraph()
        with backend.graph(graph):
            model.next_step(hidden, inputs, sample)
        ops.append([op.removeprefix("launch_bound.").removesuffix(".default") for op in graph.ops])
    argmax = ["aten.argmax", "aten._to_copy"] if rows > 4 else []
    first = ["rms_norm", "aten.mm"] if rows > 4 else ["norm_lm_head"]
    assert ops[0] == [*first, *argmax, "pick_and_advance"]
    assert ops[1] == [*first, "find_cutoffs", "draw", "pick_and_advance"]


def test_an_engine_that_is_greedy_refuses_a_request_that_is_not() -> None:
    serving = engine("cpu", "FULL", (2,), sampling=False)
    message = r"temperature is 0.8, .*make it with sampling=True"
    with pytest.raises(ValueError, match=message):
        serving.run([Request("b", (1, 2), 3, sampling=SamplingParams(0.8))])


def test_other_seeds_write_other_texts_and_a_cold_request_writes_the_greedy_one() -> None:
    texts = {alone("cpu", (1, 2), 12, SamplingParams(2.0, seed=seed)) for seed in range(8)}
    assert len(texts) == 8
    greedy_text = alone("cpu", (1, 2), 12, GREEDY)
    for cold in (SamplingParams(2.0, top_k=1, seed=3), SamplingParams(1e-5, seed=4)):
        assert alone("cpu", (1, 2), 12, cold) == greedy_text
    plain = engine("cpu", "NONE", sampling=False).run([Request("a", (1, 2), 12)])
    assert plain[0].tokens == greedy_text
