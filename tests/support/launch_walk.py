"""What launches kernels on a GPU and is not a test: arms of the benchmark, labs, sanitizer cases.

Walked under `pretend_gpu` by `launch_record.py`; not collected otherwise. Models have one layer of
the true size and no data (device "meta").
"""

from __future__ import annotations

import runpy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labs.lab11_triton_fusion import measure as lab11
from labs.lab12b_flash_decoding import measure as lab12b
from labs.lab15_gemv import measure as lab15
from labs.lab15b_cuda_graph_decode import measure as lab15b
from labs.measuring import kernel_timing
from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup
from mini_engine.bench.variants import OURS, VARIANTS
from mini_engine.cli.options import tiny_shape
from mini_engine.cuda.fused import FusedModel
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import ModelConfig, named_shape
from tests.support import sanitizer_cases
from tests.support.launch_record import SLOW

META = torch.device("meta")
BATCHES = (1, 2, 3, 4, 5, 8, 16, 17, 64, 256)
MODELS = ("tiny", "qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b")
# In the default profile: a batch of each kind, and of the larger two one, for what they add is in
# their widths, not in their batches.
SOME, LARGER = (1, 3, 8, 17), ("qwen3-1.7b", "llama-3.2-1b")
WALKS = [(m, b) for m in MODELS for b in BATCHES if SLOW or b in ((1,) if m in LARGER else SOME)]
CONTEXT = 512
pytestmark = pytest.mark.gpu


def shape_of(model: str) -> ModelConfig:
    full = tiny_shape() if model == "tiny" else named_shape(model)
    return replace(full, num_layers=1)


def setup_of(config: ModelConfig, batch: int) -> DecodeSetup:
    weights = random_weights(config, META, torch.bfloat16, seed=0)
    context = min(CONTEXT, config.max_position_embeddings - 48)
    backend = replace(graphs_for("cuda"), device=META)
    return build_setup(backend, weights, batch, context, context + 48)


def walk(variant: Variant) -> None:
    """One step of it, without a graph."""
    variant._decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("model", MODELS)
@torch.inference_mode()
def test_a_step_with_prompts(model: str) -> None:
    """100 tokens of three requests."""
    setup = setup_of(shape_of(model), 3)
    fused = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=5)
    sizes = (100, 100, 100, 3, 3, 3)
    rows = (torch.empty(n, dtype=torch.int32, device=META) for n in sizes)
    inputs = StepInputs(*rows, setup.block_table)
    fused.head(fused.body(inputs, fused.captured_attention(1)), inputs)


@pytest.mark.parametrize(("model", "batch"), WALKS)
@torch.inference_mode()
def test_every_arm(model: str, batch: int) -> None:
    setup = setup_of(shape_of(model), batch)
    for kind in VARIANTS.values():
        if kind.engine == OURS:
            walk(kind.make(setup))


@pytest.mark.parametrize("lab", [lab11, lab12b, lab15])
@torch.inference_mode()
def test_labs_that_time_kernels(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(_: Any, case: kernel_timing.Case) -> Any:
        for call in case.calls(META).values():
            call()
        return dict.fromkeys([kernel_timing.YOURS], SimpleNamespace(median=1.0, low=1.0, high=1.0))

    monkeypatch.setattr(kernel_timing, "time_calls", walked)
    monkeypatch.setattr(kernel_timing, "copy_bandwidth", lambda *_: {"median": 1.0})
    monkeypatch.setattr("sys.argv", ["measure"])
    with pytest.raises(SystemExit):
        runpy.run_module(lab.__name__, run_name="__main__")


@torch.inference_mode()
def test_lab_14() -> None:
    config = replace(named_shape("qwen3-0.6b"), num_layers=1)
    for way in lab15b.WAYS:
        walk(way.make(setup_of(config, 1)))


@torch.inference_mode()
def test_the_cases_for_the_sanitizer() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for case in sanitizer_cases.CASES:
            case(sanitizer_cases.Make("cuda", dtype))
