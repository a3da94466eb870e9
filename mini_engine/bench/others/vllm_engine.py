"""vLLM: requests are added to its `LLMEngine`, and each `step` hands over new tokens.

Read in vLLM 0.33.0 (the source on PyPI): `LLM.__init__` (vllm/entrypoints/llm.py),
`LLMEngine.add_request`, `.step`, `.has_unfinished_requests` (vllm/v1/engine/llm_engine.py),
`InputProcessor.process_inputs`, `RequestState.make_request_output`, `SamplingParams`; and the same
names of its V1 engine in vllm-project/vllm, 001999d (2025). `RequestOutputKind.DELTA` makes an
output hold the tokens that are new. Without a tokenizer no text is made of them.

The engine itself works in another process, as vLLM does by default
(VLLM_ENABLE_V1_MULTIPROCESSING): a token's time holds the way from there.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

from mini_engine.bench.others.child import Job, Lap, empty_lap


def start(job: Job) -> VllmSession:
    """Load the model, capture its graphs."""
    vllm = importlib.import_module("vllm")
    kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
    llm = vllm.LLM(
        model=job.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=job.room,
        max_num_seqs=job.batch,
        gpu_memory_utilization=job.memory,
        enable_prefix_caching=False,
        enforce_eager=job.eager,
    )
    params = vllm.SamplingParams(
        temperature=0.0,
        max_tokens=job.tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=kinds.DELTA,
    )
    return VllmSession(llm.llm_engine, params)


class VllmSession:
    """A loop around `LLMEngine.step`."""

    def __init__(self, engine: Any, params: Any) -> None:
        self.engine, self.params, self.laps = engine, params, 0

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
