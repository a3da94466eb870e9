"""Launches every kernel that anybody could ask a GPU for, where there is none, and compiles them.

    python -m tests.support.launch_walk     # prints a report as JSON

Walked are all arms of the benchmark, steps of nine kernels and with prompts, labs and the
cases for a GPU, on a GPU that is not there (`pretend_gpu.py`). Models have one layer of the true
size and no data (device "meta").
"""

from __future__ import annotations

import json
import os
import random
import runpy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from labs.lab15b_cuda_graph_decode import measure as lab15b
from labs.measuring import kernel_timing
from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup
from mini_engine.bench.variants import OURS, VARIANTS
from mini_engine.cuda.fused import FusedModel
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import ModelConfig, named_shape, tiny_shape
from tests.support import gpu_cases
from tests.support.compile_launch import each_value_once, refused
from tests.support.pretend_gpu import Launch, pretended

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
META = torch.device("meta")
BATCHES = (1, 2, 3, 4, 5, 8, 16, 17, 64, 256)
MODELS = ("tiny", "qwen3-0.6b", "qwen3-1.7b", "llama-3.2-1b")
# In the default profile: a batch of each kind, and of the larger two one, for what they add is in
# their widths, not in their batches.
SOME, LARGER = (1, 3, 8, 17), ("qwen3-1.7b", "llama-3.2-1b")
CONTEXT = 512
WHOLE_SAMPLE = 1  # launches that the default profile compiles to machine code, a target


def setup_of(config: ModelConfig, batch: int) -> DecodeSetup:
    context = min(CONTEXT, config.max_position_embeddings - 48)
    backend = replace(graphs_for("cuda"), device=META)
    with mock.patch("torch.Generator", return_value=torch.Generator()):  # "meta" has none
        weights = random_weights(config, META, torch.bfloat16, seed=0)
        return build_setup(backend, weights, batch, context, context + 48)


def step(variant: Variant) -> None:
    """Without a graph."""
    variant._decode()  # type: ignore[attr-defined]


def walk_model(model: str) -> None:
    config = replace(tiny_shape() if model == "tiny" else named_shape(model), num_layers=1)
    setup = setup_of(config, 3)  # 100 tokens of three requests
    fused = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=5)
    rows = (torch.empty(n, dtype=torch.int32, device=META) for n in (100, 100, 100, 3, 3, 3))
    inputs = StepInputs(*rows, setup.block_table)
    fused.head(fused.body(inputs, fused.captured_attention(1)), inputs)
    for batch in BATCHES if SLOW else (1,) if model in LARGER else SOME:
        setup = setup_of(config, batch)
        for kind in VARIANTS.values():
            if kind.engine == OURS:
                step(kind.make(setup))
        nine = FusedModel(setup.model.weights, setup.model.cache, kernels_per_layer=9, pdl=True)
        inputs = setup.inputs()
        nine.next_step(nine.body(inputs, setup.attention), inputs)


def walk_timing(lab: str) -> None:
    def called(_: Any, case: kernel_timing.Case) -> Any:
        for call in case.calls(META).values():
            call()
        return dict.fromkeys([kernel_timing.YOURS], SimpleNamespace(median=1.0, low=1.0, high=1.0))

    with (
        mock.patch.object(kernel_timing, "time_calls", called),
        mock.patch.object(kernel_timing, "copy_bandwidth", return_value={"median": 1.0}),
        mock.patch("sys.argv", ["measure"]),
        mock.patch("sys.stdout"),
    ):
        try:
            runpy.run_module(f"labs.{lab}.measure", run_name="__main__")
        except SystemExit:
            return


@torch.inference_mode()
def walk() -> None:
    for model in MODELS:
        walk_model(model)
    for lab in ("lab11_triton_fusion", "lab12b_flash_decoding", "lab15_gemv"):
        walk_timing(lab)
    for way in lab15b.WAYS:
        step(way.make(setup_of(replace(named_shape("qwen3-0.6b"), num_layers=1), 1)))
    for dtype in (torch.float32, torch.bfloat16):
        for case in gpu_cases.CASES:
            case(gpu_cases.Make("meta", dtype))


def some(launches: list[Launch]) -> list[Launch]:
    """Those that are compiled to machine code: all, or a sample, always the same."""
    return launches if SLOW else random.Random(0).sample(launches, WHOLE_SAMPLE)


def main() -> None:
    launches: list[Launch] = []
    with pretended(launches.append):
        walk()
    jobs = [] if SLOW else [(launch, 90, False) for launch in each_value_once(launches)]
    jobs += [(launch, 90, True) for launch in some(launches)]
    jobs += [(launch, 80, True) for launch in some([one for one in launches if not one.pdl])]
    wrong = [
        f"{launch.name} {launch.named_constants}: {reason}"
        for launch, capability, whole in jobs
        if (reason := refused(launch, capability, whole=whole))
    ]
    kernels = sorted({launch.name for launch in launches})
    print(json.dumps({"kernels": kernels, "compiled": len(jobs), "refused": wrong}))


if __name__ == "__main__":
    main()
