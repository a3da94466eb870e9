"""The CUDA wing over a long time and on a bad day: thousands of steps, poison, Ctrl-C, no memory.

What needs a GPU runs on one with `make gpu`; everything runs on the emulator.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache, Model  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from mini_engine.dispatch import CUDAGraphMode, GraphDispatcher  # noqa: E402
from mini_engine.engine import Engine  # noqa: E402
from mini_engine.scheduler import SchedulerLimits  # noqa: E402
from tests.lockstep import Lockstep, Watched, random_traffic  # noqa: E402
from tests.torch_helpers import DEVICES, TINY  # noqa: E402

ONE_LAYER = replace(TINY, num_layers=1, head_dim=16)
# Four rungs for up to six requests: batches of 1, 3 and 5 are padded. 19 blocks of 4 tokens for
# requests of up to 32: six of them do not fit, so the youngest are preempted.
LIMITS = SchedulerLimits(
    max_num_seqs=6, max_num_batched_tokens=12, num_blocks=20, block_size=4, max_model_len=32
)
RUNGS = (2, 4, 6, 12)
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def runner_of(mode: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> TorchRunner:
    where = torch.device(device)
    weights = random_weights(ONE_LAYER, where, dtype, seed=3)
    cache = KVCache.allocate(ONE_LAYER, LIMITS.num_blocks, LIMITS.block_size, where, dtype)
    dispatcher = GraphDispatcher(mode, RUNGS if mode != "NONE" else (), LIMITS.max_num_seqs)
    return TorchRunner(Model(weights, cache), LIMITS, dispatcher, graphs_for(device))


def test_x() -> None:
    import time
    n = int(os.environ.get("N", "2000"))
    dt = getattr(torch, os.environ.get("DT", "float32"))
    eager = Watched.of(runner_of("NONE", dtype=dt))
    graphs = [Watched.of(runner_of(m, dtype=dt)) for m in ("FULL", "FULL_AND_PIECEWISE")]
    for g in graphs: g.runner.capture()
    lock = Lockstep(eager, graphs, 1e9)
    engine = Engine(lock, LIMITS, eager.runner.dispatcher)
    t=time.time()
    tr = random_traffic(engine, n, ONE_LAYER.vocab_size, 0)
    print(time.time()-t, tr)
    for g in graphs: print(g.modes, g.padded_steps, g.ties, g.furthest)
    assert lock.all_finite
    assert engine.scheduler.pool.num_free == LIMITS.num_blocks - 1
