"""A checkpoint folder or a hub id, prompts and a mode: text, in PyTorch.

On a GPU the steps run in bf16, on a CPU in float32 and emulated graphs. Where something is missing
(a GPU, bf16, Triton, memory), the nearest thing that works is done, and one line says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from mini_engine.cuda.graphs.backend import (
    GraphBackend,
    free_bytes,
    graphs_for,
    why_no_bf16,
    why_no_gpu,
)
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.ranks import Ranks, joined
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import Weights, load_weights, no_room
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode, parse
from mini_engine.engine import generation
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import PLAIN, OnToken, Speculation, Tell
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import resolve_model
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.step.storage import stored_as

LEFT_FREE = 0.1  # of what is free: for activations, graphs and libraries
Kernels = Literal[0, 5, 9]  # a layer; 0: the plain model
OLDEST = (8, 0)  # Triton's oldest GPU that is not a matter of luck; we compile for it, too


@dataclass(frozen=True)
class Generation(generation.Generation):
    """What one run of the engine wrote, and what ran."""

    model: str
    device: str
    kernels_per_layer: Kernels  # of a decode step; 0: the plain model
    pdl: bool  # each kernel starts while the one before it drains
    steps_per_replay: int


def open_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a folder or hub id."""
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    return Tokenizer(folder, config.eos_token_ids, config.vocab_size)


@torch.inference_mode()
def generate(
    checkpoint: str, prompts: Sequence[str], mode: str, *, max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None, kernels: Kernels = 5, steps_per_replay: int = 1,
    sampling: SamplingParams = GREEDY, speculation: Speculation = PLAIN,
    on_token: OnToken | None = None, tell: Tell = print,
) -> Generation:  # fmt: skip
    """Run all prompts side by side. `on_token(prompt index, token id)` as they come; `tell` is
    given a line for each thing that this machine has less of than was asked for. Raises ValueError
    for a bad folder or prompt, and for a draft model or a memory that does not fit."""
    ranks = joined()
    if ranks and ranks.rank:  # the first one tells
        tell, on_token = (lambda _: None), None
    backend = nearest_backend(tell)
    dtype = dtype_for(backend, tell)
    folder = resolve_model(checkpoint)
    config, tokenizer = ModelConfig.from_folder(folder), open_tokenizer(folder)
    asked = {
        "model": config, "prompts": list(prompts), "mode": mode, "capture_sizes": capture_sizes,
        "max_new_tokens": max_new_tokens, "steps_per_replay": steps_per_replay,
        "sampling": sampling, "dtype": dtype, "speculation": speculation,
    }  # fmt: skip
    if ranks:
        ranks.together(partial(ranks.check_alike, asked))
    mine = ranks.together(partial(config.shard, ranks.count)) if ranks else config
    limits = generation.limits_for(config, len(prompts), speculation)
    requests = generation.requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    limits = generation.with_blocks_for(limits, requests)
    limits = limits_that_fit(mine, limits, backend, dtype, tell)
    if ranks:  # they schedule alike, and so with as many blocks
        limits = replace(limits, num_blocks=min(ranks.told(limits.num_blocks)))
    for request in requests:
        limits.check(request)
    # A graph's attention is built for the longest context, so it is worth knowing.
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    longest = min(longest, limits.max_model_len)
    limits = replace(limits, max_model_len=longest, steps_per_replay=steps_per_replay)

    def captured(weights: Weights, limits: SchedulerLimits) -> tuple[TorchRunner, CaptureReport]:
        dispatcher = generation.dispatcher_for(mode, limits, capture_sizes, tell)
        return _captured(weights, limits, dispatcher, backend, tell, kernels=kernels, ranks=ranks,
                         sampling=sampling.temperature > 0)  # fmt: skip

    def drafting(draft: Path, alone: SchedulerLimits) -> TorchRunner:
        small = ModelConfig.from_folder(draft)
        return captured(load_weights(small, draft, backend.device, dtype), alone)[0]

    proposer = generation.proposer_for(speculation, config, requests, limits, drafting)
    load = partial(load_weights, config, folder, backend.device, dtype, ranks)
    runner, report = captured(ranks.together(load) if ranks else load(), limits)
    if steps_per_replay > 1 and not runner.several.captured:
        tell(f"no decode rung has a graph of {steps_per_replay} steps: each replay runs one")
        steps_per_replay = 1
    done = generation.generated(runner, report, limits, requests, tokenizer, proposer, on_token)
    layers = runner.model.kernels_per_layer
    pieces = parse(CUDAGraphMode, mode).decode_mode() is CUDAGraphMode.PIECEWISE
    if layers and (pieces or proposer):
        layers = 9  # pieces are cut inside a fused kernel, and drafts are checked as a prompt is
    return Generation(
        **vars(done), model=config.name, device=str(backend.device), kernels_per_layer=layers,
        pdl=runner.model.pdl, steps_per_replay=steps_per_replay,
    )  # fmt: skip


@torch.inference_mode()
def open_engine(
    config: ModelConfig, folder: Path, limits: SchedulerLimits, mode: str,
    capture_sizes: Sequence[int] | None, tell: Tell, *, sampling: bool = True,
) -> Engine:  # fmt: skip
    """An engine for whoever comes, its graphs captured; each request is drawn as it asks for, or
    without `sampling` all are greedy."""
    backend = nearest_backend(tell)
    dtype = dtype_for(backend, tell)
    limits = limits_that_fit(config, limits, backend, dtype, tell)
    dispatcher = generation.dispatcher_for(mode, limits, capture_sizes, tell)
    weights = load_weights(config, folder, backend.device, dtype)
    runner, _ = _captured(weights, limits, dispatcher, backend, tell, sampling=sampling)
    return Engine(runner, limits, dispatcher)


def _captured(
    weights: Weights, limits: SchedulerLimits, dispatcher: GraphDispatcher, backend: GraphBackend,
    tell: Tell, *, kernels: Kernels = 5, sampling: bool = False, ranks: Ranks | None = None,
) -> tuple[TorchRunner, CaptureReport]:  # fmt: skip
    """A runner over a cache of its own, with its graphs captured, on all ranks the same ones."""
    cache = KVCache.allocate(
        weights.config, limits.num_blocks, limits.block_size, backend.device, weights.embed.dtype
    )
    model = decoding_model(weights, cache, backend, kernels, tell)
    runner = TorchRunner(model, limits, dispatcher, backend, sampling=sampling)
    report = ranks.together(runner.capture) if ranks else runner.capture()
    if ranks:
        ranks.together(partial(ranks.check_alike, {"graphs": report.graphs}))
    for line in report.lines():
        tell(line)
    return runner, report


# ---------------------------------------------------------------- the best that works here


def nearest_backend(tell: Tell, device: str = "auto") -> GraphBackend:
    """The GPU; where none can be used the CPU, and a line about it, or the `device` asked for.
    Raises ValueError where "cuda" cannot be had."""
    if device != "auto":
        return graphs_for(device)
    if reason := why_no_gpu():
        tell(f"{reason}: running on the CPU, with emulated graphs")
        return graphs_for("cpu")
    return graphs_for("cuda")


def dtype_for(backend: GraphBackend, tell: Tell) -> torch.dtype:
    """bf16 on a GPU; float32 on a CPU, and, with a line about it, on a GPU that has no bf16. Not
    float16: models trained in bf16 may overflow it (QwenLM/Qwen3 issues 670 and 761)."""
    if backend.emulated:
        return torch.float32
    if reason := why_no_bf16(backend):
        tell(f"{reason}: running in float32, which takes twice the bytes")
        return torch.float32
    return torch.bfloat16


def decoding_model(
    weights: Weights, cache: KVCache, backend: GraphBackend, kernels: Kernels, tell: Tell
) -> Model:
    """The model with so many kernels a layer, or the plain one and a line why."""
    if kernels and (reason := why_plain(weights.config, backend, kernels)):
        tell(f"{reason}: the plain model runs")
        kernels = 0
    if not kernels:
        return Model(weights, cache)
    from mini_engine.cuda.fused import FusedModel

    return FusedModel(weights, cache, kernels_per_layer=kernels, pdl=no_pdl(backend) is None)


def why_plain(config: ModelConfig, backend: GraphBackend, kernels: Literal[5, 9]) -> str | None:
    """Why the kernels cannot run this model here, in one line; None where they can."""
    if config.experts or config.ranks > 1:
        return f"no kernel of ours {'computes experts' if config.experts else 'sums over ranks'}"
    if reason := no_triton():
        return reason
    if not backend.emulated and (have := torch.cuda.get_device_capability()) < OLDEST:
        return f"{torch.cuda.get_device_name()} is sm_{have[0]}{have[1]}, and Triton needs sm_80"
    # `tl.dot` sums over 16 or more, and products of the fused attention run over half a head
    least, head_dim = 32 if kernels == 5 else 16, config.head_dim
    if head_dim < least or head_dim & (head_dim - 1):
        return f"head_dim {head_dim} is no power of two of {least} or more, which kernels need"
    return None


def no_triton() -> str | None:
    """Why the kernels cannot run here, in one line; None where they can."""
    missing = "the kernels are written in Triton, which is not installed: pip install triton"
    return None if find_spec("triton") else missing


def no_pdl(backend: GraphBackend) -> str | None:
    """Why programmatic dependent launch cannot run here, in one line; None where it can."""
    if reason := no_triton():
        return reason
    from mini_engine.cuda.kernels.launch import why_no_pdl

    return why_no_pdl(backend.device)


def limits_that_fit(
    config: ModelConfig, limits: SchedulerLimits, backend: GraphBackend, dtype: torch.dtype,
    tell: Tell,
) -> SchedulerLimits:  # fmt: skip
    """`limits` with as many KV blocks as fit beside the weights, and a line where these are fewer.
    Raises ValueError when the weights or the smallest cache do not fit."""
    stored = "bf16" if dtype == torch.bfloat16 else "fp32"
    if reason := no_room(config, backend, stored):
        raise ValueError(reason)
    bytes_ = stored_as(config, stored, stored)
    free, weights = free_bytes(backend), bytes_.held
    block = limits.block_size * bytes_.kv_bytes_per_token
    blocks = int((1 - LEFT_FREE) * free - weights) // block
    if blocks >= limits.num_blocks:
        return limits
    if blocks < 2:
        raise ValueError(f"{config.name} takes {weights:,} of {free:,} bytes: no room for a cache")
    tell(
        f"KV cache of {blocks - 1:,} blocks of {limits.block_size} tokens, "
        f"{limits.num_blocks - 1:,} were wanted: {free:,} bytes are free, {weights:,} of them go "
        "to the weights"
    )
    return replace(limits, num_blocks=blocks)
