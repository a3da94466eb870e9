"""Lab 7b's engine without pages writes, token by token, what the paged engine writes."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from labs.lab07b_static_cache.static_cache import StaticCache  # noqa: E402
from labs.lab07b_static_cache.static_engine import StaticEngine  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from tests.support.torch_helpers import DEVICES, FAMILIES, LIMITS, TINY, torch_model  # noqa: E402

T_MAX = LIMITS.max_model_len


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    gc.freeze()  # each capture collects garbage: it need not look at what was imported
    with torch.inference_mode():
        yield
    gc.unfreeze()


@cache
def weights_of(device: str, family: str = "qwen3") -> Weights:
    return random_weights(FAMILIES[family], torch.device(device), torch.float32, seed=2)


def static_engine(
    device: str = "cpu",
    batch: int = 3,
    t_max: int = T_MAX,
    family: str = "qwen3",
    *,
    eager: bool = False,
) -> StaticEngine:
    weights = weights_of(device, family)
    table = StaticCache.allocate(
        weights.config, batch, t_max, weights.embed.device, weights.embed.dtype
    )
    model = Model(weights, table.blocks())
    return StaticEngine(model, table, graphs_for(device), eager=eager)


def some_requests(seed: int, count: int) -> list[Request]:
    """Prompts of 1 to 12 tokens, 1 to 12 new ones or fewer: one token in five ends a text."""
    rng = random.Random(seed)
    return [
        Request(
            f"request {i}",
            [rng.randrange(TINY.vocab_size) for _ in range(rng.randint(1, 12))],
            rng.randint(1, 12),
            eos_ids=frozenset(rng.sample(range(TINY.vocab_size), 7)),
        )
        for i in range(count)
    ]


def paged(requests: list[Request], device: str = "cpu", family: str = "qwen3") -> list[object]:
    """What the paged engine writes, eagerly: tokens, and why each request ended."""
    weights, none = weights_of(device, family), GraphDispatcher("NONE", (), LIMITS.max_num_seqs)
    model = torch_model(weights, LIMITS.num_blocks, LIMITS.block_size)
    runner = TorchRunner(model, LIMITS, none, graphs_for(device))
    done = {c.request_id: c for c in Engine(runner, LIMITS, none).run(requests)}
    return [(done[r.request_id].tokens, done[r.request_id].finish_reason) for r in requests]


def static(engine: StaticEngine, requests: list[Request]) -> list[object]:
    return [(c.tokens, c.finish_reason) for c in engine.generate(requests)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
@pytest.mark.parametrize("seed", range(2))
def test_it_writes_token_by_token_what_the_paged_engine_writes(
    device: str, seed: int, *, eager: bool
) -> None:
    """Ragged prompts, answers that end at different times, more requests than rows."""
    requests = some_requests(seed, 7)
    engine = static_engine(device, eager=eager)
    assert static(engine, requests) == paged(requests, device)
    assert bool(engine.graphs) is not eager


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_greedy_requests_too(family: str) -> None:
    requests = some_requests(9, 4)
    expected = paged(requests, family=family)
    assert static(static_engine(family=family, batch=4), requests) == expected
