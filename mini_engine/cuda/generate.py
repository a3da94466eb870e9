"""A checkpoint folder or a hub id, prompts and a mode: text, in PyTorch.

In: a folder or an id, prompts. Out: a `Generation`: what was written, and how long it took.

On a GPU the steps run in bf16 and in captured graphs; on a CPU in float32 and without graphs, where
they would only be emulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mini_engine.capture_report import CaptureReport
from mini_engine.config import ModelConfig
from mini_engine.cuda.backend import graphs_for
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import load_weights, resolve_model
from mini_engine.dispatch import GraphDispatcher
from mini_engine.engine import Completion, Engine
from mini_engine.generation import OnToken, limits_for, requests_for, run_all
from mini_engine.ladder import default_capture_sizes
from mini_engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class Generation:
    """What one run of the engine wrote, in the order of the prompts."""

    model: str
    device: str
    mode: str
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    report: CaptureReport


def default_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
    device: torch.device | None = None,
    max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None,
    on_token: OnToken | None = None,
) -> Generation:
    """Run all prompts side by side, greedily. `on_token(prompt index, token id)` as they come.

    Raises `ValueError` for a folder that is no checkpoint, an empty prompt and one that does not
    fit the context.
    """
    device = device or default_device()
    on_gpu = device.type == "cuda"
    mode = mode if on_gpu else "NONE"
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids)
    limits = limits_for(config, len(prompts))
    requests = requests_for(prompts, tokenizer, limits, max_new_tokens)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    weights = load_weights(config, folder, device, dtype)
    cache = KVCache.allocate(config, limits.num_blocks, limits.block_size, device, dtype)
    sizes = default_capture_sizes(
        limits.max_num_seqs, limits.max_num_batched_tokens, capture_sizes=capture_sizes, mode=mode
    )
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    runner = TorchRunner(Model(weights, cache), limits, dispatcher, graphs_for(device))
    report = runner.capture()
    completions = run_all(Engine(runner, limits, dispatcher), requests, on_token)
    return Generation(
        config.name,
        str(device),
        mode,
        completions,
        tuple(tokenizer.decode(list(c.tokens)) for c in completions),
        report,
    )
