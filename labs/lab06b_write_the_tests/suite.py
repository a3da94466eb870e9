"""A suite of tests for graph runners: yours to write.

In: a module with runners: the engine's own, another that is right, or one with a fault. Out:
nothing where the claim of a test holds, an error where it does not.

Every function here is one test. Its docstring is the claim; what is not claimed must not be tested,
or a runner that is right will fail. `Service` is the one of lab 6, in
`labs/lab06_debug_the_graph/service.py`: users own slots 1 to 23 of a cache, and slot 0 is nobody's.

    service = Service(graphs, SIZES)            captured; capture=False: not yet
    service.step({3: 5.0})                      the user of slot 3 says 5: the answers, by slot
    service.expected({3: 5.0})                  the same computed on the host; once for each step
    service.eager_step({3: 5.0})                the same step without a graph
    service.runner, service.device              .capture(), .run(); .read(), .upload(), .counters …
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from labs.lab06_debug_the_graph.service import OPS, SLOTS, Service
from mini_engine.sim.capture import CaptureError

SIZES = (1, 2, 4, 8)
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8)  # of so many users, all that fit
TOO_LARGE = (9, 10, 17, SLOTS - 1)


def users(number: int, first: int = 1, says: float = 1.0) -> dict[int, float]:
    """So many users from slot `first` on, each of whom says something else."""
    return {slot: says + slot for slot in range(first, first + number)}


def every_batch_is_answered_as_the_host_computes_it(graphs: ModuleType) -> None:
    """Batches of 1 to 8 users, in any order and again and again: each user gets its own answer.

    Any users may make up a batch, and their slots stand in it in any order.
    """
    service = Service(graphs, SIZES)
    for number in BATCHES:
        for first in SIZES:  # the same number of other users
            said = dict(reversed(users(number, first).items()))
            assert service.step(said) == service.expected(said), f"{number} users: {said}"


def silent_users_are_left_alone(graphs: ModuleType) -> None:
    """Whoever says nothing in a step finds its slot as it was, whatever size the step ran at.

    Nothing is claimed about slot 0.
    """
    for number in set(BATCHES) - set(SIZES):  # those that are padded
        most = max(BATCHES)
        for rush_hour in (users(most), users(most, first=SLOTS - most)):  # slots 1 to 8, 16 to 23
            service = Service(graphs, SIZES)
            for said in (rush_hour, users(number, first=9), rush_hour):
                assert service.step(said) == service.expected(said), f"{number} users: {said}"


def capturing_counts_nobodys_words(graphs: ModuleType) -> None:
    """A capture may come at any time, also while people talk, also again: no slot changes by it.

    Nothing is claimed about slot 0, nor about what the static inputs hold afterwards.
    """
    service, said = Service(graphs, SIZES, capture=False), users(3)
    assert service.eager_step(said) == service.expected(said)
    for _ in range(2):
        service.runner.capture()
        assert service.step(said) == service.expected(said), "the words before the capture count"


def a_batch_is_one_replay_at_the_smallest_size(graphs: ModuleType) -> None:
    """Each step replays one graph, of the smallest of SIZES that holds the batch.

    No kernel is launched beside it. The device's `counters` have `graphs`, `kernels` (those of a
    graph included), and `bytes`, which kernels move: a batch of 3 moves what one of 4 does.
    Nothing is claimed about how many copies bring the inputs in.
    """
    service, moved = Service(graphs, SIZES), {}
    for number in (*BATCHES, *reversed(BATCHES)):
        before = service.device.counters.copy()
        service.step(users(number))
        done = service.device.counters.since(before)
        assert (done.graphs, done.kernels) == (1, len(OPS)), f"{number} users: {done}"
        size = min(size for size in SIZES if size >= number)
        assert moved.setdefault(size, done.bytes) == done.bytes, f"{number} users: {moved}"
    assert len(set(moved.values())) == len(SIZES), moved


def too_large_a_batch_is_refused(graphs: ModuleType) -> None:
    """More users than the largest size: a `CaptureError` that names their number."""
    for number in TOO_LARGE:
        service = Service(graphs, SIZES)
        with pytest.raises(CaptureError, match=str(number)):
            service.step(users(number))


def memory_of_others_is_not_touched(graphs: ModuleType) -> None:
    """What is uploaded after the capture stays as it is, however many steps follow.

    And no step takes device memory that it does not give back (`device.memory.allocated_bytes()`).
    """
    for size in SIZES:
        service = Service(graphs, (size,))
        weights = np.ones((size, 4), np.float32)
        adapters = [service.device.upload(weights) for _ in SIZES]
        allocated = service.device.memory.allocated_bytes()
        for number in (1, size, size):
            service.step(users(number))
        assert all(np.array_equal(service.device.read(a), weights) for a in adapters)
        assert service.device.memory.allocated_bytes() == allocated


def live_ops_run_live_and_all_of_them(graphs: ModuleType) -> None:
    """In pieces, the live ops are launched at every step, all others are nodes of graphs.

    `Service(graphs, SIZES, live=…)` names the live ones: one or several, side by side or not. All
    run in the order of OPS, and answers are right. Events of `device.timeline` have a `lane` (CPU,
    GPU), a `name` and a `category`: kernel (launched), node (of a graph), copy.
    """
    beside, apart = ("forget", "remember", "recall"), ("forget", "recall")
    for live in (("recall",), ("remember", "recall"), beside, apart):
        service = Service(graphs, SIZES, live=live)
        for number in BATCHES:
            since, said = len(service.device.timeline), users(number)
            assert service.step(said) == service.expected(said), f"{live} live"
            ran = [(e.name, e.category) for e in service.device.timeline[since:] if e.lane == "GPU"]
            wanted = [(op, "kernel" if op in live else "node") for op in OPS]
            assert [event for event in ran if event[1] != "copy"] == wanted
