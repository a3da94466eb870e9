"""nano-vllm: `LLM.step` runs one batch; a decode step gives each of its requests one token more.

Read in GeeeekExplorer/nano-vllm, bb823b3: `LLMEngine.add_request`, `.step`, `.is_finished`
(nanovllm/engine/llm_engine.py), `Config`, `SamplingParams`. `step` returns the requests that have
ended, and a number: the tokens of a prompt step, or minus the requests of a decode step. Tokens
come out at the end only; but a step waits for them, so its end is when they were there.

It runs more than 512 requests eagerly, and captures multiples of 16. It refuses temperature 0; at
1e-5 a token has to be within about 1e-4 of the best one to be drawn. Qwen3 only.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

from mini_engine.bench.others.child import Job, Lap

NEARLY_GREEDY, RUNG, MOST = 1e-5, 16, 512


class Session:
    """A loop around `LLM.step`."""

    def __init__(self, job: Job) -> None:
        """Load the model, capture its graphs. ValueError for a batch that would run without."""
        if job.batch > MOST and not job.eager:
            raise ValueError(f"a batch of {job.batch}: it has graphs for {MOST} at most")
        nano = importlib.import_module("nanovllm")
        self.llm = nano.LLM(
            job.model,
            max_model_len=job.room,
            max_num_seqs=-(-job.batch // RUNG) * RUNG,
            gpu_memory_utilization=job.memory,
            enforce_eager=job.eager,
        )
        self.params = nano.SamplingParams(
            temperature=NEARLY_GREEDY, max_tokens=job.tokens, ignore_eos=True
        )

    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        for prompt in prompts:
            self.llm.add_request(list(prompt), self.params)
        times: list[float] = []
        ended: dict[int, list[int]] = {}
        while not self.llm.is_finished():
            outputs, count = self.llm.step()
            now = time.perf_counter()
            if count > 0:  # prompts: the last such step gives the last first token
                times = [now]
            elif -count == len(prompts):
                times.append(now)
            else:
                raise ValueError(
                    f"a step of {-count} of {len(prompts)} requests: its KV cache is too small"
                )
            ended.update({number: list(tokens) for number, tokens in outputs})
        return Lap([times for _ in prompts], [ended[number] for number in sorted(ended)])
