"""Text from the engine on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.engine import generation
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.model.config import ModelConfig
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.sim.clocks import Counters
from mini_engine.sim.device import Device
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.weights import Weights, load_weights
from mini_engine.step.cards import DeviceSpec


@dataclass(frozen=True)
class Checkpoint:
    """A Hugging Face folder, whose tensors were found and checked, and are read when needed."""

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Generation(generation.Generation):
    """What one run of the engine wrote, and what it took."""

    counters: Counters  # of serving, without capture
    simulated_us: float


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Read config and tokenizer, and find the weights. Raises `ValueError` naming the file that is
    wrong."""
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(Path(folder), config.eos_token_ids, config.vocab_size)
    return Checkpoint(config, load_weights(config, folder), tokenizer)


def generate(
    checkpoint: Checkpoint,
    spec: DeviceSpec,
    prompts: Sequence[str],
    mode: str,
    *,
    max_new_tokens: int = 48,
    capture_sizes: Sequence[int] | None = None,
    sampling: SamplingParams = GREEDY,
    speculation: generation.Speculation = generation.PLAIN,
    on_token: generation.OnToken | None = None,
    tell: generation.Tell = lambda line: None,
) -> Generation:
    """Run all prompts side by side; `on_token(prompt index, token id)` for each token. `sampling`
    is the first prompt's; `requests_for` says what the seeds of the others are.

    `tell` is given lines for people. Raises `ValueError` for an empty prompt, for one that does
    not fit the context, for a draft model that does not fit the other, and for weights that are not
    finite; `MemoryError` for a model that does not fit.
    """
    tokenizer = checkpoint.tokenizer
    limits = generation.limits_for(checkpoint.config, len(prompts), speculation)
    requests = generation.requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    limits = generation.with_blocks_for(limits, requests)
    device = Device(spec)

    def runner_of(model: Checkpoint, limits: SchedulerLimits) -> tuple[SimRunner, CaptureReport]:
        """A runner of this model on the device, with its graphs captured."""
        dispatcher = generation.dispatcher_for(mode, limits, capture_sizes, tell)
        # Tables of RoPE for no more positions than can occur.
        config = replace(model.config, max_position_embeddings=limits.max_model_len)
        drawn = sampling.temperature > 0
        runner = SimRunner(device, config, model.weights, limits, dispatcher, sampling=drawn)
        report = runner.capture()
        for line in report.lines():
            tell(line)
        return runner, report

    proposer = generation.proposer_for(
        speculation, checkpoint.config, requests, limits,
        lambda folder, alone: runner_of(open_checkpoint(folder), alone)[0],
    )  # fmt: skip
    runner, report = runner_of(checkpoint, limits)
    before, began = device.counters.copy(), device.cpu_us
    done = generation.generated(runner, report, limits, requests, tokenizer, proposer, on_token)
    counters = device.counters.since(before)
    return Generation(**vars(done), counters=counters, simulated_us=device.cpu_us - began)


def open_engine(
    config: ModelConfig, folder: Path, limits: SchedulerLimits, mode: str,
    capture_sizes: Sequence[int] | None, tell: generation.Tell, spec: DeviceSpec,
) -> Engine:  # fmt: skip
    """An engine for whoever comes, its graphs captured; each request is drawn as it asks for."""
    dispatcher = generation.dispatcher_for(mode, limits, capture_sizes, tell)
    config = replace(config, max_position_embeddings=limits.max_model_len)
    weights = load_weights(config, folder)
    runner = SimRunner(Device(spec), config, weights, limits, dispatcher, sampling=True)
    for line in runner.capture().lines():
        tell(line)
    return Engine(runner, limits, dispatcher)
