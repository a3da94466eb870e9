"""SGLang: `Engine.generate` with `stream=True` yields a piece of one request after the other.

Read in sgl-project/sglang, 18bfdd1 (2025) and 001067f (2026): `Engine.generate`, `ServerArgs`,
`TokenizerManager._handle_batch_request`, which puts the number of the request into each piece as
"index". `meta_info["completion_tokens"]` counts the tokens so far; "output_ids" ends with the new
ones, whether a version sends all or only those. The largest batch that gets a graph follows from
the GPU's memory unless one says it; the argument for it has had two names.

The scheduler works in another process, and its pieces are collected by an event loop here: where
that comes late, it hands over several tokens as one piece.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

from mini_engine.bench.others.child import Job, Lap, empty_lap

LARGEST_GRAPH = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")  # of 2026, of 2025


class Session:
    """A loop around what `Engine.generate` streams."""

    def __init__(self, job: Job) -> None:
        """Load the model, capture its graphs."""
        known = importlib.import_module("sglang.srt.server_args").ServerArgs.__dataclass_fields__
        self.engine = importlib.import_module("sglang").Engine(
            model_path=job.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            context_length=job.room,
            max_running_requests=job.batch,
            mem_fraction_static=job.memory,
            disable_radix_cache=True,
            disable_cuda_graph=job.eager,
            **{name: job.batch for name in LARGEST_GRAPH if name in known},
        )
        self.params = {"temperature": 0.0, "max_new_tokens": job.tokens, "ignore_eos": True}

    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        given = [list(prompt) for prompt in prompts]
        lap = empty_lap(len(prompts))
        pieces = self.engine.generate(input_ids=given, sampling_params=self.params, stream=True)
        for piece in pieces:
            now = time.perf_counter()
            index = piece.get("index", 0)  # missing where a version unpacks a batch of one
            tokens, times = lap.tokens[index], lap.times[index]
            new = piece["meta_info"]["completion_tokens"] - len(tokens)
            if new > 0:
                tokens.extend(piece["output_ids"][-new:])
                times.extend([now] * new)
        return lap
