"""A checkpoint folder or a hub id, prompts and a mode: text, in PyTorch.

In: a folder or an id, prompts. Out: a `Generation`: what was written, and how long it took.

On a GPU the steps run in bf16 and in captured graphs; on a CPU in float32 and without graphs, which
would only be emulated there. Where something is missing (a GPU, bf16, memory), the nearest thing
that works is done, and one line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from mini_engine.cuda.graphs.backend import (
    GraphBackend,
    free_bytes,
    graphs_for,
    why_no_bf16,
    why_no_gpu,
)
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import first_line, load_weights, loaded_bytes, no_room, resolve_model
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.engine import Completion, Engine
from mini_engine.engine.generation import OnToken, limits_for, requests_for, run_all
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.predict.capacity import kv_bytes_per_token

Tell = Callable[[str], object]
LEFT_FREE = 0.1  # of what is free: for activations, graphs and libraries


@dataclass(frozen=True)
class Generation:
    """What one run of the engine wrote, in the order of the prompts."""

    model: str
    device: str
    mode: str
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    report: CaptureReport


def nearest_backend(tell: Tell) -> GraphBackend:
    """The GPU; where none can be used the CPU, and a line about it."""
    if reason := why_no_gpu():
        tell(f"{reason}: running on the CPU, in float32 and without graphs")
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
    return Tokenizer(folder, ModelConfig.from_folder(folder).eos_token_ids)


@torch.inference_mode()
def generate(
    model: str,
    prompts: Sequence[str],
    mode: str,
    *,
    max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None,
    quant: str | None = None,
    on_token: OnToken | None = None,
    tell: Tell = print,
) -> Generation:
    """Run all prompts side by side, greedily. `on_token(prompt index, token id)` as they come.

    It takes the best that this machine has; `tell` is given a line where that is less than a GPU
    with bf16 and enough memory. On a CPU the mode is NONE. `quant` ("int8", "int4"): the layers'
    matrices are quantised as they are read.

    Raises `ValueError` for a folder that is not a checkpoint, for an empty prompt or one that is
    too long for the context, and for a model that does not fit the memory.
    """
    backend = nearest_backend(tell)
    dtype = dtype_for(backend, tell)
    mode = "NONE" if backend.emulated else mode
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids)
    limits = limits_that_fit(config, limits_for(config, len(prompts)), backend, dtype, tell, quant)
    requests = requests_for(prompts, tokenizer, limits, max_new_tokens)
    try:
        weights = load_weights(config, folder, backend.device, dtype, quant)
        cache = KVCache.allocate(
            config, limits.num_blocks, limits.block_size, backend.device, dtype
        )
        sizes = default_capture_sizes(
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            capture_sizes=capture_sizes,
            mode=mode,
        )
        dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
        runner = TorchRunner(Model(weights, cache), limits, dispatcher, backend)
        report = runner.capture()
        for line in report.lines():
            tell(line)
        completions = run_all(Engine(runner, limits, dispatcher), requests, on_token)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{config.name} ran out of memory on {backend.device} ({first_line(error)}): "
            "ask for fewer prompts at once, or use a smaller model"
        ) from error
    return Generation(
        config.name,
        str(backend.device),
        mode,
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
    quant: str | None = None,
) -> SchedulerLimits:
    """`limits` with as many KV blocks as fit beside the weights, and a line where that is fewer
    than they ask for. Raises ValueError when the weights or the smallest cache do not fit."""
    stored = "bf16" if dtype == torch.bfloat16 else "fp32"
    quant = "int4" if config.quantization else quant
    if reason := no_room(config, backend, stored, quant=quant):
        raise ValueError(reason)
    free, weights = free_bytes(backend), loaded_bytes(config, stored, quant)
    block = limits.block_size * kv_bytes_per_token(config, stored)
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
