"""`vllm.LLM`, its `llm_engine`, `SamplingParams`. A step takes one prompt and all that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.other_engines.clockwork import MODE, Steps, load, next_token
from tests.support.other_engines.vllm.sampling_params import RequestOutputKind


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]


@dataclass
class RequestOutput:
    request_id: str
    outputs: list[CompletionOutput]
    finished: bool


@dataclass
class _Request:
    request_id: str
    prompt: list[int]
    params: SamplingParams
    new: list[int] = field(default_factory=list)

    def output(self) -> RequestOutput:
        self.new.append(next_token(self.prompt + self.new))
        delta = self.params.output_kind.name == "DELTA"  # two imports, two enums
        tokens = self.new[-1:] if delta else list(self.new)
        done = len(self.new) == self.params.max_tokens
        return RequestOutput(self.request_id, [CompletionOutput(0, "", tokens)], done)


class _LLMEngine:
    def __init__(self, eager: bool) -> None:
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.steps = Steps(eager)

    def add_request(
        self,
        request_id: str,
        prompt: dict[str, Any],
        params: SamplingParams,
        arrival_time: float | None = None,
    ) -> None:
        assert set(prompt) == {"prompt_token_ids"}
        assert arrival_time is None
        assert (params.temperature, params.ignore_eos, params.detokenize) == (0.0, True, False)
        self.waiting.append(_Request(request_id, prompt["prompt_token_ids"], params))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[RequestOutput]:
        if self.waiting:
            self.running.append(self.waiting.pop(0))
            self.steps.prompt()
        else:
            self.steps.decode()
        outputs = [request.output() for request in self.running]
        done = {output.request_id for output in outputs if output.finished}
        self.running = [request for request in self.running if request.request_id not in done]
        if not self.has_unfinished_requests():
            self.steps.batch_is_done()
        return outputs


class LLM:
    def __init__(
        self,
        model: str,
        *,
        skip_tokenizer_init: bool = False,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        gpu_memory_utilization: float = 0.9,
        enable_prefix_caching: bool | None = None,
        enforce_eager: bool = False,
    ) -> None:
        load()
        assert model
        assert (skip_tokenizer_init, dtype) == (True, "bfloat16")
        assert enable_prefix_caching is False  # it is on where nobody says so
        assert gpu_memory_utilization < 0.9  # something may stand beside it
        self.most = (max_num_seqs, max_model_len)
        self.llm_engine = _LLMEngine(enforce_eager)
        if MODE == "old":
            del self.llm_engine
