"""A checkpoint folder or a hub id, prompts and a mode: text, in PyTorch.

In: a folder or an id, prompts. Out: a `Generation`: what was written, and how long it took.

On a GPU the steps run in bf16, on a CPU in float32 and the same code in emulated graphs. Decode
steps are our kernels', or the plain model's where they cannot run (path.py). Where something is
missing (a GPU, bf16, memory), the nearest thing that works is done, and one line says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mini_engine.cuda.graphs.backend import (
    GraphBackend,
    free_bytes,
    graphs_for,
    why_no_bf16,
    why_no_gpu,
)
from mini_engine.cuda.kv_scales import measured_scales
from mini_engine.cuda.model import KVCache
from mini_engine.cuda.path import Kernels, decoding_model, interpreted, kernels_of
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import first_line, load_weights, loaded_bytes, no_room, resolve_model
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Completion, Engine
from mini_engine.engine.generation import (
    OnToken,
    Tell,
    limits_for,
    mode_of,
    requests_for,
    run_all,
    sizes_for,
    with_blocks_for,
)
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.step.capacity import kv_bytes_per_token

LEFT_FREE = 0.1  # of what is free: for activations, graphs and libraries


@dataclass(frozen=True)
class Generation:
    """What one run of the engine wrote, in the order of the prompts."""

    model: str
    device: str
    mode: str
    kernels_per_layer: Kernels  # of a decode step; 0: the plain model
    pdl: bool  # each kernel starts while the one before it drains
    steps_per_replay: int
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    report: CaptureReport


def nearest_backend(tell: Tell) -> GraphBackend:
    """The GPU; where none can be used the CPU, and a line about it."""
    if reason := why_no_gpu():
        where = f"{reason}: running on the CPU, in float32 and emulated graphs"
        tell(where + (", with the kernels in Triton's interpreter" if interpreted() else ""))
        return graphs_for("cpu")
    return graphs_for("cuda")


def dtype_for(backend: GraphBackend, tell: Tell) -> torch.dtype:
    """bf16 on a GPU; float32 on a CPU, and, with a line about it, on a GPU that has no bf16.

    Not float16: models that were trained in bf16 may overflow it, and then write nothing but "!"
    (QwenLM/Qwen3 issues 670 and 761). Float32 is right, at twice the bytes.
    """
    if backend.emulated:
        return torch.float32
    if reason := why_no_bf16(backend):
        tell(f"{reason}: running in float32, which takes twice the bytes")
        return torch.float32
    return torch.bfloat16


def open_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder or hub id."""
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    return Tokenizer(folder, config.eos_token_ids, config.vocab_size)


@torch.inference_mode()
def generate(
    checkpoint: str,
    prompts: Sequence[str],
    mode: str,
    *,
    max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None,
    quant: str | None = None,
    kernels: Kernels = 5,
    steps_per_replay: int = 1,
    kv_dtype: str = "auto",
    sampling: SamplingParams = GREEDY,
    on_token: OnToken | None = None,
    tell: Tell = print,
) -> Generation:
    """Run all prompts side by side. `on_token(prompt index, token id)` as they come. `sampling` is
    the first prompt's; `requests_for` says what the seeds of the others are.

    It takes the best that this machine has; `tell` is given a line where that is less than a GPU
    with bf16 and enough memory, than `kernels` a layer (0: the plain model), or than so many steps
    a replay. kv_dtype: "fp8", or "auto" for that of the weights. `quant` ("int8", "int4"): the
    layers' matrices are quantised as they are read.

    Raises `ValueError` for a folder that is not a checkpoint, for an empty prompt or one that is
    too long for the context, and for a model that does not fit the memory.
    """
    backend = nearest_backend(tell)
    dtype = dtype_for(backend, tell)
    folder = resolve_model(checkpoint)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids, config.vocab_size)
    limits = limits_for(config, len(prompts))
    requests = requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    limits = with_blocks_for(limits, requests)
    limits = limits_that_fit(config, limits, backend, dtype, tell, kv_dtype, quant)
    for request in requests:
        limits.check(request)
    # A graph's attention is built for the longest context, so it is worth knowing.
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    longest = min(longest, limits.max_model_len)
    limits = replace(limits, max_model_len=longest, steps_per_replay=steps_per_replay)
    try:
        weights = load_weights(config, folder, backend.device, dtype, quant)
        scales = measured_scales(weights) if kv_dtype == "fp8" else ()
        cache = KVCache.allocate(
            config, limits.num_blocks, limits.block_size, backend.device, dtype, scales
        )
        sizes = sizes_for(mode, limits, capture_sizes, tell)
        dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
        model = decoding_model(weights, cache, backend, kernels, tell)
        runner = TorchRunner(model, limits, dispatcher, backend, sampling=sampling.temperature > 0)
        report = runner.capture()
        for line in report.lines():
            tell(line)
        if steps_per_replay > 1 and not runner.several.captured:
            tell(f"no decode rung has a graph of {steps_per_replay} steps: each replay runs one")
            steps_per_replay = 1
        completions = run_all(Engine(runner, limits, dispatcher), requests, on_token)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{config.name} ran out of memory on {backend.device} ({first_line(error)}): "
            "ask for fewer prompts at once, or use a smaller model"
        ) from error
    return Generation(
        config.name,
        str(backend.device),
        mode_of(dispatcher),
        kernels_of(model, mode),
        getattr(model, "pdl", False),
        steps_per_replay,
        completions,
        tuple(tokenizer.decode(list(c.tokens)) for c in completions),
        report,
    )


def limits_that_fit(
    config: ModelConfig,
    limits: SchedulerLimits,
    backend: GraphBackend,
    dtype: torch.dtype,
    tell: Tell,
    kv_dtype: str = "auto",
    quant: str | None = None,
) -> SchedulerLimits:
    """`limits` with as many KV blocks as fit beside the weights, and a line where that is fewer
    than they ask for. Raises ValueError when the weights or the smallest cache do not fit."""
    stored = "bf16" if dtype == torch.bfloat16 else "fp32"
    quant = "int4" if config.quantization else quant
    if reason := no_room(config, backend, stored, quant=quant):
        raise ValueError(reason)
    free, weights = free_bytes(backend), loaded_bytes(config, stored, quant)
    in_cache = stored if kv_dtype == "auto" else kv_dtype
    block = limits.block_size * kv_bytes_per_token(config, in_cache)
    blocks = int((1 - LEFT_FREE) * free - weights) // block
    if blocks >= limits.num_blocks:
        return limits
    if blocks < 2:
        raise ValueError(
            f"{config.name} takes {weights:,} bytes of the {free:,} that are free and leaves no "
            "room for a KV cache: use a smaller model"
        )
    tell(
        f"KV cache of {blocks - 1:,} blocks of {limits.block_size} tokens, "
        f"{limits.num_blocks - 1:,} were wanted: {free:,} bytes are free, {weights:,} of them go "
        "to the weights"
    )
    return replace(limits, num_blocks=blocks)
