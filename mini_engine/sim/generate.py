"""Text from the engine on the simulated device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    counters: Counters  # of serving, without capture
    simulated_us: float


def open_checkpoint(folder: Path | str) -> Checkpoint:
    """Raises ValueError naming the file that is wrong."""
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(Path(folder), config.eos_token_ids, config.vocab_size)
    return Checkpoint(config, load_weights(config, folder), tokenizer)


def generate(
    checkpoint: Checkpoint, spec: DeviceSpec, prompts: Sequence[str], mode: str, *,
    max_new_tokens: int = 48, capture_sizes: Sequence[int] | None = None,
    sampling: SamplingParams = GREEDY, speculation: generation.Speculation = generation.PLAIN,
    on_token: generation.OnToken | None = None, tell: generation.Tell = lambda line: None,
) -> Generation:  # fmt: skip
    """Run all prompts side by side. `sampling` is the first prompt's (`requests_for`). Raises
    ValueError for an empty prompt, for one that does not fit the context, for a draft model that
    does not fit the other, and for weights that are not finite; MemoryError for a model that does
    not fit."""
    tokenizer = checkpoint.tokenizer
    limits = generation.limits_for(checkpoint.config, len(prompts), speculation)
    requests = generation.requests_for(prompts, tokenizer, limits, max_new_tokens, sampling)
    limits = generation.with_blocks_for(limits, requests)
    device = Device(spec)
    drawn = sampling.temperature > 0
    captured = partial(_captured, device, mode, capture_sizes, tell, drawn)

    def drafting(folder: Path, limits: SchedulerLimits) -> SimRunner:
        draft = open_checkpoint(folder)
        return captured(draft.config, draft.weights, limits)[0]

    proposer = generation.proposer_for(speculation, checkpoint.config, requests, limits, drafting)
    runner, report = captured(checkpoint.config, checkpoint.weights, limits)
    before, began = device.counters.copy(), device.cpu_us
    done = generation.generated(runner, report, limits, requests, tokenizer, proposer, on_token)
    counters = device.counters.since(before)
    return Generation(**vars(done), counters=counters, simulated_us=device.cpu_us - began)


def open_engine(
    config: ModelConfig, folder: Path, limits: SchedulerLimits, mode: str,
    capture_sizes: Sequence[int] | None, tell: generation.Tell, spec: DeviceSpec,
) -> Engine:  # fmt: skip
    """An engine for whoever comes, its graphs captured; each request is drawn as it asks for."""
    weights = load_weights(config, folder)
    runner, _ = _captured(Device(spec), mode, capture_sizes, tell, True, config, weights, limits)
    return Engine(runner, limits, runner.dispatcher)


def _captured(
    device: Device, mode: str, capture_sizes: Sequence[int] | None, tell: generation.Tell,
    drawn: bool, config: ModelConfig, weights: Weights, limits: SchedulerLimits,
) -> tuple[SimRunner, CaptureReport]:  # fmt: skip
    """A runner with its graphs captured, and tables of RoPE for all positions that can occur."""
    dispatcher = generation.dispatcher_for(mode, limits, capture_sizes, tell)
    config = replace(config, max_position_embeddings=limits.max_model_len)
    runner = SimRunner(device, config, weights, limits, dispatcher, sampling=drawn)
    report = runner.capture()
    for line in report.lines():
        tell(line)
    return runner, report
