"""OpenAI's two ways to ask for a text, as requests of the engine, and its answers as JSON
(https://platform.openai.com/docs/api-reference). Some of vLLM's own parameters are taken, too. What
is not supported is refused, not passed over."""

import random
import re
from dataclasses import dataclass
from typing import Any, Literal

from mini_engine.endpoint.engines import Backend, Placeholder
from mini_engine.engine.batch import Request
from mini_engine.engine.sampling import SEEDS, SamplingParams
from mini_engine.files import in_short, parse_json, typed
from mini_engine.model.tokenizer import TextStream

# Parameters that are taken only with a value that changes nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "suffix": ("",),
    "top_logprobs": (0,), "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},),
    "tools": ([],), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},),
    "repetition_penalty": (1,), "min_tokens": (0,), "stop_token_ids": ([],),
}  # fmt: skip
INERT = "user metadata store service_tier prompt_cache_key safety_identifier parallel_tool_calls"
COMPLETION_TOKENS = 16  # of /v1/completions by default


class Refused(Exception):
    """An answer with an error: its HTTP status, and OpenAI's message, type, param and code."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        kinds = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
        kind = kinds.get(status, "invalid_request_error")
        self.status, self.headers = status, headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Part:
    type: Literal["text"]
    text: str


@dataclass(frozen=True)
class Message:
    role: str
    content: str | list[Part]
    name: str | None = None

    @property
    def text(self) -> str:
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        return "".join(parts)


@dataclass(frozen=True)
class StreamOptions:
    include_usage: bool = False
    continuous_usage_stats: bool = False


@dataclass(frozen=True)
class Body:
    model: str | None = None
    prompt: str | list[Any] | None = None
    messages: list[Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] = ()  # type: ignore[assignment]
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    ignore_eos: bool = False

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def read_body(content: bytes, backend: Backend, number: str, *, chat: bool) -> tuple[Body, Request]:
    """Raises `Refused` 400 for what is wrong or not supported, 404 for another model than ours."""
    try:
        given = parse_json(content, "the body")
        if not isinstance(given, dict):
            raise ValueError(f"the body is {in_short(given)}, expected an object {{...}}")
        for name, neutral in NEUTRAL.items():
            if (value := given.pop(name, None)) is not None and value not in neutral:
                words = f"{name} {in_short(value)} is not supported here: leave it out"
                raise Refused(400, words, "unsupported_value", name)
        body = typed(Body, {k: v for k, v in given.items() if k not in INERT.split()}, "body")
        if body.model not in (None, backend.model):
            words = f"the model {in_short(body.model)} does not exist: this is {backend.model}"
            raise Refused(404, words, "model_not_found", "model")
        if len(body.stops) > 4 or not all(body.stops):
            raise ValueError("body: stop: give up to 4 texts, none of them empty")
        return body, _request(body, backend, number, chat=chat)
    except ValueError as error:
        named = re.match(r"body: '?(\w+)", str(error))
        raise Refused(400, str(error), param=named and named[1]) from None


def _request(body: Body, backend: Backend, number: str, *, chat: bool) -> Request:
    prompt, limits = _prompt(body, backend, chat=chat), backend.limits
    room, wanted = limits.max_model_len - len(prompt), body.max_completion_tokens or body.max_tokens
    if room < (wanted or 1):
        words = (f"the context is {limits.max_model_len} tokens, the prompt has {len(prompt)}, and "
                 f"{wanted or 1} are to follow: shorten either")  # fmt: skip
        raise Refused(400, words, "context_length_exceeded", "messages" if chat else "prompt")
    wanted = wanted if wanted is not None else room if chat else min(room, COMPLETION_TOKENS)
    seed = random.randrange(SEEDS) if body.seed is None else body.seed % SEEDS
    drawn = SamplingParams(body.temperature, max(body.top_k, 0), body.top_p, body.min_p, seed)
    eos_ids = () if body.ignore_eos else backend.eos_ids
    request = Request(number, prompt, wanted, eos_ids=eos_ids, sampling=drawn)
    limits.check(request)
    return request


def _prompt(body: Body, backend: Backend, *, chat: bool) -> list[int]:
    prompt, tokenizer = body.prompt, backend.tokenizer
    if chat == (not body.messages) or chat != (prompt is None):
        raise ValueError(f"give {'messages, one at least' if chat else 'a prompt'}, and no "
                         f"{'prompt' if chat else 'messages'}")  # fmt: skip
    if chat:
        messages = [{"role": one.role, "content": one.text} for one in body.messages or ()]
        # a template writes the tokens that stand at a text's beginning itself
        text, plain = backend.template.render(messages), backend.template.source is None
        return tokenizer.encode(text, special=plain)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if not prompt or not all(type(one) is int and 0 <= one < backend.vocab_size for one in prompt):
        raise ValueError(f"body: prompt: give one text, or token ids below {backend.vocab_size}")
    return prompt


class Answer:
    """The text of one answer, piece by piece, up to a stop string."""

    ended: str | None = None  # why
    tokens = 0

    def __init__(self, pieces: TextStream | Placeholder, stops: list[str], prompt: int) -> None:
        self._pieces, self._stops, self._held, self._prompt = pieces, stops, "", prompt
        self._keep = max(map(len, stops), default=1) - 1  # may be the beginning of a stop string

    def push(self, tokens: list[int], ended: str | None) -> str:
        """The text that is certain after these tokens."""
        self.tokens += len(tokens)
        text = self._held + "".join(map(self._pieces.push, tokens))
        text += self._pieces.finish() if ended else ""
        if found := [at for stop in self._stops if (at := text.find(stop)) >= 0]:
            text, ended = text[: min(found)], "stop"
        cut = len(text) if ended else max(0, len(text) - self._keep)
        self.ended, self._held = ended, text[cut:]
        return text[:cut]

    @property
    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self._prompt, "completion_tokens": self.tokens,
                "total_tokens": self._prompt + self.tokens}  # fmt: skip
