"""Preemption by swap in PyTorch. That no text changes, whatever the load, is in test_runner.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.model import KVCache  # noqa: E402
from mini_engine.cuda.runner import TorchRunner  # noqa: E402
from mini_engine.cuda.swap import HostBlocks  # noqa: E402
from mini_engine.dispatch.dispatcher import GraphDispatcher  # noqa: E402
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits  # noqa: E402
from mini_engine.engine.engine import Engine  # noqa: E402
from tests.support.torch_helpers import DEVICES, TINY, inference, tiny_weights, torch_model  # noqa: E402

pytestmark = pytest.mark.usefixtures(inference.__name__)

TIGHT = SchedulerLimits(4, 12, 14, 2, 32, preemption="swap", host_blocks=40)
REQUESTS = [Request(str(i), (i + 1, 5, 9, i), 9) for i in range(5)]


def served(
    limits: SchedulerLimits, device: str = "cpu", sizes: tuple[int, ...] = ()
) -> tuple[dict[str, tuple[int, ...]], int]:
    """The text of each request, and how many blocks were copied."""
    mode = "FULL_AND_PIECEWISE" if sizes else "NONE"
    dispatcher = GraphDispatcher(mode, sizes, limits.max_num_seqs)
    model = torch_model(tiny_weights(device), limits.num_blocks, limits.block_size)
    runner = TorchRunner(model, limits, dispatcher, graphs_for(device))
    runner.capture()
    copied: Counter[str] = Counter()
    done = Engine(runner, limits, dispatcher).run(
        REQUESTS,
        on_step=lambda r: copied.update(out=len(r.batch.swap_out), back=len(r.batch.swap_in)),
    )
    assert copied["out"] == copied["back"]
    return {c.request_id: c.tokens for c in done}, copied["out"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_text_is_the_same_by_swap_and_by_computing_again(device: str) -> None:
    swapped, copied = served(TIGHT, device, (4,))
    again, none = served(replace(TIGHT, preemption="recompute", host_blocks=0), device)
    assert swapped == again
    assert (copied > 0, none) == (True, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
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


@pytest.mark.parametrize("late", ["swap_out", "swap_in"])
def test_a_copy_after_the_step_is_seen(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that the step reuses before it was copied out; one that it reads too early."""
    execute = TorchRunner.execute

    def hasty(self, batch, descriptor):  # type: ignore[no-untyped-def]
        tokens = execute(self, replace(batch, **{late: ()}), descriptor)
        self.host_blocks.copy(ScheduledBatch((), **{late: getattr(batch, late)}))
        return tokens

    right, _ = served(TIGHT)
    monkeypatch.setattr(TorchRunner, "execute", hasty)
    assert served(TIGHT)[0] != right
