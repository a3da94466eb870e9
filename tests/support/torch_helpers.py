"""The torch model driven without graphs: a lone request, a batch built by hand, a whole engine.
And a limit for the emulator's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.attention import Attention, HostAttention  # noqa: E402
from mini_engine.cuda.graphs.arena import host_memory  # noqa: E402
from mini_engine.cuda.inputs import StaticInputs, StepInputs  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.weights import Weights, random_weights  # noqa: E402
from mini_engine.engine.batch import (  # noqa: E402
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.blocks import BlockPool  # noqa: E402
from mini_engine.model.config import ModelConfig  # noqa: E402
from tests.support.checkpoint_helpers import FAMILIES as FAMILIES  # noqa: E402
from tests.support.checkpoint_helpers import MIXTURE as MIXTURE  # noqa: E402
from tests.support.checkpoint_helpers import TINY as TINY  # noqa: E402
from tests.support.checkpoint_helpers import lone_inputs, random_tensors, write  # noqa: E402

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]
SLOW_DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu_slow, NO_GPU])]
CPU = torch.device("cpu")
# float32 on both sides, but other orders of summation: a few units in the last place of logits
# whose size is about 1, over at most four layers.
TOLERANCE = 1e-4
LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=24, num_blocks=40, block_size=4, max_model_len=32
)
MAX_BLOCKS = 8


@pytest.fixture
def inference() -> Iterator[None]:
    """As the engine runs: without autograd. `usefixtures(inference.__name__)` in a file's marks."""
    with torch.inference_mode():
        yield


def random_folder(config: ModelConfig, folder: Path, seed: int = 0) -> Path:
    """A folder with random float32 weights under Hugging Face's names."""
    return write(folder, random_tensors(config, seed))


def torch_model(weights: Weights, num_blocks: int, block_size: int) -> Model:
    """A model with a cache of its own, beside its weights and in their dtype."""
    table = weights.embed
    cache = KVCache.allocate(weights.config, num_blocks, block_size, table.device, table.dtype)
    return Model(weights, cache)


class LoneTorchModel:
    """One request on one model, its blocks handed out in a scattered order."""

    def __init__(self, weights: Weights, *, block_size: int = 4, seed: int = 0) -> None:
        self.config, self.block_size = weights.config, block_size
        blocks = 1 + -(-self.config.max_position_embeddings // block_size)
        self.model = torch_model(weights, blocks, block_size)
        self.table = 1 + np.random.default_rng(seed).permutation(blocks - 1)

    def inputs(self, token_ids: Sequence[int], start: int) -> StepInputs:
        """`token_ids` stand at start, start + 1, …; logits of all of them are wanted."""
        arrays = lone_inputs(self.table, self.block_size, token_ids, start)
        device = self.model.weights.embed.device
        return StepInputs(**{name: torch.tensor(a, device=device) for name, a in arrays.items()})

    def logits(
        self, token_ids: Sequence[int], start: int = 0, attention: Attention | None = None
    ) -> np.ndarray:
        """Logits after each of `token_ids`. (T, V) float32"""
        count = len(token_ids)
        attention = attention or HostAttention((count,), (start + count,), self.block_size)
        inputs = self.inputs(token_ids, start)
        logits, _ = self.model.head(self.model.body(inputs, attention), inputs)
        written: np.ndarray = logits.float().cpu().numpy()
        return written


def batch_of(
    chunks: Sequence[tuple[int, int]], seed: int = 0, limits: SchedulerLimits = LIMITS
) -> ScheduledBatch:
    """One request for each (start, query_len), tokens and blocks random; decodes first."""
    rng = np.random.default_rng(seed)
    pool = BlockPool(limits.num_blocks, limits.block_size)
    entries = []
    for name, (start, query_len) in enumerate(sorted(chunks, key=lambda c: c[1] > 1)):
        prompt = rng.integers(0, TINY.vocab_size, start + query_len).tolist()
        state = RequestState(Request(str(name), prompt, 9))
        table = pool.allocate(str(name), start + query_len)
        entries.append(
            ScheduledRequest(state, start, query_len, table, is_prefill=query_len > 1, samples=True)
        )
    return ScheduledBatch(tuple(entries))


def tiny_weights(device: str = "cpu") -> Weights:
    return random_weights(TINY, torch.device(device), torch.float32, seed=2)


def warm_model(weights: Weights, seed: int = 0) -> Model:
    """A model whose cache is full of plausible keys and values."""
    model = torch_model(weights, LIMITS.num_blocks, LIMITS.block_size)
    generator = torch.Generator(weights.embed.device).manual_seed(seed)
    for cache in (*model.cache.keys, *model.cache.values):
        cache.normal_(generator=generator)
    return model


def step(
    model: Model, batch: ScheduledBatch, attention: Attention, num_tokens: int, num_reqs: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and tokens of the batch, padded to this size, padding cut off."""
    inputs = StaticInputs(LIMITS, LIMITS.max_num_batched_tokens, model.weights.embed.device)
    inputs = inputs.fill(batch, num_tokens, num_reqs)
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    return logits[: batch.num_reqs], tokens[: batch.num_reqs]


@contextmanager
def memory_limit(capacity_bytes: int) -> Iterator[None]:
    """All pools of the emulator together get so many bytes: what does running out of memory do?"""
    before, host_memory.capacity_bytes = host_memory.capacity_bytes, capacity_bytes
    try:
        yield
    finally:
        host_memory.capacity_bytes = before
