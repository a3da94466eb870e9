"""This engine, asked as the others are: requests in, `Engine.step`, and the time of every token.

What `generate` runs on this machine (cuda/generate.py): five kernels a layer, with PDL, where they
can run, else the plain model. A step ends when its tokens have been read back, as for any caller.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from mini_engine.bench.decode_setup import BLOCK_SIZE
from mini_engine.bench.others.child import Job, Lap, empty_lap
from mini_engine.cuda.generate import decoding_model, dtype_for, nearest_backend
from mini_engine.cuda.model import KVCache
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import load_weights
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.model.config import ModelConfig

BUDGET = 2048  # tokens of prompts in a step


class Session:
    """A loop around `Engine.step`."""

    @torch.inference_mode()
    def __init__(self, job: Job) -> None:
        """Load the model, capture a graph for the batch."""
        config, backend = ModelConfig.from_folder(job.model), nearest_backend(print)
        dtype, mode = dtype_for(backend, print), "NONE" if job.eager else "FULL_DECODE_ONLY"
        weights = load_weights(config, job.model, backend.device, dtype)
        limits = SchedulerLimits(
            max_num_seqs=job.batch,
            max_num_batched_tokens=BUDGET,
            num_blocks=1 + job.batch * -(-job.room // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            max_model_len=job.room,
        )
        cache = KVCache.allocate(config, limits.num_blocks, BLOCK_SIZE, backend.device, dtype)
        sizes = default_capture_sizes(job.batch, BUDGET, capture_sizes=[job.batch], mode=mode)
        dispatcher = GraphDispatcher(mode, sizes, job.batch)
        model = decoding_model(weights, cache, backend, 5, print)
        runner = TorchRunner(model, limits, dispatcher, backend)
        if runner.capture().dropped:
            raise torch.OutOfMemoryError(f"no memory to capture batch {job.batch}")
        self.engine, self.tokens = Engine(runner, limits, dispatcher), job.tokens

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
