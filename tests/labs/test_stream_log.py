"""The emulator's log: which work is ordered with which, and what only seems to be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from labs.support.stream_log import Log, logged
from mini_engine.cuda.graphs import emulator


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def write_then_read(between: str) -> Log:
    """One stream writes `x`, another reads it; `between` says who waits in the meantime."""
    x, side, main = torch.zeros(4), emulator.Stream(), emulator.current_stream()
    with logged() as log:
        early, late = emulator.Event(), emulator.Event()
        early.record(main)
        x.fill_(3)
        late.record()
        waits = {
            "nobody": lambda: None,
            "an event before the write": lambda: early.wait(side),
            "an event that was never recorded": lambda: emulator.Event().wait(side),
            "the wrong way round": lambda: main.wait_stream(side),
            "the side stream": lambda: side.wait_stream(main),
            "the side stream for an event": lambda: late.wait(side),
            "the host for an event": late.synchronize,
            "the host for the stream": main.synchronize,
            "the host for everything": emulator.synchronize,
        }
        waits[between]()
        with emulator.stream(side):
            x * 2
    return log


@pytest.mark.parametrize(
    "between",
    ["nobody", "an event before the write", "an event that was never recorded",
     "the wrong way round"],
)  # fmt: skip
def test_a_read_that_nothing_orders_after_the_write_is_a_race(between: str) -> None:
    assert write_then_read(between).races() == ["stream 1: mul reads what stream 0: fill_ writes"]


@pytest.mark.parametrize(
    "between",
    ["the side stream", "the side stream for an event",
     "the host for an event", "the host for the stream", "the host for everything"],
)  # fmt: skip
def test_a_read_after_a_wait_is_none(between: str) -> None:
    assert write_then_read(between).races() == []


def test_the_host_knows_what_it_has_waited_for_and_nothing_else() -> None:
    x, side, main = torch.zeros(4), emulator.Stream(), emulator.current_stream()
    with logged() as log:
        with emulator.stream(side):
            x.fill_(1)
        assert not log.waited_for(side)
        main.wait_stream(side)
        assert not log.waited_for(side), "a stream waited, and not the host"
        main.synchronize()
        assert log.waited_for(side), "main had waited for it"
        x.fill_(2)
        assert not log.waited_for(main)
        emulator.synchronize()
        assert log.waited_for(main)


def test_who_writes_over_what_another_still_reads_is_told() -> None:
    x, side = torch.ones(4), emulator.Stream()
    with logged() as log:
        x + 1
        with emulator.stream(side):
            x.fill_(3)
    assert log.races() == ["stream 1: fill_ writes over what stream 0: add reads"]


def test_a_capture_is_no_work_and_a_replay_is_work_of_the_stream_it_is_given_to() -> None:
    x, side, graph = torch.ones(4), emulator.Stream(), emulator.CUDAGraph()
    with logged() as log:
        with emulator.graph(graph):
            y = (x * 2).sin()
        assert log.works == []
        x.fill_(3)
        with emulator.stream(side):
            graph.replay()
    # a replay copies each result to where the graph keeps it
    assert [work.op for work in log.works] == ["fill_", "mul", "copy_", "sin", "copy_"]
    assert log.races() == ["stream 1: mul reads what stream 0: fill_ writes"]
    assert log.works[-1].writes_to(y)
    assert not log.works[-1].reads_from(x)
