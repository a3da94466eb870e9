"""What may stand behind the endpoint: an engine with a model, or a prediction of one."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import MAX_CONTEXT, SHIPPED, Tell
from mini_engine.model.chat import ChatTemplate
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import resolve_model
from mini_engine.model.tokenizer import TextStream, Tokenizer
from mini_engine.server import Server
from mini_engine.serving.replay import RealTime, Replica
from mini_engine.step.cards import load_spec

BLOCK_SIZE = 16  # tokens


class Placeholder:
    """A prediction has no text: each of its tokens is a word."""

    def push(self, token_id: int) -> str:
        return " token" * (token_id >= 0)

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class Backend:
    model: str  # as clients name it
    steps: RealTime | Engine  # driven by one thread
    tokenizer: Tokenizer
    template: ChatTemplate
    pieces: Callable[[], TextStream | Placeholder]  # the text of an answer, as its tokens come
    eos_ids: Collection[int] = ()
    vocab_size: int = 2**31  # token ids are below

    @property
    def limits(self) -> SchedulerLimits:
        return self.steps.scheduler.limits


def predicted(
    server: Server, mode: str, capture_sizes: Sequence[int] | None, *,
    prefix_caching: bool = True, tokenizer: str | Path = SHIPPED,
) -> Backend:  # fmt: skip
    """Raises ValueError as `Server.sized` does, and for a folder without a tokenizer."""
    sized = server.sized(mode, capture_sizes, prefix_caching=prefix_caching)
    steps = RealTime(Replica(server.costs, sized.limits, sized.dispatcher))
    folder = resolve_model(tokenizer)
    words, template = Tokenizer(folder, ()), ChatTemplate(folder)
    return Backend(server.config.name, steps, words, template, Placeholder)


def real(
    model: str, wing: str, mode: str, capture_sizes: Sequence[int] | None, tell: Tell, *,
    spec: str = "h200", max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None,
    max_model_len: int | None = None, prefix_caching: bool = True, steps_per_replay: int = 1,
) -> Backend:  # fmt: skip
    """The engine of a wing ("sim" or "cuda"), its graphs captured. The cache holds `max_num_seqs`
    requests of `max_model_len` tokens, where they fit. Raises ValueError for a folder that is no
    checkpoint, and for what does not fit."""
    folder = resolve_model(model)
    config = ModelConfig.from_folder(folder)
    tokenizer = Tokenizer(folder, config.eos_token_ids, config.vocab_size)
    context = min(config.max_position_embeddings, max_model_len or MAX_CONTEXT)
    seqs = max_num_seqs or 16
    limits = SchedulerLimits(
        seqs, max(max_num_batched_tokens or 256, seqs), 1 + seqs * -(-context // BLOCK_SIZE),
        BLOCK_SIZE, context, prefix_caching=prefix_caching, steps_per_replay=steps_per_replay,
    )  # fmt: skip
    how = (config, folder, limits, mode, capture_sizes, tell)
    if wing == "cuda":
        from mini_engine.cuda import generate as cuda

        engine = cuda.open_engine(*how)
    else:
        from mini_engine.sim import generate as sim

        engine = sim.open_engine(*how, load_spec(spec))
    return Backend(
        config.name, engine, tokenizer, ChatTemplate(folder),
        tokenizer.stream, config.eos_token_ids, config.vocab_size,
    )  # fmt: skip
