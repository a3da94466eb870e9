"""A mixture of experts in PyTorch: one text in every mode, and shapes that no routing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda import experts  # noqa: E402
from mini_engine.cuda.generate import decoding_model  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from mini_engine.model.config import Experts  # noqa: E402
from tests.support.torch_helpers import DEVICES, MIXTURE, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)
LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4, max_model_len=32
)
CONFIG = replace(  # rows of 16 bytes and more, which a grouped product on a GPU asks for
    MIXTURE, num_layers=1, experts=Experts(5, 2, 16, normalized=True)
)
REQUESTS = [Request(str(i), tuple(range(1 + i, 4 + 2 * i)), 5 + i) for i in range(4)]


def texts(mode: str, device: str) -> tuple[list[tuple[int, ...]], int, list[str]]:
    """What is written in this mode, how many graphs were captured, and what was told."""
    told: list[str] = []
    backend = graphs_for(device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    weights = random_weights(CONFIG, torch.device(device), dtype, seed=3)
    cache = KVCache.allocate(CONFIG, 64, 4, weights.embed.device, dtype)
    dispatcher = GraphDispatcher(mode, () if mode == "NONE" else (1, 2, 4, 8), 4)
    model = decoding_model(weights, cache, backend, 5, told.append)
    runner = TorchRunner(model, LIMITS, dispatcher, backend)
    graphs = runner.capture().graphs
    done = Engine(runner, LIMITS, dispatcher).run(REQUESTS)
    return [one.tokens for one in done], graphs, told


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_graphs_write_the_eager_text(mode: str, device: str) -> None:
    eager, none, _ = texts("NONE", device)
    captured, graphs, told = texts(mode, device)
    assert captured == eager
    assert none == 0
    assert graphs > 0
    assert told == ["no kernel of ours computes experts: the plain model runs"]


@pytest.mark.parametrize("seed", range(5))
def test_grouped_and_masked_products_are_those_of_a_loop_over_the_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count, k, width, hidden, tokens = 6, 1 + seed % 3, 8, 12, 1 + 4 * seed
    x = torch.randn(tokens, hidden, generator=generator)
    gate_up = torch.randn(count, 2 * width, hidden, generator=generator)
    down = torch.randn(count, hidden, width, generator=generator)
    router = torch.randn(count, hidden, generator=generator)
    weights, ids = experts.route(x, router, Experts(count, k, width, normalized=bool(seed % 2)))
    if seed % 2:
        torch.testing.assert_close(weights.sum(-1), torch.ones(tokens))
    expected = torch.zeros_like(x)
    for t in range(tokens):
        for weight, expert in zip(weights[t], ids[t].tolist(), strict=True):
            gate, up = (gate_up[expert] @ x[t]).chunk(2)
            expected[t] += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    for way in (experts.grouped, experts.masked):
        torch.testing.assert_close(way(x, gate_up, down, weights, ids), expected)
