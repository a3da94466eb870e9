"""Text from the engine on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine import generation
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Completion, Engine, Proposer
from mini_engine.engine.prefix_cache import Hits
from mini_engine.engine.sampling import GREEDY, SamplingParams
from mini_engine.engine.speculation import DraftModel, Ngram
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
class Generation:
    """What one run of the engine wrote, in the order of the prompts."""

    mode: str
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    counters: Counters  # of serving, without capture
    simulated_us: float
    report: CaptureReport
    drafts: Hits  # of speculation


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
        sizes = generation.sizes_for(mode, limits, capture_sizes, tell)
        dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs, limits.decode_query_len)
        # Tables of RoPE for no more positions than can occur.
        config = replace(model.config, max_position_embeddings=limits.max_model_len)
        drawn = sampling.temperature > 0
        runner = SimRunner(device, config, model.weights, limits, dispatcher, sampling=drawn)
        report = runner.capture()
        for line in report.lines():
            tell(line)
        return runner, report

    proposer: Proposer | None = Ngram() if speculation.num_tokens else None
    if speculation.draft_model:
        draft = ModelConfig.from_folder(speculation.draft_model)
        generation.check_draft(checkpoint.config, draft, requests)
        drafting, _ = runner_of(
            open_checkpoint(speculation.draft_model), replace(limits, num_speculative_tokens=0)
        )
        proposer = DraftModel(drafting, drafting.dispatcher)
    runner, report = runner_of(checkpoint, limits)
    before, began = device.counters.copy(), device.cpu_us
    engine = Engine(runner, limits, runner.dispatcher, proposer=proposer)
    completions = generation.run_all(engine, requests, on_token)
    return Generation(
        generation.mode_of(runner.dispatcher),
        completions,
        tuple(tokenizer.decode(list(c.tokens)) for c in completions),
        device.counters.since(before),
        device.cpu_us - began,
        report,
        engine.scheduler.drafts,
    )


def open_engine(
    config: ModelConfig, folder: Path, limits: SchedulerLimits, mode: str,
    capture_sizes: Sequence[int] | None, tell: generation.Tell, spec: DeviceSpec,
) -> Engine:  # fmt: skip
    """An engine for whoever comes, its graphs captured; each request is drawn as it asks for."""
    dispatcher = GraphDispatcher(
        mode, generation.sizes_for(mode, limits, capture_sizes, tell), limits.max_num_seqs
    )
    config = replace(config, max_position_embeddings=limits.max_model_len)
    weights = load_weights(config, folder)
    runner = SimRunner(Device(spec), config, weights, limits, dispatcher, sampling=True)
    for line in runner.capture().lines():
        tell(line)
    return Engine(runner, limits, dispatcher)
