"""The prefix cache on PyTorch: the shipped checkpoint writes the same with and without it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import Weights, load_weights  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Completion, Engine  # noqa: E402
from mini_engine.engine.generation import SHIPPED  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.support.torch_helpers import DEVICES, torch_model  # noqa: E402

# 50 blocks of 4: room for two requests and a half, unless they share.
TIGHT = SchedulerLimits(4, 24, 51, 4, 128)


def requests() -> list[Request]:
    """Ten prompts of one beginning, two of another; their texts differ."""
    golden = json.loads((SHIPPED / "greedy.json").read_text())["prompts"]
    ids = [text["prompt_ids"] + text["ids"] for text in golden]
    beginnings = [ids[0][:33]] * 5 + [ids[1][:20]]
    return [Request(str(i), beginnings[i % 6] + ids[i % 4][5 : 9 + i], 20) for i in range(12)]


def serve(weights: Weights, mode: str, limits: SchedulerLimits) -> tuple[Engine, list[Completion]]:
    dispatcher = GraphDispatcher(mode, [] if mode == "NONE" else [4, 8], limits.max_num_seqs)
    model = torch_model(weights, limits.num_blocks, limits.block_size)
    runner = TorchRunner(model, limits, dispatcher, graphs_for(model.weights.embed.device.type))
    runner.capture()
    engine = Engine(runner, limits, dispatcher)
    return engine, engine.run(requests())


@pytest.mark.parametrize("device", DEVICES)
def test_the_text_is_the_same_with_and_without_the_prefix_cache(device: str) -> None:
    config = ModelConfig.from_folder(SHIPPED)
    weights = load_weights(config, SHIPPED, torch.device(device), torch.float32)
    with torch.inference_mode():
        plain, without = serve(weights, "NONE", TIGHT)
        texts = {c.request_id: c.tokens for c in without}
        for mode in ("NONE", "FULL_AND_PIECEWISE"):
            engine, done = serve(weights, mode, replace(TIGHT, prefix_caching=True))
            assert {c.request_id: c.tokens for c in done} == texts
            assert engine.scheduler.first_hits.hit > 150
    assert plain.scheduler.first_hits.hit == 0
    assert len(set(texts.values())) > 6
    assert sum(c.num_preemptions for c in without) > 0
