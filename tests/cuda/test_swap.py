"""Preemption by swap in PyTorch. That no text changes, whatever the load, is in test_runner.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache  # noqa: E402
from mini_engine.cuda.swap import HostBlocks  # noqa: E402
from mini_engine.engine.batch import ScheduledBatch  # noqa: E402
from tests.support.torch_helpers import DEVICES, TINY, inference  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_comes_back_whatever_the_dtype(device: str, dtype: torch.dtype) -> None:
    """In a random order, to other blocks than they came from."""
    blocks, generator = 9, torch.Generator().manual_seed(3)
    cache = KVCache.allocate(TINY, 2 * blocks + 1, 4, torch.device(device), dtype)
    for tensor in (*cache.keys, *cache.values):
        raw = tensor.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator))
    order = (1 + torch.randperm(2 * blocks, generator=generator)).tolist()
    before, after = order[:blocks], order[blocks:]
    kept = [t.view(torch.uint8)[before].clone() for t in (*cache.keys, *cache.values)]
    host = HostBlocks(cache, blocks, graphs_for(device))
    hosts = torch.randperm(blocks, generator=generator).tolist()
    host.copy(ScheduledBatch((), swap_out=tuple(zip(before, hosts, strict=True))))
    for tensor in (*cache.keys, *cache.values):
        tensor.view(torch.uint8)[before] = 0
    host.copy(ScheduledBatch((), swap_in=tuple(zip(after, hosts, strict=True))))
    for tensor, bytes_before in zip((*cache.keys, *cache.values), kept, strict=True):
        assert torch.equal(tensor.view(torch.uint8)[after], bytes_before)


def test_the_copies_wait_for_the_steps_before_and_the_step_waits_for_the_copies() -> None:
    said: list[str] = []
    real = graphs_for("cpu")

    class Stream:
        def __init__(self, name: str = "copies") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            said.append(f"{self.name} wait for {other.name}")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        said.append(f"work on {stream.name}")
        yield

    compute = Stream("steps")
    backend = replace(real, Stream=Stream, stream=on, current_stream=lambda: compute)
    cache = KVCache.allocate(TINY, 5, 4, torch.device("cpu"), torch.float32)
    host = HostBlocks(cache, 3, backend)
    host.copy(ScheduledBatch(()))
    assert said == []
    host.copy(ScheduledBatch((), swap_out=((1, 0),)))
    assert said == ["copies wait for steps", "work on copies", "steps wait for copies"]
