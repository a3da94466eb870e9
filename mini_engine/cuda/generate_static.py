"""`generate` without pages: a checkpoint, prompts, and the engine of `static_engine.py`.

In: a folder or an id, prompts. Out: a `Generation`, as from `generate`, text by text the same.

The plain model decodes, since the kernels read block tables and no mask. Every shape that comes by
gets a graph of the whole step; mode NONE runs without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from mini_engine.cuda.generate import Generation, dtype_for, limits_that_fit, nearest_backend
from mini_engine.cuda.model import Model
from mini_engine.cuda.static_cache import StaticCache
from mini_engine.cuda.static_engine import StaticEngine
from mini_engine.cuda.weights import first_line, load_weights, resolve_model
from mini_engine.dispatch.capture_report import CaptureReport, RungReport
from mini_engine.engine.generation import OnToken, Tell, limits_for, requests_for
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer

MODES = {"NONE": "NONE", "FULL": "FULL", "FULL_AND_PIECEWISE": "FULL"}  # the last is the default


@torch.inference_mode()
def generate_static(
    checkpoint: str,
    prompts: Sequence[str],
    mode: str,
    *,
    max_new_tokens: int = 48,
    quant: str | None = None,
    sampling: SamplingParams = GREEDY,
    on_token: OnToken | None = None,
    tell: Tell = print,
) -> Generation:
    """Run up to 16 prompts side by side, the others after them; see `generate` for the arguments.

    Raises ValueError for a mode of pieces, and as `generate` does.
    """
    if mode not in MODES:
        raise ValueError(
            f"mode {mode}: a static cache has a graph of the whole step for every shape, prompts "
            "among them, or none: use FULL or NONE"
        )
    backend = nearest_backend(tell)
    dtype = dtype_for(backend, tell)
    folder = resolve_model(checkpoint)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids, config.vocab_size)
    limits = limits_for(config, len(prompts))
    requests = requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    t_max = max(len(request.prompt) for request in requests) + max_new_tokens
    # A row is a block of T_max tokens, so the sum is that of blocks, and leaves room for one more.
    limits = replace(limits, block_size=t_max, num_blocks=1 + limits.max_num_seqs)
    rows = limits_that_fit(config, limits, backend, dtype, tell, "auto", quant).num_blocks - 1
    try:
        weights = load_weights(config, folder, backend.device, dtype, quant)
        cache = StaticCache.allocate(config, rows, t_max, backend.device, dtype)
        engine = StaticEngine(
            Model(weights, cache.blocks()),
            cache,
            backend,
            eager=MODES[mode] == "NONE",
            sampling=sampling.temperature > 0,
        )
        completions = engine.generate(requests, on_token)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{config.name} ran out of memory on {backend.device} ({first_line(error)}): "
            "ask for fewer prompts at once, or use a smaller model"
        ) from error
    report = CaptureReport()
    for captured in engine.graphs.values():
        tokens = captured.step.input_ids.numel()
        report.rungs.append(RungReport(tokens, 1, captured.took_us, pool_growth_bytes=0))
    return Generation(
        config.name,
        str(backend.device),
        MODES[mode],
        0,
        False,
        1,
        completions,
        tuple(tokenizer.decode(list(c.tokens)) for c in completions),
        report,
    )
