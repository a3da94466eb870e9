"""vLLM: requests are added to its `LLMEngine`, and each `step` hands over new tokens.

Read in vLLM 0.33.0 (the source on PyPI): `LLM.__init__`, `LLMEngine.add_request`, `.step`,
`.has_unfinished_requests`, `SamplingParams`; and the same names of its V1 engine in 001999d (2025).
`RequestOutputKind.DELTA` makes an output hold the tokens that are new.

The engine itself works in another process, as vLLM does by default: a token's time holds the way
from there.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

from mini_engine.bench.others.child import Job, Lap, empty_lap


class Session:
    """A loop around `LLMEngine.step`."""

    def __init__(self, job: Job) -> None:
        """Load the model, capture its graphs."""
        vllm = importlib.import_module("vllm")
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self.engine = vllm.LLM(
            model=job.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=job.room,
            max_num_seqs=job.batch,
            gpu_memory_utilization=job.memory,
            enable_prefix_caching=False,
            enforce_eager=job.eager,
        ).llm_engine
        self.params = vllm.SamplingParams(
            temperature=0.0, max_tokens=job.tokens, ignore_eos=True, detokenize=False,
            output_kind=kinds.DELTA,
        )  # fmt: skip
        self.laps = 0

    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        self.laps += 1
        for index, prompt in enumerate(prompts):
            words = {"prompt_token_ids": list(prompt)}
            self.engine.add_request(f"{self.laps}-{index}", words, self.params)
        lap = empty_lap(len(prompts))
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter()
            for output in outputs:
                index, new = int(output.request_id.split("-")[1]), output.outputs[0].token_ids
                lap.tokens[index].extend(new)
                lap.times[index].extend([now] * len(new))
        return lap
