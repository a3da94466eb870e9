"""Lab 6: six runners, each with a fault that a real engine had. The incidents, played again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from labs.lab06_debug_the_graph import runner_a, runner_b, runner_c, runner_d, runner_e, runner_f
from labs.lab06_debug_the_graph.incident import BELIEFS, INCIDENTS, loaded
from labs.lab06_debug_the_graph.service import OPS, SLOTS, WIDTH, Service
from labs.runner.cut.catalogue import lab_number
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.step.cards import load_spec

RUNNERS = {"a": runner_a, "b": runner_b, "c": runner_c, "d": runner_d, "e": runner_e, "f": runner_f}
IN_PIECES = ("e", "f")
SIZES, ROOMY = (1, 2, 4, 8), (1, 2, 4, 8, 12, 16, 20)
BLOCK_BYTES = 512  # the allocator rounds up to it
UNWRITTEN = ("the id of a belief", 0)
Said = dict[int, float]

# The beliefs, and the lines that are right, each as `sealed` makes it.
KEY: dict[str, set[str]] = {
    "a": {"8810664473ae", "d377ce17ef4d", "92709dc4416b"},
    "b": {"932d6d61d380", "df1a1ecbbf8f", "9ed420b105b2", "2510959abef4"},
    "c": {
        "c14efe65ac72",
        "e2e967ca9b74",
        "b941aa168e28",
        "1910626f6322",
        "52caa3f6f6d3",
        "5a121417fd4f",
        "a1b93083b8bf",
        "4c93bb9da098",
        "3e3e1f6dedb4",
    },
    "d": {"11cff1bd1658", "8d06c7419dcb", "59f4dbf2b974", "81fc6b7bd791"},
    "e": {"2290bc035138", "878562c4a6f1"},
    "f": {"f32f9f10326c", "2d1baf0dfd58", "ad83d1d8aeb7", "bb6296b2faab"},
}


def sealed(letter: str, word: object) -> str:
    """A word of a diagnosis in a form that cannot be read."""
    return sha256(f"debug the graph, runner {letter}: {word}".encode()).hexdigest()[:12]


@cache
def given(letter: str) -> str:
    """The file of a runner as the learner got it."""
    return lab_number("6").to_mend()[f"runner_{letter}.py"]


@cache
def objection(letter: str) -> str:
    """What is to be said against a diagnosis; nothing if it is right.

    Belief and line are judged together: judged one by one, a dozen guesses find each.
    """
    belief, line = RUNNERS[letter].diagnosis()
    log = INCIDENTS[letter](loaded(given(letter), f"given_{letter}"))
    if belief not in BELIEFS:
        return f"“{belief}” is not one of the beliefs: copy the id, as it stands there"
    if not 1 <= line <= len(log):
        return f"the log has lines 1 to {len(log)}, and yours is {line}"
    words = {sealed(letter, belief), sealed(letter, f"line {line}")}
    if words <= KEY[letter]:
        return ""
    return (
        f"the diagnosis does not hold: the belief, the line or both.\n"
        f"Would the log be another if the author had not believed: {BELIEFS[belief]}\n"
        f"Would a right runner not have caused this line, but each before it?\n"
        f"{line}  {log[line - 1]}"
    )


def waits(letter: str) -> NotImplementedError:
    """What a test raises that comes later: the hole of this runner is still open."""
    command = f".venv/bin/python -m labs.lab06_debug_the_graph.incident {letter}"
    return NotImplementedError(
        f"TODO({[*RUNNERS].index(letter) + 1}): first the diagnosis: {command}"
    )


def served(letter: str, sizes: Sequence[int] = SIZES, **more: object) -> Service:
    """The service over one of the runners, once it has been diagnosed."""
    if objection(letter):
        raise waits(letter)
    return Service(RUNNERS[letter], sizes, **more)  # type: ignore[arg-type]


def speaks(service: Service, said: Said, kind: object = "float32", slots: object = "int32") -> None:
    """One step, held to what the host computes."""
    answered, expected = service.step(said, kind, slots), service.expected(said)
    assert answered == expected, f"users (by slot) said {said}: left answered, right expected"


def arrays_of(said: Said, kind: object = "float32") -> dict[str, object]:
    """A batch as a client sends it, numbers and slots in this type."""
    numbers, slots = [[number] * WIDTH for number in said.values()], list(said)
    if kind is list:
        return {"x": numbers, "slots": slots}
    return {"x": np.array(numbers, str(kind)), "slots": np.array(slots, str(kind))}


def everybody(slots: range) -> Said:
    return {slot: float(slot) for slot in slots}


def kept(letter: str) -> float:
    """The share of the lines that were given which still stand in the learner's file."""
    mine = {
        line.strip()
        for line in Path(str(RUNNERS[letter].__file__)).read_text(encoding="utf-8").splitlines()
    }
    lines = [line.strip() for line in given(letter).splitlines() if line.strip()]
    return sum(line in mine for line in lines) / len(lines)


def diagnosed(letter: str) -> None:
    if RUNNERS[letter].diagnosis() == UNWRITTEN:
        raise waits(letter)
    if objection(letter):
        pytest.fail(objection(letter))


def mended(letter: str) -> None:
    share = kept(letter)
    assert share >= 0.6, "mend this runner: another in its place keeps its habits from nobody"


# ---------------------------------------------------------------- runner_a


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_a_is_diagnosed() -> None:
    diagnosed("a")


@pytest.mark.catches("no-error-no-fault")
def test_runner_a_hears_a_client_that_sends_int64_and_everybody_after_it() -> None:
    service = served("a")
    speaks(service, {1: 3, 2: 4})
    speaks(service, {1: 5, 3: 6}, "int64")
    speaks(service, {1: 7, 2: 8})


@pytest.mark.catches("mended-for-one-type")
@pytest.mark.parametrize("kind", ["float64", "int32", "int8", "bool", "float16", list])
def test_runner_a_hears_every_client_in_whatever_type_it_sends(kind: object) -> None:
    service = served("a")
    speaks(service, {1: 3, 2: 4})
    for number in (1, 0, 1):
        speaks(service, {1: number, 3: 1}, kind)
        speaks(service, {1: 7.5, 2: number})


@pytest.mark.catches("mended-for-one-input")
def test_runner_a_takes_slots_of_any_type_too() -> None:
    service = served("a")
    for slots in ("int64", "uint8", list, "int32"):
        speaks(service, {1: 3, 2: 4, 5: 1}, "float32", slots)
        speaks(service, {2: 3, 4: 4}, "int64", slots)


@pytest.mark.catches("converted-at-one-door")
@pytest.mark.parametrize("kind", ["int64", "float64", "int8", list])
def test_runner_a_stages_any_type_where_the_graph_reads_also_for_a_step_without_it(
    kind: object,
) -> None:
    service = served("a")
    speaks(service, {1: 3, 2: 4})
    before = [buffer.address for buffer in service.inputs.view(8).values()]
    service.inputs.stage(2, arrays_of({3: 5, 1: 7}, kind))
    after = [buffer.address for buffer in service.inputs.view(8).values()]
    assert after == before, "addresses of the inputs, before and after a batch was staged"
    speaks(service, {1: 1, 3: 2})


@pytest.mark.catches("recaptured-for-every-stranger")
def test_runner_a_needs_no_memory_and_no_capture_to_convert() -> None:
    service = served("a")
    speaks(service, {1: 3, 2: 4})
    allocated, since = service.device.memory.allocated_bytes(), len(service.device.timeline)
    for number in (1, 0, 1):
        speaks(service, {1: number, 3: 1}, "int64")
    allocated_later = service.device.memory.allocated_bytes()
    assert allocated_later == allocated
    captured = [e.name for e in service.device.timeline[since:] if e.name.startswith("capture ")]
    assert captured == []


@pytest.mark.catches("no-error-no-fault")
def test_runner_a_is_not_replaced_by_another() -> None:
    mended("a")


# ---------------------------------------------------------------- runner_b


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_b_is_diagnosed() -> None:
    diagnosed("b")


@pytest.mark.catches("no-error-no-fault")
def test_runner_b_keeps_what_one_user_said_from_the_next_owner_of_the_slot() -> None:
    service = served("b")
    speaks(service, everybody(range(1, 9)))  # the rush hour
    speaks(service, everybody(range(9, 12)))  # three others, while the eight are silent
    speaks(service, everybody(range(1, 9)))


@pytest.mark.catches("cleared-when-the-rung-changes")
@pytest.mark.parametrize("rung", [4, 8])
def test_runner_b_does_so_when_the_smaller_batch_runs_at_the_same_rung(rung: int) -> None:
    for fewer in range(rung // 2 + 1, rung):
        service = served("b")
        speaks(service, everybody(range(1, rung + 1)))
        speaks(service, everybody(range(rung + 1, rung + 1 + fewer)))
        speaks(service, everybody(range(1, rung + 1)))


@pytest.mark.catches("cleared-on-the-way-out")
def test_runner_b_does_so_after_a_step_without_a_graph() -> None:
    service = served("b")
    said = everybody(range(1, 9))
    assert service.eager_step(said) == service.expected(said)
    speaks(service, everybody(range(9, 12)))
    speaks(service, said)


@pytest.mark.catches("no-error-no-fault")
def test_runner_b_is_not_replaced_by_another() -> None:
    mended("b")


# ---------------------------------------------------------------- runner_c


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_c_is_diagnosed() -> None:
    diagnosed("c")


@pytest.mark.catches("no-error-no-fault")
def test_runner_c_answers_the_seventeenth_user() -> None:
    service = served("c", ROOMY)
    for users in range(15, 21):
        speaks(service, everybody(range(1, users + 1)))


@pytest.mark.catches("eager-hides-it")
def test_runner_c_replays_one_graph_for_each_batch_up_to_the_largest_size() -> None:
    service = served("c", ROOMY)
    for users in range(1, 21):
        before = service.device.counters.copy()
        speaks(service, everybody(range(1, users + 1)))
        graphs = service.device.counters.since(before).graphs
        assert (users, graphs) == (users, 1)


@pytest.mark.catches("mended-at-the-top")
@pytest.mark.parametrize("sizes", [(3, 9, 10, 15), (1, 11, 19, 20), (17, 23)])
def test_runner_c_runs_a_batch_that_fills_a_size_at_this_size(sizes: tuple[int, ...]) -> None:
    service = served("c", sizes)
    for size in sizes:
        ran_at = size_of_next_step(service, size)
        assert ran_at == size, "a batch at a missing size is padded further, or is refused"


@pytest.mark.catches("no-error-no-fault")
def test_runner_c_refuses_what_is_above_its_top() -> None:
    service = served("c", (1, 4, 9))
    with pytest.raises(CaptureError) as refused:
        service.step(everybody(range(1, 11)))
    assert "10" in str(refused.value), "name the number of rows"
    assert "9" in str(refused.value), "name the largest size"


@pytest.mark.catches("no-error-no-fault")
def test_runner_c_is_not_replaced_by_another() -> None:
    mended("c")


def size_of_next_step(service: Service, users: int) -> int:
    """The rows that a batch of so many users runs at, by the bytes that its kernels move."""
    before = service.device.counters.copy()
    speaks(service, everybody(range(1, users + 1)))
    done = service.device.counters.since(before).bytes
    return next((rows for rows in range(1, SLOTS + 1) if eager_bytes(rows) == done), 0)


@cache
def eager_bytes(rows: int) -> float:
    """What the kernels of a step of so many rows move, counted without any runner."""
    device = Device(load_spec("h200"), memory_bytes=2**26)
    service = Service.__new__(Service)
    service.device, service.settled = device, None
    service.cache = device.upload(np.zeros((SLOTS, WIDTH), np.float32))
    x = device.upload(np.zeros((rows, WIDTH), np.float32))
    slots = device.upload(np.zeros(rows, np.int32))
    service.inputs = Fixed({"x": x, "slots": slots})
    before = device.counters.copy()
    service.forward(rows)
    return device.counters.since(before).bytes


class Fixed:
    """Inputs that hold one batch."""

    def __init__(self, buffers: dict[str, object]) -> None:
        self.buffers = buffers

    def view(self, _rows: int) -> dict[str, object]:
        return self.buffers


# ---------------------------------------------------------------- runner_d


def captured_while_people_talk(letter: str, **more: object) -> Service:
    service = served(letter, capture=False, **more)
    for said in ({1: 4, 2: 8, 3: 2}, {1: 6, 3: 10}):
        assert service.eager_step(said) == service.expected(said)
    service.runner.capture()
    return service


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_d_is_diagnosed() -> None:
    diagnosed("d")


@pytest.mark.catches("no-error-no-fault")
def test_runner_d_counts_nobodys_words_again_when_it_captures_in_a_quiet_minute() -> None:
    speaks(captured_while_people_talk("d"), {1: 1, 2: 1, 3: 1})


@pytest.mark.catches("cleared-once")
def test_runner_d_may_capture_again_whenever_it_wants() -> None:
    service = captured_while_people_talk("d")
    for number in (2, 3):
        speaks(service, {1: number, 2: number, 3: number})
        service.runner.capture()
    speaks(service, {1: 1, 2: 1, 3: 1})


@pytest.mark.catches("no-warm-up")
def test_runner_d_captures_kernels_that_wait_for_the_gpu_when_they_first_run() -> None:
    service = served("d", settling=True, capture=False)
    try:
        service.runner.capture()
    except CaptureError as error:
        pytest.fail(f"a kernel that settles in its first run was met inside a capture: {error}")
    speaks(service, {1: 4, 2: 5, 3: 6})


@pytest.mark.catches("no-warm-up", "settled-is-settled")
def test_runner_d_rehearses_each_kernel_twice_before_its_film() -> None:
    service = served("d", (2, 4), capture=False)
    for time in ("first", "second"):
        before = service.device.counters.copy()
        service.runner.capture()
        kernels = service.device.counters.since(before).kernels
        assert kernels == 2 * 2 * len(OPS), (
            f"{time} capture: two sizes, two rehearsals of each kernel"
        )


@pytest.mark.catches("no-error-no-fault")
def test_runner_d_is_not_replaced_by_another() -> None:
    mended("d")


@pytest.mark.catches("rehearsed-in-the-street")
def test_runner_d_rehearses_in_the_memory_of_its_plays() -> None:
    service = noting("d")
    assert service.warmed_in == {service.captured_in}, "pools of the rehearsals; that of the films"


# ---------------------------------------------------------------- runner_e


def order_of(service: Service, since: int) -> list[tuple[str, str]]:
    """What ran on the GPU since: names, and `kernel` (launched live) or `node` (of a graph)."""
    ran = [event for event in service.device.timeline[since:] if event.lane == "GPU"]
    return [(event.name, event.category) for event in ran if event.category != "copy"]


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_e_is_diagnosed() -> None:
    diagnosed("e")


@pytest.mark.catches("no-error-no-fault")
def test_runner_e_remembers_what_was_said_where_writing_is_an_op_of_its_own() -> None:
    service = served("e", live=("remember", "recall"))
    speaks(service, {1: 4, 2: 5, 3: 6})
    speaks(service, {1: 1})


@pytest.mark.catches("two-are-not-three", "run-in-the-order-of-names")
@pytest.mark.parametrize(
    "live",
    [("forget", "remember"), ("forget", "remember", "recall"), ("scale", *OPS[1:4]), ("scale",)],
)
def test_runner_e_runs_every_op_that_must_stay_out_of_the_graphs(live: tuple[str, ...]) -> None:
    service = served("e", live=live)
    for number in range(1, 5):
        speaks(service, {1: number, 2: 2 * number, 3: 9})


@pytest.mark.catches("captured-after-all")
@pytest.mark.parametrize(
    "live", [("recall",), ("remember", "recall"), ("forget", "remember", "recall"), ("scale",)]
)
def test_runner_e_runs_them_live_and_all_others_in_graphs(live: tuple[str, ...]) -> None:
    service = served("e", live=live)
    since = len(service.device.timeline)
    speaks(service, {1: 4, 2: 5, 3: 6})
    wanted = [(op, "kernel" if op in live else "node") for op in OPS]
    assert order_of(service, since) == wanted, "kernel: launched live; node: of a graph"


@pytest.mark.catches("no-error-no-fault")
def test_runner_e_is_not_replaced_by_another() -> None:
    mended("e")


# ---------------------------------------------------------------- runner_f


def an_adapter_survives(letter: str, **more: object) -> None:
    for sizes in ((8,), SIZES):
        service = served(letter, sizes, **more)
        weights = np.arange(32, dtype=np.float32).reshape(8, 4)
        adapters = [service.device.upload(weights + n) for n in range(6)]
        for users in range(1, 9):
            speaks(service, everybody(range(1, users + 1)))
            for n, adapter in enumerate(adapters):
                intact = (service.device.read(adapter) == weights + n).all()
                assert intact, f"adapter {n} after a batch of {users}, sizes {sizes}"


@pytest.mark.catches("it-is-where-it-hurts", "the-usual-suspect")
def test_runner_f_is_diagnosed() -> None:
    diagnosed("f")


@pytest.mark.catches("no-error-no-fault")
def test_runner_f_leaves_an_adapter_alone_that_was_loaded_after_the_capture() -> None:
    an_adapter_survives("f")


@pytest.mark.catches("mended-where-it-hurt")
@pytest.mark.parametrize("live", [("recall",), ("forget", "remember")])
def test_runner_f_leaves_it_alone_in_pieces_too(live: tuple[str, ...]) -> None:
    an_adapter_survives("f", live=live)


@pytest.mark.catches("no-error-no-fault")
def test_runner_f_is_not_replaced_by_another() -> None:
    mended("f")


# ---------------------------------------------------------------- what every runner promises

each_runner = pytest.mark.parametrize(
    ("letter", "live"),
    [(letter, ()) for letter in RUNNERS] + [(letter, ("remember", "recall")) for letter in "ef"],
)
Live = tuple[str, ...]


def in_pieces(live: Live) -> dict[str, object]:
    return {"live": live} if live else {}


class Noting(Service):
    """Writes down what a capture asks of `forward`, on which numbers and for which pools."""

    def __init__(self, *args: object, **more: object) -> None:
        self.order: list[int] = []
        self.warmed_in: set[int] = set()
        self.warmed_on: set[float] = set()
        self.captured_in: int = -1
        self.pools: set[int] = set()  # of all captures
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def forward(self, rows: int) -> Buffer:
        held = [buffer.array for buffer in self.inputs.view(rows).values()]
        answers = super().forward(rows)
        if self.device.recorder:
            self.order.append(rows)
            self.captured_in = answers.block.pool
            self.pools.add(self.captured_in)
        else:
            self.warmed_in.add(answers.block.pool)
            self.warmed_on |= {float(number) for array in held for number in array.flat}
        return answers


def noting(letter: str, sizes: Sequence[int] = SIZES, **more: object) -> Noting:
    """A service that writes down how it captures."""
    served(letter, sizes, **more)  # asks for the diagnosis
    return Noting(RUNNERS[letter], sizes, **more)


@pytest.mark.catches("mended-at-the-top")
@each_runner
def test_every_size_is_captured_once_the_largest_first(letter: str, live: Live) -> None:
    order = noting(letter, **in_pieces(live)).order
    assert order == sorted(SIZES, reverse=True)


@pytest.mark.catches("sizes-come-in-order")
@each_runner
def test_the_order_in_which_the_sizes_are_given_does_not_matter(letter: str, live: Live) -> None:
    for sizes in ((4, 1, 8, 2), (8, 4, 2, 1)):
        service = noting(letter, sizes, **in_pieces(live))
        order = service.order
        assert order == [8, 4, 2, 1], f"captured in turn, where sizes {sizes} were given"
        for users in (3, 8, 1):
            speaks(service, everybody(range(1, users + 1)))


@pytest.mark.catches("a-pool-for-each-capture")
@each_runner
def test_a_second_capture_makes_every_graph_anew_in_the_same_pool(letter: str, live: Live) -> None:
    service = noting(letter, **in_pieces(live))
    first = set(service.pools)
    service.order.clear()
    service.runner.capture()
    order, pools = service.order, service.pools
    assert order == sorted(SIZES, reverse=True), "captured by the second capture"
    assert pools == first, "pools of both captures, and that of the first"
    speaks(service, everybody(range(1, 6)))


@pytest.mark.catches("pools-not-shared")
@each_runner
def test_all_graphs_of_a_runner_share_one_pool(letter: str, live: Live) -> None:
    def taken(sizes: Sequence[int]) -> int:
        service = served(letter, sizes, capture=False, **in_pieces(live))
        before = service.device.memory.reserved_bytes()
        service.runner.capture()
        return service.device.memory.reserved_bytes() - before

    top, ladder = taken([20]), taken(ROOMY)
    assert ladder == top, "bytes reserved for seven sizes, and for the largest alone"


@pytest.mark.catches("no-error-no-fault")
@each_runner
def test_of_a_capture_only_the_answers_stay_in_memory(letter: str, live: Live) -> None:
    service = served(letter, capture=False, **in_pieces(live))
    before = service.device.memory.allocated_bytes()
    service.runner.capture()
    grown = service.device.memory.allocated_bytes() - before
    assert grown == len(SIZES) * BLOCK_BYTES, "an answer for each of the four sizes"


@pytest.mark.catches("no-warm-up")
@each_runner
def test_before_a_capture_each_kernel_has_run_and_the_gpu_has_been_waited_for(
    letter: str, live: Live
) -> None:
    service = served(letter, capture=False, settling=True, **in_pieces(live))
    since = len(service.device.timeline)
    service.runner.capture()
    assert service.settled == set(SIZES), "sizes whose kernels have run"
    running: set[str] = set()
    for event in service.device.timeline[since:]:
        if event.category == "kernel" and event.lane == "GPU":
            running.add(event.name)
        elif event.name == "synchronize":
            running.clear()
        elif event.name.startswith("capture "):
            assert not running, f"still running at “{event.name}”"


@pytest.mark.catches("cleared-once")
@each_runner
def test_what_runs_before_a_capture_runs_on_zeros(letter: str, live: Live) -> None:
    service = noting(letter, capture=False, **in_pieces(live))
    for _ in range(2):
        said = everybody(range(1, 9))
        assert service.eager_step(said) == service.expected(said)
        service.warmed_on.clear()
        service.runner.capture()
        assert service.warmed_on <= {0.0}, "what the inputs held when a step ran before a capture"


@pytest.mark.catches("cleared-once")
@each_runner
def test_a_capture_at_any_time_changes_nobodys_slot(letter: str, live: Live) -> None:
    service = captured_while_people_talk(letter, **in_pieces(live))
    speaks(service, {1: 2, 2: 2, 3: 2})
    service.runner.capture()
    speaks(service, {1: 1, 2: 1, 3: 1})


@pytest.mark.catches("mended-at-the-top")
@each_runner
def test_a_batch_is_one_replay_at_the_smallest_size_that_holds_it(letter: str, live: Live) -> None:
    service = served(letter, (1, 3, 8, 12), **in_pieces(live))
    for users in range(1, 13):
        before, since = service.device.counters.copy(), len(service.device.timeline)
        speaks(service, everybody(range(1, users + 1)))
        done = service.device.counters.since(before)
        size = min(size for size in (1, 3, 8, 12) if size >= users)
        assert (users, done.bytes) == (users, eager_bytes(size))
        wanted = [(op, "kernel" if op in live else "node") for op in OPS]
        assert order_of(service, since) == wanted
        assert live or done.graphs == 1


@pytest.mark.catches("cleared-when-the-rung-changes")
@each_runner
def test_rows_that_a_batch_does_not_fill_are_zeros(letter: str, live: Live) -> None:
    service = served(letter, **in_pieces(live))
    for users in (8, 5, 4, 3, 7):
        speaks(service, everybody(range(9, 9 + users)))
        size = min(size for size in SIZES if size >= users)
        for name, buffer in service.inputs.view(size).items():
            padding = service.device.read(buffer)[users:]
            assert not padding.any(), f"{name} of {users} users, its last rows of {size}: {padding}"


@pytest.mark.catches("cleared-at-one-door")
@each_runner
def test_staging_alone_brings_a_batch_in_and_fills_it_up_with_zeros(
    letter: str, live: Live
) -> None:
    service = served(letter, **in_pieces(live))
    for users, size in ((8, 8), (3, 8), (4, 4), (1, 4), (7, 8)):
        batch = arrays_of(everybody(range(9, 9 + users)))
        batch["slots"] = np.asarray(batch["slots"], np.int32)
        service.inputs.stage(size, batch)
        for name, buffer in service.inputs.view(size).items():
            held = service.device.read(buffer)
            own, padding = held[:users].tolist(), held[users:]
            assert own == np.asarray(batch[name]).tolist(), f"{name} of {users} users"
            assert not padding.any(), f"{name} of {users} users, its last rows of {size}: {padding}"


@pytest.mark.catches("no-error-no-fault")
@each_runner
def test_a_batch_above_the_largest_size_is_refused(letter: str, live: Live) -> None:
    service = served(letter, **in_pieces(live))
    for users in (9, 17):
        with pytest.raises(CaptureError) as refused:
            service.step(everybody(range(1, users + 1)))
        assert str(users) in str(refused.value), "name the number of rows"


@pytest.mark.catches("mended-where-it-hurt")
@each_runner
def test_what_others_have_uploaded_stays_as_it_is(letter: str, live: Live) -> None:
    an_adapter_survives(letter, **in_pieces(live))


@pytest.mark.catches("no-error-no-fault")
@each_runner
def test_steps_take_no_memory(letter: str, live: Live) -> None:
    service = served(letter, **in_pieces(live))
    before = service.device.memory.allocated_bytes()
    for users in (3, 8, 1):
        speaks(service, everybody(range(1, users + 1)))
    after = service.device.memory.allocated_bytes()
    assert after == before, "bytes allocated before and after three steps"


def a_long_day(seed: int) -> Iterator[Said]:
    """Users come, speak, fall silent, leave their slot to others."""
    rng = random.Random(seed)
    for _ in range(60):
        users = rng.sample(range(1, SLOTS), rng.choice([1, 2, 3, 5, 9, 16, 17, 20]))
        yield {slot: rng.randint(-9, 9) / 2 for slot in users}


@pytest.mark.catches("cleared-when-the-rung-changes")
@each_runner
def test_through_a_long_day_everybody_is_answered_as_the_host_computes(
    letter: str, live: Live
) -> None:
    service = served(letter, ROOMY, **in_pieces(live))
    for said in a_long_day(seed=5):
        speaks(service, said)
