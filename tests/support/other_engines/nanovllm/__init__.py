"""`nanovllm.LLM`, `SamplingParams`: all prompts first, then decode steps of the whole batch.

The real one drops a keyword that it does not know; this one refuses it, so that a test notices. As
in the real one, its rungs leave out the largest batch unless that is a multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.other_engines.clockwork import Request, Steps, load

FITS = 24  # requests that its cache has room for
PROMPTS_A_STEP = 2


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        assert self.temperature > 1e-10, "greedy sampling is not permitted"


class LLM:
    def __init__(
        self,
        model: str,
        *,
        max_model_len: int = 4096,
        max_num_seqs: int = 512,
        gpu_memory_utilization: float = 0.9,
        enforce_eager: bool = False,
    ) -> None:
        load()
        self.given = (model, max_model_len, gpu_memory_utilization)
        self.rungs, self.eager = [1, 2, 4, 8, *range(16, max_num_seqs + 1, 16)], enforce_eager
        self.steps, self.count = Steps(enforce_eager), 0

    def add_request(self, prompt: str | list[int], sampling_params: SamplingParams) -> None:
        assert isinstance(prompt, list)
        assert sampling_params.ignore_eos
        self.count += 1
        self.steps.waiting.append(Request(self.count, prompt, sampling_params.max_tokens))

    def is_finished(self) -> bool:
        return self.steps.idle

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        if batch := self.steps.prompts(PROMPTS_A_STEP):
            count = sum(len(one.prompt) for one in batch)
        else:
            batch = self.steps.running[:FITS]
            if not self.eager:
                next(rung for rung in self.rungs if rung >= len(batch))
            self.steps.decode()
            count = -len(batch)
        return [(int(one.name), one.new) for one in self.steps.write(batch)], count
