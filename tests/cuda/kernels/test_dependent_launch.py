"""Programmatic dependent launch changes no bit at the true widths of models.

On a GPU of sm_90 or newer. `tests/cuda/kernels/test_ahead_of_time.py` reads from machine code that
every kernel waits before it reads.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from torch import Tensor  # noqa: E402

from mini_engine.bench.decode_setup import DecodeSetup, build_setup  # noqa: E402
from mini_engine.cuda.fused import FusedModel  # noqa: E402
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.model.config import ModelConfig, named_shape  # noqa: E402
from tests.support.torch_helpers import inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b")
BATCHES = (1, 2, 3, 4, 8, 16)
STEPS, CONTEXT = 6, 512


def without_dependent_launch() -> bool:
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0)


def on_hopper(test: object) -> object:
    reason = "no NVIDIA GPU of sm_90 or newer"
    return pytest.mark.gpu(pytest.mark.skipif(without_dependent_launch(), reason=reason)(test))


def setup_of(weights: Weights, batch: int) -> DecodeSetup:
    """Every call makes the same cache and the same requests."""
    backend = replace(graphs_for("cuda"), device=torch.device("cuda"))
    return build_setup(backend, weights, batch, CONTEXT, CONTEXT + 2 * STEPS)


@cache
def weights_of(model: str) -> Weights:
    """Two layers of the true width."""
    config: ModelConfig = replace(named_shape(model), num_layers=2)
    return random_weights(config, torch.device("cuda"), torch.bfloat16, seed=0)


def decoded(model: str, batch: int, per_layer: Literal[9, 5], *, pdl: bool) -> list[Tensor]:
    """Logits, tokens, keys and values of some steps in one graph: Python launches too slowly for
    kernels to overlap."""
    setup = setup_of(weights_of(model), batch)
    backend: GraphBackend = setup.backend
    fused = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=per_layer, pdl=pdl)
    inputs, made = setup.inputs(), []

    def step() -> None:
        made.extend(fused.next_step(fused.body(inputs, setup.attention), inputs))

    step()  # compiles
    made.clear()
    setup.place(inputs, setup.first_tokens, setup.context)
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle()):
        for _ in range(STEPS):
            step()
    graph.replay()
    backend.synchronize()
    return [*made, *setup.model.cache.keys, *setup.model.cache.values]


def assert_same_with_and_without(model: str, batch: int, per_layer: Literal[9, 5]) -> None:
    plain = decoded(model, batch, per_layer, pdl=False)
    early = decoded(model, batch, per_layer, pdl=True)
    assert plain[0].isfinite().all()
    for one, other in zip(plain, early, strict=True):
        assert torch.equal(one, other)


@on_hopper
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_five_kernels_a_layer_are_the_same_bits_with_and_without(
    model: str, batch: int
) -> None:
    assert_same_with_and_without(model, batch, 5)


@on_hopper
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("model", MODELS)
def test_steps_of_nine_are_too(model: str, batch: int) -> None:
    assert_same_with_and_without(model, batch, 9)
