"""Times that can be believed: laps on the device's clock and on the wall, in balanced order.

On a GPU, the time between two CUDA events is what the device took; the wall clock around them is
what a caller waits. The order AB BA cancels a drift (clocks, heat) that is even over a round; a
null variant, the anchor against itself, shows what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mini_engine.bench.decode_setup import Variant
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import no_garbage_collection


@dataclass(frozen=True)
class Lap:
    """The time of one lap, divided by its decode steps."""

    event_us: float
    wall_us: float


def lap(backend: GraphBackend, runnable: Variant, steps: int) -> Lap:
    """At least `steps` dependent decode steps, from an idle device until it is idle again.

    Rewinds to the start, which may queue work, then waits for the device; only then do clocks
    start. `step` queues the next `steps_a_call` steps. Whole calls only; both times are divided by
    the steps really done.

    `event_us`: the device's time between two events, `backend.Event(enable_timing=True)`; they are
    `record()`ed around the calls, and `first.elapsed_time(last)` is in ms, once
    `last.synchronize()` has waited. `wall_us`: by `time.perf_counter()` (s), from before the first
    event until that wait is over.
    """
    calls = -(-steps // runnable.steps_a_call)
    runnable.rewind()
    backend.synchronize()
    first, last = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    began = time.perf_counter()
    first.record()
    for _ in range(calls):
        runnable.step()
    last.record()
    last.synchronize()
    wall_us = (time.perf_counter() - began) * 1e6
    done = calls * runnable.steps_a_call
    return Lap(first.elapsed_time(last) * 1e3 / done, wall_us / done)


def paired_laps(
    backend: GraphBackend, one: Variant, other: Variant, *, steps: int, rounds: int
) -> tuple[list[Lap], list[Lap]]:
    """`rounds` laps of each, in balanced order, after one lap of each that does not count."""
    laps: dict[str, list[Lap]] = {"one": [], "other": []}
    with no_garbage_collection():
        for name in ["one", "other", *balanced_order("one", "other", rounds)]:
            laps[name].append(lap(backend, one if name == "one" else other, steps))
    return laps["one"][1:], laps["other"][1:]


def balanced_order(one: str, other: str, rounds: int) -> list[str]:
    """one other, other one, one other ...: `rounds` of each, and each comes first equally often, so
    an even drift weighs on both the same. Raises ValueError for an odd number of rounds, or none.
    """
    if rounds < 2 or rounds % 2:
        raise ValueError(f"{rounds} rounds: give an even number, 2 or more, to balance the order")
    return [name for i in range(rounds) for name in ((one, other), (other, one))[i % 2]]


def spin(backend: GraphBackend, work: Callable[[], object], seconds: float = 0.5) -> None:
    """Repeat `work` until the clocks of the GPU are up: an idle GPU lowers them."""
    if backend.emulated:
        return
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        work()
        backend.synchronize()


def device_us(
    backend: GraphBackend, work: Callable[[], object], calls: int, repeats: int
) -> list[float]:
    """µs of the device's time per call of `work`: `calls` in a row, `repeats` times, warmed up."""
    runnable: Any = SimpleNamespace(steps_a_call=1, rewind=lambda: None, step=work)
    return [lap(backend, runnable, calls).event_us for _ in range(repeats + 1)][1:]


def host_us(
    backend: GraphBackend, work: Callable[[], object], calls: int, repeats: int
) -> list[float]:
    """µs of the CPU's time to issue a call, on an idle device and without waiting for the end.
    `calls` must stay below the launches that the driver queues."""
    times = []
    with no_garbage_collection():
        for _ in range(repeats + 1):
            backend.synchronize()
            began = time.perf_counter()
            for _ in range(calls):
                work()
            times.append((time.perf_counter() - began) * 1e6 / calls)
    backend.synchronize()
    return times[1:]
