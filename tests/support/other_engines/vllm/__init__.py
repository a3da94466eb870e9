"""`vllm.LLM`, its `llm_engine`, `SamplingParams`. A step takes one prompt and all that run."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.support.other_engines.clockwork import MODE, Request, Steps, load
from tests.support.other_engines.vllm.sampling_params import RequestOutputKind


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


class _LLMEngine:
    def __init__(self, eager: bool) -> None:
        self.steps = Steps(eager)
        self.delta = False

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> None:
        assert set(prompt) == {"prompt_token_ids"}
        assert (params.temperature, params.ignore_eos, params.detokenize) == (0.0, True, False)
        self.delta = params.output_kind.name == "DELTA"  # two imports, two enums
        request = Request(request_id, prompt["prompt_token_ids"], params.max_tokens)
        self.steps.waiting.append(request)

    def has_unfinished_requests(self) -> bool:
        return not self.steps.idle

    def step(self) -> list[SimpleNamespace]:
        if not self.steps.prompts(1):
            self.steps.decode()
        batch = list(self.steps.running)
        done = self.steps.write(batch)
        return [
            SimpleNamespace(
                request_id=one.name,
                outputs=[SimpleNamespace(token_ids=one.new[-1:] if self.delta else list(one.new))],
                finished=one in done,
            )
            for one in batch
        ]


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
