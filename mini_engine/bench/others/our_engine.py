"""This engine, asked as the others are: requests in, `Engine.step`, and the time of every token.

What `generate` runs on this machine (cuda/generate.py): five kernels a layer, with PDL, where they
can run, else the plain model. A step ends when its tokens have been read back, as for any caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from mini_engine.bench.decode_setup import build_engine
from mini_engine.bench.others.child import Job, Lap, empty_lap
from mini_engine.cuda.generate import dtype_for, nearest_backend
from mini_engine.cuda.weights import load_weights
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.model.config import ModelConfig

BUDGET = 2048  # tokens of prompts in a step


@torch.inference_mode()
def start(job: Job) -> OurSession:
    """Load the model, capture its graphs."""
    config, backend = ModelConfig.from_folder(job.model), nearest_backend(print)
    weights = load_weights(config, job.model, backend.device, dtype_for(backend, print))
    mode = "NONE" if job.eager else "FULL_DECODE_ONLY"
    engine, _ = build_engine(
        weights, backend, mode, batch=job.batch, room=job.room, budget=BUDGET, kernels=5
    )
    return OurSession(engine, job.tokens)


class OurSession:
    """A loop around `Engine.step`."""

    version = ""  # the commit, which the measurement names

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine, self.tokens = engine, tokens

    @torch.inference_mode()
    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        lap = empty_lap(len(prompts))
        for index, prompt in enumerate(prompts):
            self.engine.submit(Request(str(index), tuple(prompt), self.tokens))
        while record := self.engine.step():
            now = time.perf_counter()
            for request, token in record.written:
                lap.tokens[int(request.request_id)].append(token)
                lap.times[int(request.request_id)].append(now)
        return lap
