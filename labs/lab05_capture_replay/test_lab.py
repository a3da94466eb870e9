"""Lab 5: a graph a rung. What you write is held against a plain loop over rows, batch after batch.

The forward here has a memory, as decoding has: `sums[slot]`, one row a request. It adds each batch
row to the row of its slot, and slot 0 belongs to nobody.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from labs.support.inputs import agree, frozen
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import BreakableGraph, CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer, kernel
from mini_engine.sim.memory import BLOCK_BYTES
from mini_engine.step.cards import load_spec

WIDTH, SLOTS, TOP, MIB = 6, 40, 16, 2**20
Batch = dict[str, np.ndarray]


@kernel()
def add_to_sums(sums: np.ndarray, slots: np.ndarray, x: np.ndarray) -> None:
    sums[slots] += x


@kernel()
def fill(x: np.ndarray) -> None:
    x[:] = 1


@kernel()
def look_up(out: np.ndarray, sums: np.ndarray, slots: np.ndarray) -> None:
    out[...] = sums[slots]


class Summing:
    """y = 3 × sums[slot], after sums[slot] += 2x. Four kernels.

    Notes for each call of its forward: the rows; whether it was recorded; by how much the GPU's
    clock was ahead of the CPU's; how many bytes were in use; and from which pool its memory came.
    """

    kernels = 4

    def __init__(
        self, sizes: list[int], runner: type[GraphRunner] = GraphRunner, **options: Any
    ) -> None:
        self.device = Device(load_spec("h200"), memory_bytes=64 * MIB, record=True)
        self.sums = self.device.upload(np.zeros((SLOTS, WIDTH), np.float32))
        shapes = {"x": ((TOP, WIDTH), "float32"), "slots": ((TOP,), "int32")}
        self.inputs = StaticInputs(self.device, shapes)
        self.calls: list[tuple[int, bool]] = []
        self.ahead_us: list[float] = []
        self.in_use: list[int] = []
        self.pools: set[int] = set()
        self.runner = runner(self.device, self.forward, self.inputs, sizes, **options)

    def forward(self, rows: int) -> Buffer:
        self.calls.append((rows, self.device.recorder is not None))
        self.ahead_us.append(self.device.gpu_us - self.device.cpu_us)
        self.in_use.append(self.device.memory.allocated_bytes())
        launch, inputs = self.device.launch, self.inputs.view(rows)
        with self.device.scratch() as scratch:
            double, out = scratch.empty(rows, WIDTH), scratch.empty(rows, WIDTH)
            self.pools |= {double.block.pool, out.block.pool}
            launch(k.scale, double, inputs["x"], by=2.0)
            launch(add_to_sums, self.sums, inputs["slots"], double)
            launch(look_up, out, self.sums, inputs["slots"])
            launch(k.scale, out, out, by=3.0)
            return scratch.keep(out)

    def run(self, batch: Batch) -> np.ndarray:
        return self.device.read(self.runner.run(len(batch["slots"]), batch))

    def replays(self) -> list[int]:
        """A list that grows by the rung of each replay from now on."""
        log: list[int] = []

        def logged(rung: int, replay: Callable[[], None]) -> Callable[[], None]:
            return lambda: (log.append(rung), replay())[1]

        for rung, graph in self.runner.graphs.items():
            graph.replay = logged(rung, graph.replay)  # type: ignore[method-assign]
        return log


def random_batch(rng: random.Random, rows: int) -> Batch:
    x = [[rng.uniform(-9, 9) for _ in range(WIDTH)] for _ in range(rows)]
    slots = rng.sample(range(1, SLOTS), rows)
    return {"x": frozen(np.array(x, np.float32)), "slots": frozen(np.array(slots, np.int32))}


def no_sums() -> np.ndarray:
    return np.zeros((SLOTS, WIDTH), np.float32)


def by_hand(sums: np.ndarray, batch: Batch) -> np.ndarray:
    """One row after another, in the same float32 arithmetic as the kernels."""
    out = np.empty_like(batch["x"])
    for row, slot in enumerate(batch["slots"]):
        sums[slot] += batch["x"][row] * np.float32(2)
        out[row] = sums[slot] * np.float32(3)
    return out


def captured(sizes: list[int], **options: Any) -> Summing:
    program = Summing(sizes, **options)
    program.runner.capture()
    return program


# ---------------------------------------------------------------- one recording


def test_a_recording_holds_one_forward_that_has_not_run() -> None:
    program = Summing([4])
    kernels = program.device.counters.kernels
    graph, output = program.runner._record(4)
    assert program.calls == [(4, True)], "the forward's rows, and whether it was recorded"
    assert program.device.counters.kernels == kernels, "kernels ran while it was recorded"
    assert len(graph.nodes) == program.kernels
    graph.replay()
    found = program.device.read(output).tolist()
    assert found == no_sums()[:4].tolist(), "what it computes from zeros"


# ---------------------------------------------------------------- warm-up


class TunesItself(Summing):
    """Libraries make handles and tuners take times at the first call of each shape: they wait."""

    def __init__(self, sizes: list[int]) -> None:
        self.tuned: set[int] = set()
        super().__init__(sizes)

    def forward(self, rows: int) -> Buffer:
        if rows not in self.tuned:
            self.tuned.add(rows)
            self.device.synchronize()  # a capturing stream does not permit it
        return super().forward(rows)


@pytest.mark.catches("no-warm-up")
def test_what_a_first_call_does_is_done_before_the_capture() -> None:
    program = TunesItself([1, 2, 4])
    program.runner.capture()
    assert sorted(program.runner.graphs) == [1, 2, 4]


@pytest.mark.catches("no-warm-up", "warm-up-inside-the-capture", "capture-computes")
def test_each_rung_runs_the_forward_once_eagerly_and_then_once_in_a_capture() -> None:
    program = captured([2, 8])
    assert sorted(set(program.calls)) == [(2, False), (2, True), (8, False), (8, True)]
    for rung in (2, 8):
        recorded = [in_capture for rows, in_capture in program.calls if rows == rung]
        assert recorded == [False, True], f"was the forward of {rung} rows recorded?"
    program.runner.capture([8])
    again = [in_capture for rows, in_capture in program.calls[4:] if rows == 8]
    assert again == [False, True], "and of a second capture?"


@pytest.mark.catches("warm-up-on-the-last-batch")
def test_a_warm_up_adds_nothing_to_anybodys_memory() -> None:
    program, rng = Summing([2, 8]), random.Random(5)
    for _ in range(2):  # the second time over graphs that are there already
        batch = random_batch(rng, TOP)  # a batch stands in the inputs
        program.device.copy_batch([(program.inputs.buffers[name], batch[name]) for name in batch])
        before = program.device.read(program.sums)
        program.runner.capture()
        changed = np.flatnonzero((program.device.read(program.sums) != before).any(axis=1))
        assert changed.tolist() == [], "slots to which the warm-up added the rows of a batch"
        program.run(random_batch(rng, 8))


class Feeding(Summing):
    """A forward that leaves its output in its input, for the next step, as a decode loop does."""

    def __init__(self, sizes: list[int]) -> None:
        self.found: list[float] = []
        super().__init__(sizes)

    def forward(self, rows: int) -> Buffer:
        x = self.inputs.view(rows)["x"]
        if self.device.recorder is None:
            self.found.append(float(np.abs(self.device.read(x)).max()))
        out = super().forward(rows)
        self.device.launch(fill, x)
        return out


def test_every_warm_up_finds_null_inputs_whatever_the_one_before_it_wrote_there() -> None:
    program = Feeding([1, 2, 4])
    program.runner.capture()
    assert program.found == [0.0, 0.0, 0.0], "the largest number in the inputs of each warm-up"


@pytest.mark.catches("a-warm-up-need-not-end")
def test_a_warm_up_is_over_on_the_gpu_when_its_rung_is_captured() -> None:
    program = captured([2, 4, 8])
    ahead_us = {
        rows: ahead_us
        for (rows, in_capture), ahead_us in zip(program.calls, program.ahead_us, strict=True)
        if in_capture
    }
    assert max(ahead_us.values()) <= 0, f"µs of work that the GPU has left, by rung: {ahead_us}"


@pytest.mark.catches("a-warm-up-in-the-default-pool", "a-pool-for-each-rung")
def test_warm_up_and_capture_take_their_memory_from_the_pool_of_the_runner() -> None:
    program = captured([2, 4])
    assert program.pools == {program.runner.pool}


@pytest.mark.catches("a-warm-up-keeps-its-output")
def test_of_a_warm_up_no_memory_is_left_in_use() -> None:
    program = Summing([2, 4])
    memory, pool = program.device.memory, program.runner.pool
    before = memory.allocated_bytes()
    program.runner.capture()
    outputs = 2 * BLOCK_BYTES  # one small block for each graph
    in_pool, outside = memory.allocated_bytes(pool), memory.allocated_bytes() - before
    assert in_pool == outputs, "bytes in use in the pool after the capture of two rungs"
    assert outside == outputs, "bytes in use that were not, in all pools"
    calls = zip(program.calls, program.in_use, strict=True)
    at_captures = [in_use - before for (_, in_capture), in_use in calls if in_capture]
    assert at_captures == [0, BLOCK_BYTES], "bytes in use when the one capture and the other began"


# ---------------------------------------------------------------- capture


@pytest.mark.catches("capture-computes")
def test_a_capture_executes_nothing_beyond_the_warm_ups() -> None:
    program = Summing([2, 4])
    before = program.device.counters.copy()
    program.runner.capture()
    did = program.device.counters.since(before)
    ran = {"kernels": did.kernels, "graphs": did.graphs}
    assert ran == {"kernels": 2 * program.kernels, "graphs": 0}, "of two rungs"


@pytest.mark.catches("warm-up-inside-the-capture")
def test_a_replay_runs_the_kernels_of_one_forward() -> None:
    program = captured([2, 4])
    for rung in (2, 4):
        before = program.device.counters.kernels
        program.runner.graphs[rung].replay()
        ran = program.device.counters.kernels - before
        assert ran == program.kernels, f"kernels of one replay of rung {rung}"


@pytest.mark.catches("a-capture-finds-its-pool")
def test_a_pool_that_is_given_is_gone_on_with_and_otherwise_a_new_one_is_made() -> None:
    first = captured([2])
    device, pool = first.device, first.device.memory.new_pool()
    assert first.runner.pool not in (0, pool), "pool 0 is everybody's"
    for given in (pool, 0, first.runner.pool):
        second = GraphRunner(device, first.forward, first.inputs, [2], pool=given)
        second.capture()
        assert (second.pool, second.graphs[2].pool) == (given, given)


def test_without_sharing_each_graph_has_a_pool_of_its_own() -> None:
    program = Summing([1, 2, 4], share_pool=False)
    report = program.runner.capture()
    pools = {rung: graph.pool for rung, graph in program.runner.graphs.items()}
    assert len(set(pools.values())) == 3, f"pools of the three graphs: {pools}"
    assert program.runner.pool == pools[1], "the pool of the rung that was captured last"
    grown = {rung.rung: rung.pool_growth_bytes for rung in report.rungs}
    taken = {rung: program.device.memory.reserved_bytes(pool) for rung, pool in pools.items()}
    assert grown == taken, "bytes by rung: of the report, and of the rung's own pool"
    program.runner.capture()
    again = {graph.pool for graph in program.runner.graphs.values()}
    assert again & {*pools.values()} == set(), "pools of the first capture in the second"


def test_a_graph_has_its_rung_in_its_name() -> None:
    names = {rung: graph.name for rung, graph in captured([1, 3, 16]).runner.graphs.items()}
    for rung, name in names.items():
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        assert rung in numbers, f"the numbers in the name {name!r}"


def test_the_report_has_a_line_for_each_rung_in_the_order_of_capture() -> None:
    program = Summing([1, 4, 16])
    began_us, reserved = program.device.cpu_us, program.device.memory.reserved_bytes()
    began = len(program.device.timeline)
    report = program.runner.capture()
    assert [rung.rung for rung in report.rungs] == [16, 4, 1]
    assert [rung.graphs for rung in report.rungs] == [1, 1, 1]
    took_us, reported_us = program.device.cpu_us - began_us, report.time_us
    # clearing the inputs or waiting once for all rungs is no rung's own time
    at_work = [e for e in program.device.timeline[began:] if e.category in ("launch", "host")]
    at_work_us = sum(event.duration_us for event in at_work)
    assert reported_us <= took_us * (1 + 1e-9), "µs of all rungs, and of the whole capture"
    assert reported_us >= at_work_us * (1 - 1e-9), "µs of all rungs, and of launching and recording"
    grown = program.device.memory.reserved_bytes() - reserved
    assert [rung.pool_growth_bytes for rung in report.rungs] == [grown, 0, 0]
    drivers = {rung: graph.driver_bytes for rung, graph in program.runner.graphs.items()}
    assert {rung.rung: rung.driver_bytes for rung in report.rungs} == drivers


def test_a_rung_without_memory_is_dropped() -> None:
    device = Device(load_spec("h200"), memory_bytes=24 * MIB)
    inputs = StaticInputs(device, {"x": ((8, 4), "float32")})
    forward = wide_forward(device, inputs)
    runner = GraphRunner(device, forward, inputs, [1, 2, 4, 8])
    report = runner.capture()
    assert report.dropped == [8]
    assert sorted(runner.graphs) == [1, 2, 4]


def wide_forward(device: Device, inputs: StaticInputs) -> Callable[[int], Buffer]:
    """y = 4x, over 4 MiB of scratch a row."""

    def forward(rows: int) -> Buffer:
        with device.scratch() as scratch:
            wide, out = scratch.empty(rows * 2**18, 4), scratch.empty(rows, 4)
            double = wide[:rows]
            device.launch(k.scale, double, inputs.view(rows)["x"], by=2.0)
            device.launch(k.scale, out, double, by=2.0)
            return scratch.keep(out)

    return forward


def test_a_second_capture_replaces_the_graphs_of_the_first() -> None:
    runner = captured([1, 2, 4]).runner
    before = dict(runner.graphs)
    runner.capture()
    same = [rung for rung, graph in runner.graphs.items() if graph is before[rung]]
    assert same == [], "rungs that still have their old graph"


def test_a_batch_that_comes_again_after_a_second_capture_is_copied_again() -> None:
    program, sums = captured([4]), no_sums()
    batch = random_batch(random.Random(8), 4)
    for _ in range(2):
        agree(program.run(batch), by_hand(sums, batch), "the output")
        program.runner.capture()


@pytest.mark.catches("a-second-capture-adds")
def test_after_a_second_capture_only_its_own_rungs_are_there() -> None:
    runner = captured([1, 2, 4]).runner
    assert runner.rung_for(1) == 1
    for order in ([4, 1], [2]):  # as if the others had found no memory this time
        runner.capture(order)
        assert sorted(runner.graphs) == sorted(order), "rungs that have a graph"
        for rows in range(1, max(order) + 1):
            smallest = min(rung for rung in order if rung >= rows)
            assert runner.rung_for(rows) == smallest, f"{rows} rows, with graphs of {order}"


def test_rungs_are_captured_in_the_order_that_is_asked_for() -> None:
    for order in ([4, 1, 2], [1, 2, 4], [2, 4], []):
        program = Summing([1, 2, 4])
        report = program.runner.capture(order)
        assert [rung.rung for rung in report.rungs] == order
        assert [rows for rows, in_capture in program.calls if in_capture] == order


@pytest.mark.catches("first-captured-first")
def test_in_whatever_order_rungs_were_captured_a_batch_runs_at_the_smallest_that_it_fits() -> None:
    for order in ([1, 2, 4], [4, 2, 1], [4, 1, 2], [2, 4, 1]):
        program = Summing([1, 2, 4])
        program.runner.capture(order)
        rungs = [program.runner.rung_for(rows) for rows in (1, 2, 3, 4)]
        assert rungs == [1, 2, 4, 4], f"for 1, 2, 3 and 4 rows, captured in the order {order}"


class NotReady(Summing):
    """A forward with a fault of its own at 2 rows: eagerly, or while it is recorded."""

    in_capture = False
    fault: type[Exception] = ZeroDivisionError

    def forward(self, rows: int) -> Buffer:
        if (rows, self.device.recorder is not None) == (2, self.in_capture):
            raise self.fault("at 2 rows")
        return super().forward(rows)


def test_an_error_other_than_no_memory_is_not_taken_for_a_rung_without_memory() -> None:
    for fault in (ZeroDivisionError, RuntimeError, CaptureError):
        for in_capture in (False, True):
            program = NotReady([1, 2, 4])
            program.in_capture, program.fault = in_capture, fault
            with pytest.raises(fault):
                program.runner.capture()


# ---------------------------------------------------------------- one step: in


@pytest.mark.catches("rebind-input", "a-buffer-for-each-rung")
def test_a_batch_is_copied_to_the_addresses_that_the_graphs_read() -> None:
    program, rng = captured([4, 16]), random.Random(1)
    before = program.inputs.view(4)  # what the graph of 4 has captured
    for _ in range(2):
        batch = random_batch(rng, 4)
        program.run(batch)
        now = program.inputs.view(4)
        moved = [name for name in before if now[name].address != before[name].address]
        assert moved == [], "inputs that stand elsewhere now"
        for name in batch:
            at_address, given = program.device.read(before[name]), batch[name]
            np.testing.assert_array_equal(at_address, given, f"{name} where the graph reads it")


@pytest.mark.catches("returns-the-padding")
def test_a_batch_gets_back_as_many_rows_as_it_has() -> None:
    program, rng = captured([1, 4, 16]), random.Random(7)
    for rows in (3, 1, 4, 9, 16):
        assert program.runner.run(rows, random_batch(rng, rows)).shape == (rows, WIDTH)


@pytest.mark.catches("replay-before-copy")
def test_a_replay_computes_the_batch_that_was_given_and_not_the_one_before_it() -> None:
    program, rng = captured([4]), random.Random(9)
    sums = no_sums()
    for _ in range(3):
        batch = random_batch(rng, 4)
        np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))


@pytest.mark.catches("stale-padding")
def test_the_rows_after_the_batch_are_zeros_whatever_the_last_batch_left_there() -> None:
    program, rng = captured([3, 7, TOP]), random.Random(2)
    for _ in range(20):
        program.run(random_batch(rng, TOP))
        rows = rng.randint(1, 7)
        program.run(random_batch(rng, rows))
        for name, view in program.inputs.view(3 if rows <= 3 else 7).items():
            padding = program.device.read(view)[rows:]
            np.testing.assert_array_equal(padding, np.zeros_like(padding), f"padding of {name}")


@pytest.mark.catches("stale-padding")
def test_a_padded_row_changes_nobodys_memory() -> None:
    program, rng = captured([4]), random.Random(3)
    program.run(random_batch(rng, 4))
    before = program.device.read(program.sums)
    batch = random_batch(rng, 1)
    program.run(batch)
    changed = np.flatnonzero((program.device.read(program.sums) != before).any(axis=1))
    wanted = sorted(batch["slots"].tolist())
    assert changed.tolist() == wanted, "slots that changed, and those of the batch"


class ByRequest(StaticInputs):
    """As the engine's inputs: three tokens a request, and a view in an order of its own."""

    def view(self, rows: int) -> dict[str, Buffer]:
        requests, tokens = self.buffers["slots"], self.buffers["x"]
        return {"slots": requests[: -(-rows // 3)], "x": tokens[:rows]}


@pytest.mark.catches("padding-of-the-batch", "a-full-rung-is-not-padded")
@pytest.mark.parametrize(("tokens", "requests"), [(5, 2), (7, 1), (8, 2)])
def test_each_input_is_filled_as_far_as_its_own_view_goes(tokens: int, requests: int) -> None:
    device, rng = Device(load_spec("h200"), memory_bytes=64 * MIB), random.Random(16)
    inputs = ByRequest(device, {"x": ((TOP, WIDTH), "float32"), "slots": ((TOP,), "int32")})

    def forward(rows: int) -> Buffer:
        out = device.empty((rows, WIDTH))
        device.launch(k.scale, out, inputs.view(rows)["x"], by=2.0)
        return out

    runner = GraphRunner(device, forward, inputs, [8])
    runner.capture()
    nines = {n: np.full(b.shape, 9, b.dtype) for n, b in inputs.buffers.items()}
    full = {"x": random_batch(rng, 8)["x"], "slots": random_batch(rng, 3)["slots"]}
    runner.run_at(8, 8, full)  # the batch before it fills both views
    device.copy_batch([(inputs.buffers[name], nines[name]) for name in nines])
    batch = {"slots": random_batch(rng, requests)["slots"], "x": random_batch(rng, tokens)["x"]}
    out = device.read(runner.run_at(8, tokens, batch))
    np.testing.assert_array_equal(out, 2 * batch["x"])
    x, slots = (device.read(inputs.buffers[name]) for name in ("x", "slots"))
    np.testing.assert_array_equal(slots[:requests], batch["slots"])
    for others in (x[tokens:8], slots[requests:3]):  # in views of 8 tokens and of 3 requests
        np.testing.assert_array_equal(others, np.zeros_like(others), "rows behind the batch's own")
    np.testing.assert_array_equal(x[8:], nines["x"][8:], "behind the view of 8 tokens")
    np.testing.assert_array_equal(slots[3:], nines["slots"][3:], "behind the view of 3 requests")


@pytest.mark.catches("a-copy-an-input", "eager-in-run")
def test_a_step_is_one_copy_and_one_launch_and_no_forward() -> None:
    program = captured([4])
    calls, before = len(program.calls), program.device.counters.copy()
    program.runner.run(3, random_batch(random.Random(10), 3))
    did = program.device.counters.since(before)
    assert len(program.calls) == calls, "the forward was called again"
    found = {"launches": did.launches, "graphs": did.graphs, "kernels": did.kernels}
    assert found == {"launches": 2, "graphs": 1, "kernels": 4}, "a copy is a launch, too"


@pytest.mark.catches("waits-for-the-gpu")
def test_a_step_waits_for_nothing() -> None:
    program, rng = captured([4]), random.Random(18)
    for _ in range(3):  # the second and the third find the GPU at work
        began = len(program.device.timeline)
        program.runner.run(3, random_batch(rng, 3))
        waits = [e.name for e in program.device.timeline[began:] if e.category == "wait"]
        assert waits == [], "on the CPU, during one step"


@pytest.mark.catches("zeros-for-all-rungs")
def test_what_the_graph_of_a_rung_does_not_read_stays_as_it_was() -> None:
    program, rng = captured([2, 8]), random.Random(18)
    program.runner.run(8, random_batch(rng, 8))
    inputs = program.inputs.view(8)
    before = {name: program.device.read(buffer)[2:].tolist() for name, buffer in inputs.items()}
    program.runner.run(1, random_batch(rng, 1))
    after = {name: program.device.read(buffer)[2:].tolist() for name, buffer in inputs.items()}
    assert after == before, "rows of the inputs beyond a rung of 2"


@pytest.mark.catches("rebind-input", "a-buffer-for-each-rung")
def test_a_step_takes_no_memory_of_the_device() -> None:
    program, rng = captured([4, 8]), random.Random(19)
    before = program.device.memory.allocated_bytes()
    for rows in (4, 2, 7):
        program.runner.run(rows, random_batch(rng, rows))
        assert program.device.memory.allocated_bytes() == before, f"bytes, after {rows} rows"


# ---------------------------------------------------------------- one step: which rung, and out


@pytest.mark.catches("a-rung-must-be-larger", "largest-rung")
def test_a_batch_runs_at_the_smallest_rung_that_it_fits() -> None:
    program, sizes = captured([1, 2, 4, 16]), [1, 2, 4, 16]
    log = program.replays()
    for rows in range(1, 17):
        program.run(random_batch(random.Random(6), rows))
        smallest = min(size for size in sizes if size >= rows)
        assert (program.runner.rung_for(rows), log[-1]) == (smallest, smallest), f"{rows} rows"


@pytest.mark.catches("ladder-is-not-graphs")
def test_a_rung_that_was_not_captured_is_passed_over() -> None:
    program = Summing([1, 4, 16])
    program.runner.capture(order=[16, 1])  # as if 4 had found no memory
    assert sorted(program.runner.graphs) == [1, 16]
    assert program.runner.rung_for(3) == 16
    batch = random_batch(random.Random(12), 3)
    np.testing.assert_array_equal(program.run(batch), by_hand(no_sums(), batch))


def test_whoever_names_a_rung_gets_that_one() -> None:
    program, rng, sums = captured([2, 4, 16]), random.Random(20), no_sums()
    log = program.replays()
    for rung, rows in ((16, 3), (4, 2), (16, 16), (2, 1)):
        batch = random_batch(rng, rows)
        out = program.device.read(program.runner.run_at(rung, rows, batch))
        np.testing.assert_array_equal(out, by_hand(sums, batch))
    assert log == [16, 4, 16, 2]


class HeadsOnly(Summing):
    """A head gives one row a request, and a batch may have many tokens a request."""

    def forward(self, rows: int) -> Buffer:
        with self.device.scratch() as scratch:
            out = scratch.empty(2, WIDTH)
            self.device.launch(k.scale, out, self.inputs.view(rows)["x"][:2], by=2.0)
            return scratch.keep(out)


def test_a_forward_with_fewer_rows_than_the_batch_gives_all_of_them() -> None:
    program = HeadsOnly([8])
    program.runner.capture()
    assert program.runner.run(7, random_batch(random.Random(8), 7)).shape == (2, WIDTH)
    assert program.runner.run(1, random_batch(random.Random(8), 1)).shape == (1, WIDTH)


@pytest.mark.catches("capture-computes")
def test_an_output_stands_in_the_graphs_own_memory_until_the_next_replay() -> None:
    program, rng, sums = captured([2, 4]), random.Random(13), no_sums()
    first = random_batch(rng, 3)
    kept = program.runner.run(3, first)
    np.testing.assert_array_equal(program.device.read(kept), by_hand(sums, first))
    second = random_batch(rng, 3)
    program.run(second)
    np.testing.assert_array_equal(program.device.read(kept), by_hand(sums, second))


@pytest.mark.catches("ladder-gap")
def test_a_batch_that_fits_no_captured_rung_is_refused_and_told_both_numbers() -> None:
    for order, rows, largest in ([16, 2, 1], 20, 16), ([2, 1], 9, 2):
        program = Summing([1, 2, 16])
        program.runner.capture(order)
        for ask in (program.runner.rung_for, lambda n, of=program: of.runner.run(n, {})):
            with pytest.raises(CaptureError) as refused:
                ask(rows)
            numbers = {int(number) for number in re.findall(r"\d+", str(refused.value))}
            assert numbers >= {rows, largest}, "numbers in the message: rows, largest captured rung"


def test_before_anything_is_captured_every_batch_is_refused() -> None:
    runner = Summing([1, 8]).runner
    with pytest.raises(CaptureError) as refused:
        runner.run(5, random_batch(random.Random(11), 5))
    message = str(refused.value)
    assert "5" in message, "the number of rows"


# ---------------------------------------------------------------- all together


class InPieces(GraphRunner):
    """Captures in another way: cut at every look-up, which then runs live."""

    def _record(self, rung: int) -> tuple[BreakableGraph, Buffer]:
        with self.device.capture_breakable({"look_up"}, self.pool, f"pieces of {rung}") as graph:
            output = self.forward(rung)
        return graph, output


def test_a_subclass_may_capture_in_another_way_by_replacing_record() -> None:
    program, rng, sums = Summing([2, 4], InPieces), random.Random(17), no_sums()
    report = program.runner.capture()
    assert [rung.graphs for rung in report.rungs] == [2, 2], "graphs of each rung"
    for rows in (3, 1, 4):
        batch = random_batch(rng, rows)
        np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))


def test_graphs_replay_right_after_a_device_short_of_memory_has_emptied_its_cache() -> None:
    program, rng, sums = captured([2, 8]), random.Random(15), no_sums()
    program.device.memory.release_cached()
    for rows in (2, 7):
        batch = random_batch(rng, rows)
        np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))


def test_whatever_batches_come_each_row_gets_what_a_plain_loop_gives_it() -> None:
    rng = random.Random(14)
    for _ in range(25):
        sizes = sorted(rng.sample(range(1, TOP), rng.randint(1, 5)))
        program, sums = captured(sizes), no_sums()
        for step in range(10):
            batch = random_batch(rng, rng.randint(1, sizes[-1]))
            np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))
            if step == 5:
                program.runner.capture()  # again, while people are at it
        np.testing.assert_array_equal(program.device.read(program.sums)[1:], sums[1:])
