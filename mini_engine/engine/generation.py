"""Prompts through the engine, in both wings: limits, requests, and completions in prompt order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode, parse
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Completion, Engine, Proposer
from mini_engine.engine.prefix_cache import Hits
from mini_engine.engine.sampling import GREEDY, SEEDS, SamplingParams
from mini_engine.engine.speculation import DraftModel, Ngram
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import resolve_model
from mini_engine.model.tokenizer import Tokenizer

SHIPPED = Path(__file__).parent.parent / "checkpoints" / "tiny-qwen3"
MAX_CONTEXT = 16_384  # tokens of a request
OnToken = Callable[[int, int], None]  # (index of the prompt, token id)
Tell = Callable[[str], object]  # is given a line for people


class Speculation(NamedTuple):
    """How the next tokens of a request are drafted (engine/speculation.py)."""

    num_tokens: int = 0  # drafts of each decode; 0: none
    draft_model: str | None = None  # a checkpoint that writes them; None: n-grams


PLAIN = Speculation()


@dataclass(frozen=True)
class Generation:
    mode: str
    completions: tuple[Completion, ...]
    texts: tuple[str, ...]
    report: CaptureReport
    drafts: Hits  # of speculation


def limits_for(
    config: ModelConfig, num_prompts: int, speculation: Speculation = PLAIN
) -> SchedulerLimits:
    """Limits for a few prompts: a budget of 64 tokens a step, or as many as all decodes have with
    their drafts, and blocks of 16 tokens."""
    seqs = min(max(num_prompts, 1), 16)
    context = min(config.max_position_embeddings, MAX_CONTEXT)
    return SchedulerLimits(
        max_num_seqs=seqs, max_num_batched_tokens=max(64, seqs * (1 + speculation.num_tokens)),
        num_speculative_tokens=speculation.num_tokens, num_blocks=1 + seqs * -(-context // 16),
        block_size=16, max_model_len=context,
    )  # fmt: skip


def requests_for(
    prompts: Sequence[str], tokenizer: Tokenizer, limits: SchedulerLimits, max_new_tokens: int,
    sampling: SamplingParams = GREEDY,
) -> list[Request]:  # fmt: skip
    """A request for each prompt, with ids `prompt 1`, `prompt 2`, … Each is drawn with a seed of
    its own, that of `sampling` for the first, then one more each: so a prompt that is given twice
    is continued in two ways. Raises ValueError for an empty prompt and for one that does not fit
    the context together with its answer, before a model is loaded."""
    requests = [
        Request(
            f"prompt {number}",
            tokenizer.encode(prompt),
            max_new_tokens,
            eos_ids=tokenizer.eos_token_ids,
            sampling=replace(sampling, seed=(sampling.seed + number - 1) % SEEDS),
        )
        for number, prompt in enumerate(prompts, start=1)
    ]
    for request in requests:
        limits.check(request)
        if len(request.prompt) + max_new_tokens > limits.max_model_len:
            size = f"prompt of {len(request.prompt)} + max_new_tokens {max_new_tokens}"
            context = f"context of {limits.max_model_len}"
            raise ValueError(f"request {request.request_id!r}: {size} > {context}")
    return requests


def with_blocks_for(limits: SchedulerLimits, requests: Sequence[Request]) -> SchedulerLimits:
    """`limits` with as many KV blocks as these requests fill at most, and no more: those of the
    `max_num_seqs` longest, and the null block."""
    sizes = [-(-(len(r.prompt) + r.max_new_tokens) // limits.block_size) for r in requests]
    longest = sorted(sizes, reverse=True)[: limits.max_num_seqs]
    return replace(limits, num_blocks=1 + sum(longest))


def dispatcher_for(
    mode: str, limits: SchedulerLimits, capture_sizes: Sequence[int] | None, tell: Tell
) -> GraphDispatcher:
    """Over the given capture sizes or, with None, vLLM's. `tell` gets a line that names those which
    no step can reach. Raises ValueError for a size below 1."""
    top = limits.max_num_batched_tokens
    sizes = default_capture_sizes(
        limits.max_num_seqs, top, capture_sizes=capture_sizes, mode=mode,
        num_speculative_tokens=limits.num_speculative_tokens,
    )  # fmt: skip
    dropped = sorted({size for size in capture_sizes or () if size > top})
    if dropped and parse(CUDAGraphMode, mode) is not CUDAGraphMode.NONE:
        tell(
            f"capture sizes {', '.join(map(str, dropped))} are dropped: a step has at most {top} "
            "tokens" + ("" if sizes else "; none is left, so every step runs eagerly")
        )
    return GraphDispatcher(mode, sizes, limits.max_num_seqs, limits.decode_query_len)


def proposer_for(
    speculation: Speculation, config: ModelConfig, requests: Sequence[Request],
    limits: SchedulerLimits, runner_of: Callable[[Path, SchedulerLimits], Any],
) -> Proposer | None:  # fmt: skip
    """Who drafts: nobody, n-grams, or the model of another checkpoint, in a runner of its own.
    Raises ValueError for one whose tokens are others, or whose context is shorter."""
    if speculation.draft_model is None:
        return Ngram() if speculation.num_tokens else None
    folder = resolve_model(speculation.draft_model)
    draft = ModelConfig.from_folder(folder)
    if draft.vocab_size != config.vocab_size:
        raise ValueError(
            f"draft model {draft.name} has {draft.vocab_size:,} tokens, not {config.vocab_size:,}"
        )
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    if draft.max_position_embeddings < longest:
        raise ValueError(
            f"draft model {draft.name} has a context of {draft.max_position_embeddings:,} tokens, "
            f"and this takes {longest:,}: ask for less"
        )
    drafting = runner_of(folder, replace(limits, num_speculative_tokens=0))
    return DraftModel(drafting, drafting.dispatcher)


def mode_of(dispatcher: GraphDispatcher) -> str:
    """The mode that the dispatcher's graphs leave it: that it was made with, NONE where it has no
    graph, and of FULL_AND_PIECEWISE one half where the other has none."""
    there = {descriptor.mode for descriptor in dispatcher.descriptors()}
    if not there:
        return "NONE"
    if dispatcher.mode is CUDAGraphMode.FULL_AND_PIECEWISE and len(there) == 1:
        return "PIECEWISE" if CUDAGraphMode.PIECEWISE in there else "FULL_DECODE_ONLY"
    return dispatcher.mode.name


def generated(
    runner: Any, report: CaptureReport, limits: SchedulerLimits, requests: Sequence[Request],
    tokenizer: Tokenizer, proposer: Proposer | None, on_token: OnToken | None,
) -> Generation:  # fmt: skip
    index = {request.request_id: i for i, request in enumerate(requests)}

    def tell(request: Request, token: int) -> None:
        if on_token:
            on_token(index[request.request_id], token)

    engine = Engine(runner, limits, runner.dispatcher, proposer=proposer)
    done = engine.run(requests, on_token=tell)
    done.sort(key=lambda completion: index[completion.request_id])
    texts = tuple(tokenizer.decode(list(completion.tokens)) for completion in done)
    mode, drafts = mode_of(runner.dispatcher), engine.scheduler.drafts
    return Generation(mode, tuple(done), texts, report, drafts)
