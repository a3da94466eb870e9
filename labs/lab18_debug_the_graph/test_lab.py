"""Lab 18: six runners, each with a fault that a real engine had. The incidents, played again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from labs.lab18_debug_the_graph import runner_a, runner_b, runner_c, runner_d, runner_e, runner_f
from labs.lab18_debug_the_graph.service import OPS, SLOTS, Service, text_engine
from mini_engine.engine.scheduler import Request
from mini_engine.sim import graphs as engines_own
from mini_engine.sim.capture import CaptureError

RUNNERS = [runner_a, runner_b, runner_c, runner_d, runner_e, runner_f]
ROOMY = (1, 2, 4, 8, 12, 16, 20)
Said = dict[int, float]


def speaks(service: Service, said: Said, kind: object = "float32") -> None:
    """One step, held to what the host computes."""
    answered, expected = service.step(said, kind), service.expected(said)
    sent = "" if kind == "float32" else f", sent as {kind}"
    assert answered == expected, f"users (by slot) said {said}{sent}: left answered, right expected"


def everybody(slots: range) -> Said:
    return {slot: float(slot) for slot in slots}


# ---------------------------------------------------------------- runner_a


@pytest.mark.catches("no-error-no-fault")
def test_runner_a_hears_a_client_that_sends_int64_and_everybody_after_it() -> None:
    service = Service(runner_a)
    speaks(service, {1: 3, 2: 4})
    speaks(service, {1: 5, 3: 6}, "int64")
    speaks(service, {1: 7, 2: 8})


@pytest.mark.catches("mended-for-one-type")
def test_runner_a_hears_every_client_in_whatever_type_it_sends_and_needs_no_memory_for_it() -> None:
    for kind in ("float64", "int32", "int8", "bool", "float16", list):
        service = Service(runner_a)
        speaks(service, {1: 3, 2: 4})
        memory = service.device.memory.allocated_bytes()
        for number in (1, 0, 1):
            speaks(service, {1: number, 3: 1}, kind)
            speaks(service, {1: 7, 2: number})
        assert service.device.memory.allocated_bytes() == memory, f"device memory leaks, as {kind}"


# ---------------------------------------------------------------- runner_b


@pytest.mark.catches("no-error-no-fault")
def test_runner_b_keeps_what_one_user_said_from_the_next_owner_of_the_slot() -> None:
    service = Service(runner_b)
    speaks(service, everybody(range(1, 9)))  # the rush hour
    speaks(service, everybody(range(9, 12)))  # three others, while the eight are silent
    speaks(service, everybody(range(1, 9)))


@pytest.mark.catches("cleared-when-the-rung-changes")
def test_runner_b_does_so_when_the_smaller_batch_runs_at_the_same_rung() -> None:
    for rung in (4, 8):
        for fewer in range(rung // 2 + 1, rung):
            service = Service(runner_b)
            speaks(service, everybody(range(1, rung + 1)))
            speaks(service, everybody(range(rung + 1, rung + 1 + fewer)))
            speaks(service, everybody(range(1, rung + 1)))


# ---------------------------------------------------------------- runner_c


@pytest.mark.catches("no-error-no-fault")
def test_runner_c_answers_the_seventeenth_user() -> None:
    service = Service(runner_c, ROOMY)
    for users in range(15, 21):
        speaks(service, everybody(range(1, users + 1)))


@pytest.mark.catches("eager-hides-it")
def test_runner_c_replays_one_graph_for_each_batch_up_to_the_largest_size() -> None:
    service = Service(runner_c, ROOMY)
    for users in range(1, 21):
        before = service.device.counters.copy()
        speaks(service, everybody(range(1, users + 1)))
        done = service.device.counters.since(before)
        assert done.graphs == 1, f"{users} users: {done.launches} launches, {done.graphs} a graph"


@pytest.mark.catches("mended-at-the-top")
def test_runner_c_captures_every_size_that_it_was_given() -> None:
    for sizes in (ROOMY, (3, 9, 10, 15), (1, 11, 19, 20)):
        service = Service(runner_c, sizes, capture=False)
        captured = sorted(rung.rung for rung in service.runner.capture().rungs)
        assert captured == list(sizes), "a batch at a missing size is padded further, or is refused"


@pytest.mark.catches("no-error-no-fault")
def test_runner_c_refuses_what_is_above_its_top_and_says_what_it_has() -> None:
    service = Service(runner_c, (1, 4, 9))
    with pytest.raises(CaptureError, match=r"10.*9"):
        service.step(everybody(range(1, 11)))


# ---------------------------------------------------------------- runner_d


def captured_while_people_talk(graphs: ModuleType, live: tuple[str, ...]) -> Service:
    service = Service(graphs, capture=False, live=live)
    for said in ({1: 4, 2: 8, 3: 2}, {1: 6, 3: 10}):
        assert service.eager_step(said) == service.expected(said)
    service.runner.capture()
    return service


@pytest.mark.catches("no-error-no-fault")
def test_runner_d_counts_nobodys_words_again_when_it_captures_in_a_quiet_minute() -> None:
    for live in ((), ("recall",)):
        service = captured_while_people_talk(runner_d, live)
        speaks(service, {1: 1, 2: 1, 3: 1})


@pytest.mark.catches("cleared-once")
def test_runner_d_may_capture_again_whenever_it_wants() -> None:
    service = captured_while_people_talk(runner_d, ())
    for number in (2, 3):
        speaks(service, {1: number, 2: number, 3: number})
        service.runner.capture()
    speaks(service, {1: 1, 2: 1, 3: 1})


@pytest.mark.catches("no-warm-up")
def test_runner_d_captures_kernels_that_wait_for_the_gpu_when_they_first_run() -> None:
    service = Service(runner_d, settling=True, capture=False)
    try:
        service.runner.capture()
    except CaptureError as error:
        pytest.fail(f"a kernel that settles in its first run was met inside a capture: {error}")
    speaks(service, {1: 4, 2: 5, 3: 6})


# ---------------------------------------------------------------- runner_e


@pytest.mark.catches("no-error-no-fault")
def test_runner_e_remembers_what_was_said_where_writing_is_an_op_of_its_own() -> None:
    service = Service(runner_e, live=("remember", "recall"))
    speaks(service, {1: 4, 2: 5, 3: 6})
    speaks(service, {1: 1})


@pytest.mark.catches("two-are-not-three")
def test_runner_e_runs_every_op_that_must_stay_out_of_the_graphs() -> None:
    for live in (("forget", "remember"), ("forget", "remember", "recall"), ("scale", *OPS[1:4])):
        service = Service(runner_e, live=live)
        for number in range(1, 5):
            speaks(service, {1: number, 2: 2 * number, 3: 9})


@pytest.mark.catches("captured-after-all")
def test_runner_e_runs_them_live_and_all_others_in_graphs() -> None:
    for live in (("recall",), ("remember", "recall"), ("forget", "remember", "recall")):
        service = Service(runner_e, live=live)
        since = len(service.device.timeline)
        speaks(service, {1: 4, 2: 5, 3: 6})
        ran = [event for event in service.device.timeline[since:] if event.lane == "GPU"]
        order = [(event.name, event.category) for event in ran if event.category != "copy"]
        wanted = [(op, "kernel" if op in live else "node") for op in OPS]
        assert order == wanted, "kernel: launched live; node: of a graph"


# ---------------------------------------------------------------- runner_f


def an_adapter_survives(graphs: ModuleType, live: tuple[str, ...]) -> None:
    for sizes in ((8,), (1, 2, 4, 8)):
        service = Service(graphs, sizes, live=live)
        weights = np.arange(32, dtype=np.float32).reshape(8, 4)
        adapters = [service.device.upload(weights + n) for n in range(6)]
        for users in range(1, 9):
            said = everybody(range(1, users + 1))
            speaks(service, said) if users <= max(sizes) else None
            for n, adapter in enumerate(adapters):
                intact = (service.device.read(adapter) == weights + n).all()
                assert intact, f"adapter {n} after a batch of {users}, sizes {sizes}"


@pytest.mark.catches("no-error-no-fault")
def test_runner_f_leaves_an_adapter_alone_that_was_loaded_after_the_capture() -> None:
    an_adapter_survives(runner_f, ())


@pytest.mark.catches("mended-where-it-hurt")
def test_runner_f_leaves_it_alone_in_pieces_too() -> None:
    an_adapter_survives(runner_f, ("recall",))
    an_adapter_survives(runner_f, ("forget", "remember"))


# ---------------------------------------------------------------- all of them

each_runner = pytest.mark.parametrize(
    "graphs",
    [
        pytest.param(runner, id=runner.__name__.rpartition(".")[2], marks=pytest.mark.catches(id))
        for runner, id in zip(
            RUNNERS,
            [
                "mended-for-one-type",
                "cleared-when-the-rung-changes",
                "mended-at-the-top",
                "cleared-once",
                "two-are-not-three",
                "mended-where-it-hurt",
            ],
            strict=True,
        )
    ],
)


def a_long_day(seed: int) -> Iterator[Said]:
    """Users come, speak, fall silent, leave their slot to others."""
    rng = random.Random(seed)
    for _ in range(60):
        users = rng.sample(range(1, SLOTS), rng.choice([1, 2, 3, 5, 9, 16, 17, 20]))
        yield {slot: float(rng.randint(-9, 9)) for slot in users}


@each_runner
@pytest.mark.parametrize("live", [(), ("remember", "recall")], ids=["full", "pieces"])
def test_through_a_long_day_everybody_is_answered_as_without_graphs(
    graphs: ModuleType, live: tuple[str, ...]
) -> None:
    service = Service(graphs, ROOMY, live=live)
    for said in a_long_day(seed=5):
        speaks(service, said)


REQUESTS = [
    Request("early", (5, 9, 2, 30), 3),
    *[Request(str(i), (5 + i, 9, 2 + i, 30, 31, 7), 8) for i in range(3)],
    Request("late", (11, 12, 13, 14), 6, arrival_us=1500),
]


def texts(graphs: ModuleType, mode: str) -> dict[str, tuple[int, ...]]:
    return {c.request_id: c.tokens for c in text_engine(graphs, mode).run(REQUESTS)}


@each_runner
def test_an_engine_with_it_writes_for_everybody_what_it_writes_eagerly(graphs: ModuleType) -> None:
    eager = texts(engines_own, "NONE")
    for mode in ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE"):
        assert texts(graphs, mode) == eager, mode
