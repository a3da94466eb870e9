"""Lab 5: a graph a rung. What you write is held against a plain loop over rows, batch after batch.

The forward here has a memory, as decoding has: `sums[slot]`, one row a request. It adds each batch
row to the row of its slot, and slot 0 belongs to nobody.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from mini_engine.predict.hardware import load_spec
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer, kernel

WIDTH, SLOTS, TOP = 6, 40, 16
Batch = dict[str, np.ndarray]


@kernel()
def add_to_sums(sums: np.ndarray, slots: np.ndarray, x: np.ndarray) -> None:
    sums[slots] += x


@kernel()
def look_up(out: np.ndarray, sums: np.ndarray, slots: np.ndarray) -> None:
    out[...] = sums[slots]


class Summing:
    """y = 3 × sums[slot], after sums[slot] += 2x. Four kernels. Counts the calls of its forward."""

    kernels = 4

    def __init__(self, sizes: list[int]) -> None:
        self.device = Device(load_spec("h200"), memory_bytes=64 * 2**20)
        self.sums = self.device.upload(np.zeros((SLOTS, WIDTH), np.float32))
        shapes = {"x": ((TOP, WIDTH), "float32"), "slots": ((TOP,), "int32")}
        self.inputs = StaticInputs(self.device, shapes)
        self.runner = GraphRunner(self.device, self.forward, self.inputs, sizes)
        self.calls = 0

    def forward(self, rows: int) -> Buffer:
        self.calls += 1
        launch, inputs = self.device.launch, self.inputs.view(rows)
        with self.device.scratch() as scratch:
            double, out = scratch.empty(rows, WIDTH), scratch.empty(rows, WIDTH)
            launch(k.scale, double, inputs["x"], by=2.0)
            launch(add_to_sums, self.sums, inputs["slots"], double)
            launch(look_up, out, self.sums, inputs["slots"])
            launch(k.scale, out, out, by=3.0)
            return scratch.keep(out)

    def run(self, batch: Batch) -> np.ndarray:
        return self.device.read(self.runner.run(len(batch["slots"]), batch))


def random_batch(rng: random.Random, rows: int) -> Batch:
    x = [[rng.uniform(-9, 9) for _ in range(WIDTH)] for _ in range(rows)]
    slots = rng.sample(range(1, SLOTS), rows)
    return {"x": np.array(x, np.float32), "slots": np.array(slots, np.int32)}


def no_sums() -> np.ndarray:
    return np.zeros((SLOTS, WIDTH), np.float32)


def by_hand(sums: np.ndarray, batch: Batch) -> np.ndarray:
    """One row after another, in the same float32 arithmetic as the kernels."""
    out = np.empty_like(batch["x"])
    for row, slot in enumerate(batch["slots"]):
        sums[slot] += batch["x"][row] * np.float32(2)
        out[row] = sums[slot] * np.float32(3)
    return out


def captured(sizes: list[int]) -> Summing:
    program = Summing(sizes)
    program.runner.capture()
    return program


# ---------------------------------------------------------------- static buffers


@pytest.mark.catches("a-buffer-for-each-rung")
def test_every_view_begins_where_its_buffer_stands() -> None:
    inputs = Summing([1]).inputs
    for rows in (1, 5, TOP, 5):
        view = inputs.view(rows)
        assert set(view) == {"x", "slots"}
        assert view["x"].shape == (rows, WIDTH)
        for name, part in view.items():
            assert len(part) == rows
            moved = part.address - inputs.buffers[name].address
            assert moved == 0, f"bytes between {name} and its view of {rows} rows"


@pytest.mark.catches("rebind-input")
def test_a_staged_batch_stands_at_the_addresses_that_the_graphs_read() -> None:
    program = Summing([1])
    device, inputs, rng = program.device, program.inputs, random.Random(1)
    before = inputs.view(4)  # what a graph of 4 has captured
    batch = random_batch(rng, 4)
    inputs.stage(4, batch)
    now = inputs.view(4)
    assert all(now[name].address == before[name].address for name in before), "an input moved"
    for name, array in batch.items():
        np.testing.assert_array_equal(device.read(before[name]), array)


@pytest.mark.catches("stale-padding")
def test_the_rows_after_the_batch_are_zeros_whatever_the_last_batch_left_there() -> None:
    program = Summing([1])
    device, inputs, rng = program.device, program.inputs, random.Random(2)
    for _ in range(20):
        inputs.stage(TOP, random_batch(rng, TOP))
        rung = rng.randint(1, TOP)
        batch = random_batch(rng, rng.randint(1, rung))
        inputs.stage(rung, batch)
        for name, array in batch.items():
            now = device.read(inputs.view(rung)[name])
            np.testing.assert_array_equal(now[: len(array)], array)
            padding = now[len(array) :]
            np.testing.assert_array_equal(padding, np.zeros_like(padding), f"padding of {name}")


class ByRequest(StaticInputs):
    """As the engine's inputs: three tokens a request, and a view in an order of its own."""

    def view(self, rows: int) -> dict[str, Buffer]:
        requests, tokens = self.buffers["slots"], self.buffers["x"]
        return {"slots": requests[: -(-rows // 3)], "x": tokens[:rows]}


def test_each_input_is_filled_as_far_as_its_own_view_goes() -> None:
    device, rng = Summing([1]).device, random.Random(16)
    inputs = ByRequest(device, {"x": ((TOP, WIDTH), "float32"), "slots": ((TOP,), "int32")})
    for buffer in inputs.buffers.values():
        device.copy_(buffer, np.full(buffer.shape, 9, buffer.dtype))
    inputs.stage(8, {"x": random_batch(rng, 5)["x"], "slots": random_batch(rng, 2)["slots"]})
    x, slots = (device.read(inputs.buffers[name]) for name in ("x", "slots"))
    assert (x[5:8] == 0).all()
    assert (x[8:] == 9).all(), "behind the view of 8 tokens"
    assert slots[2] == 0
    assert (slots[3:] == 9).all(), "behind the view of 3 requests"


def test_all_inputs_are_staged_in_one_call() -> None:
    program = Summing([1])
    launches = program.device.counters.launches
    program.inputs.stage(4, random_batch(random.Random(4), 3))
    assert program.device.counters.launches == launches + 1


# ---------------------------------------------------------------- warm-up


@pytest.mark.catches("no-warm-up")
def test_what_a_first_call_does_is_done_before_the_capture() -> None:
    """Libraries make handles and tuners take times at the first call of each shape: they wait."""
    program = Summing([1, 2, 4])
    tuned: set[int] = set()
    forward = program.runner.forward

    def tunes_itself(rows: int) -> Buffer:
        if rows not in tuned:
            tuned.add(rows)
            program.device.synchronize()  # a capturing stream does not permit it
        return forward(rows)

    program.runner.forward = tunes_itself
    program.runner.capture()
    assert sorted(program.runner.graphs) == [1, 2, 4]


@pytest.mark.catches("warm-up-on-the-last-batch")
def test_a_warm_up_adds_nothing_to_anybodys_memory() -> None:
    program = Summing([2, 8])
    program.inputs.stage(TOP, random_batch(random.Random(5), TOP))  # a batch stands there
    program.runner.capture()
    changed = (program.device.read(program.sums) != 0).any()
    assert not changed, "the warm-up added the rows of a batch"


def test_a_warm_up_runs_the_forward_once_and_waits_for_the_gpu() -> None:
    program = Summing([4])
    before = program.device.counters.kernels
    program.runner._warm_up(4)
    assert program.device.counters.kernels - before == program.kernels
    assert program.device.cpu_us >= program.device.gpu_us, "the GPU is still at work"


def test_a_warm_up_takes_its_memory_from_the_pool_of_the_graphs_and_leaves_none_behind() -> None:
    program = Summing([4])
    memory, pool = program.device.memory, program.runner.pool
    mine, others = memory.allocated_bytes(pool), memory.allocated_bytes()
    outside = memory.reserved_bytes() - memory.reserved_bytes(pool)
    program.runner._warm_up(4)
    assert (memory.allocated_bytes(pool), memory.allocated_bytes()) == (mine, others)
    assert memory.reserved_bytes(pool) > 0
    assert memory.reserved_bytes() - memory.reserved_bytes(pool) == outside


# ---------------------------------------------------------------- recording


@pytest.mark.catches("capture-computes")
def test_a_capture_executes_nothing() -> None:
    program = Summing([4])
    before = program.device.counters.copy()
    _, output = program.runner._record(4)
    did = program.device.counters.since(before)
    assert (did.kernels, did.graphs) == (0, 0), "kernels and graphs that ran while recording"
    assert np.isnan(program.device.read(output)).all(), "poison, until the first replay"


@pytest.mark.catches("warm-up-inside-the-capture")
def test_a_replay_runs_the_kernels_of_one_forward() -> None:
    program = captured([2, 4])
    for rung in (2, 4):
        before = program.device.counters.kernels
        program.runner.graphs[rung].replay()
        ran = program.device.counters.kernels - before
        assert ran == program.kernels, f"kernels of one replay of rung {rung}"


@pytest.mark.catches("capture-computes")
def test_the_output_that_is_kept_is_the_one_that_replays_write() -> None:
    program = captured([4])
    for value in (1.0, 5.0):
        x = np.full((4, WIDTH), value, np.float32)
        program.inputs.stage(4, {"x": x, "slots": np.arange(4, dtype=np.int32)})
        program.runner.graphs[4].replay()
    found = program.device.read(program.runner.outputs[4])[1:]
    np.testing.assert_array_equal(found, np.full_like(found, 3 * (2 * 1 + 2 * 5)))


# ---------------------------------------------------------------- replaying


@pytest.mark.catches("eager-in-run")
def test_a_step_is_one_copy_and_one_launch_and_no_forward() -> None:
    program = captured([4])
    calls, before = program.calls, program.device.counters.copy()
    program.runner.run(3, random_batch(random.Random(10), 3))
    did = program.device.counters.since(before)
    assert program.calls == calls, "the forward was called again"
    assert (did.launches, did.graphs, did.kernels) == (2, 1, program.kernels)


@pytest.mark.catches("replay-before-copy")
def test_a_replay_computes_the_batch_that_was_given_and_not_the_one_before_it() -> None:
    program, rng = captured([4]), random.Random(9)
    sums = no_sums()
    for _ in range(3):
        batch = random_batch(rng, 4)
        np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))


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


@pytest.mark.catches("largest-rung")
def test_a_batch_runs_at_the_smallest_rung_that_it_fits() -> None:
    sizes = [1, 2, 4, 16]
    for rows in range(1, 17):
        program = captured(sizes)
        program.run(random_batch(random.Random(6), rows))
        outputs = {r: program.device.read(o) for r, o in program.runner.outputs.items()}
        written = [rung for rung in sizes if not np.isnan(outputs[rung]).any()]
        assert written == [min(size for size in sizes if size >= rows)], f"a batch of {rows}"


@pytest.mark.catches("returns-the-padding")
def test_a_batch_gets_back_as_many_rows_as_it_has() -> None:
    program, rng = captured([1, 4, 16]), random.Random(7)
    for rows in (3, 1, 4, 9, 16):
        assert program.runner.run(rows, random_batch(rng, rows)).shape == (rows, WIDTH)


def test_a_forward_with_fewer_rows_than_the_batch_gives_all_of_them() -> None:
    """A head gives one row a request, and a batch may have many tokens a request."""
    program = Summing([8])
    program.runner.forward = heads_only(program)
    program.runner.capture()
    assert program.runner.run(7, random_batch(random.Random(8), 7)).shape == (2, WIDTH)
    assert program.runner.run(1, random_batch(random.Random(8), 1)).shape == (1, WIDTH)


def heads_only(program: Summing) -> Callable[[int], Buffer]:
    def forward(rows: int) -> Buffer:
        with program.device.scratch() as scratch:
            out = scratch.empty(2, WIDTH)
            program.device.launch(k.scale, out, program.inputs.view(rows)["x"][:2], by=2.0)
            return scratch.keep(out)

    return forward


@pytest.mark.catches("ladder-gap")
def test_a_batch_that_fits_no_rung_is_refused_in_words() -> None:
    program = captured([1, 2, 16])
    with pytest.raises(CaptureError, match=r"20.*16"):
        program.runner.run(20, random_batch(random.Random(11), 20))
    with pytest.raises(CaptureError):
        Summing([1, 2]).runner.run(1, random_batch(random.Random(11), 1))  # nothing captured yet


@pytest.mark.catches("ladder-is-not-graphs")
def test_a_rung_that_was_not_captured_is_passed_over() -> None:
    program = Summing([1, 4, 16])
    program.runner.capture(order=[16, 1])  # as if 4 had found no memory
    batch = random_batch(random.Random(12), 3)
    np.testing.assert_array_equal(program.run(batch), by_hand(no_sums(), batch))


def test_an_output_stands_in_the_graphs_own_memory_until_the_next_replay() -> None:
    program, rng = captured([4]), random.Random(13)
    kept = program.runner.run(3, random_batch(rng, 3))
    assert kept.address == program.runner.outputs[4].address
    again = program.run(random_batch(rng, 3))
    np.testing.assert_array_equal(program.device.read(kept), again)


def test_every_graph_takes_its_memory_from_the_pool_of_the_runner() -> None:
    program = captured([2, 8])
    memory, runner = program.device.memory, program.runner
    assert {output.block.pool for output in runner.outputs.values()} == {runner.pool}
    memory.release_cached()  # as a device does that runs short of memory
    batch = random_batch(random.Random(15), 2)
    np.testing.assert_array_equal(program.run(batch), by_hand(no_sums(), batch))


# ---------------------------------------------------------------- all together


def test_whatever_batches_come_each_row_gets_what_a_plain_loop_gives_it() -> None:
    rng = random.Random(14)
    for _ in range(25):
        sizes = sorted(rng.sample(range(1, TOP), rng.randint(1, 5)))
        program, sums = captured(sizes), no_sums()
        for _ in range(10):
            batch = random_batch(rng, rng.randint(1, sizes[-1]))
            np.testing.assert_array_equal(program.run(batch), by_hand(sums, batch))
        np.testing.assert_array_equal(program.device.read(program.sums)[1:], sums[1:])
