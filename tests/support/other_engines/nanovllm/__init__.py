"""`nanovllm.LLM`, `SamplingParams`: all prompts first, then decode steps of the whole batch.

The real one drops a keyword that it does not know; this one refuses it, so that a test notices. As
in the real one, its rungs leave out the largest batch unless that is a multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.other_engines.clockwork import Steps, load, next_token

FITS = 24  # requests that its cache has room for
PROMPTS_A_STEP = 2


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 64
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        assert self.temperature > 1e-10, "greedy sampling is not permitted"


@dataclass
class _Sequence:
    seq_id: int
    prompt: list[int]
    params: SamplingParams
    new: list[int] = field(default_factory=list)

    def append(self) -> None:
        self.new.append(next_token(self.prompt + self.new))


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
        self.waiting: list[_Sequence] = []
        self.running: list[_Sequence] = []
        self.steps, self.count = Steps(enforce_eager), 0

    def add_request(self, prompt: str | list[int], sampling_params: SamplingParams) -> None:
        assert isinstance(prompt, list)
        assert sampling_params.ignore_eos
        self.count += 1
        self.waiting.append(_Sequence(self.count, prompt, sampling_params))

    def is_finished(self) -> bool:
        return not self.waiting and not self.running

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        if self.waiting:
            batch = self.waiting[:PROMPTS_A_STEP]
            del self.waiting[:PROMPTS_A_STEP]
            self.steps.prompt()
            self.running += batch
            count = sum(len(one.prompt) for one in batch)
        else:
            batch = self.running[:FITS]
            if not self.eager:
                next(rung for rung in self.rungs if rung >= len(batch))
            self.steps.decode()
            count = -len(batch)
        for one in batch:
            one.append()
        done = [one for one in batch if len(one.new) == one.params.max_tokens]
        self.running = [one for one in self.running if one not in done]
        if self.is_finished():
            self.steps.batch_is_done()
        return [(one.seq_id, one.new) for one in done], count
