"""Text from the engine on the simulated device.

In: `open_checkpoint(folder)`, prompts, a mode. Out: a `Generation`: what was written, and what it
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.engine import Completion, Engine
from mini_engine.engine.generation import OnToken, limits_for, requests_for, run_all
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.sim.clocks import Counters
from mini_engine.sim.device import Device
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.weights import Weights, load_weights


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face folder, loaded."""

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Generation:
    """What one run of the engine wrote, in the order of the prompts."""

    mode: str
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    counters: Counters  # of serving, without capture
    simulated_us: float
    report: CaptureReport


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Load config, weights and tokenizer. Raises `ValueError` naming the file that is wrong."""
    folder = Path(folder)
    config = ModelConfig.from_folder(folder)
    weights = load_weights(config, folder)
    return Checkpoint(config, weights, Tokenizer(folder, config.eos_token_ids))


def generate(
    checkpoint: Checkpoint,
    spec: DeviceSpec,
    prompts: Sequence[str],
    mode: str,
    *,
    max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None,
    kv_dtype: str = "auto",
    sampling: SamplingParams = GREEDY,
    on_token: OnToken | None = None,
) -> Generation:
    """Run all prompts side by side; `on_token(prompt index, token id)` for each token. `sampling`
    is the first prompt's; `requests_for` says what the seeds of the others are.

    kv_dtype: "fp8", or "auto" for float32, as everything else here is.

    Raises `ValueError` for an empty prompt and for one that does not fit the context.
    """
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    limits = limits_for(config, len(prompts))
    requests = requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    sizes = default_capture_sizes(
        limits.max_num_seqs, limits.max_num_batched_tokens, capture_sizes=capture_sizes, mode=mode
    )
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    device = Device(spec)
    drawn = sampling.temperature > 0
    runner = SimRunner(
        device, config, checkpoint.weights, limits, dispatcher, kv_dtype=kv_dtype, sampling=drawn
    )
    report = runner.capture()
    before, began = device.counters.copy(), device.cpu_us
    completions = run_all(Engine(runner, limits, dispatcher), requests, on_token)
    return Generation(
        mode,
        completions,
        tuple(tokenizer.decode(list(c.tokens)) for c in completions),
        device.counters.since(before),
        device.cpu_us - began,
        report,
    )
