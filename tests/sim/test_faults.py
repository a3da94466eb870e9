"""The faults that real engines have had, each by ordinary code, each refused or visibly wrong.

Every test shows the right way beside the fault, so that it is the fault that makes the difference.
Sources are the public reports named with each test.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request
from mini_engine.engine.blocks import NULL_BLOCK
from mini_engine.engine.engine import Engine
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer
from mini_engine.sim.runner import ModelInputs, SimRunner
from tests.support.engine_helpers import alone, sim_engine, tokens_by_id
from tests.support.sim_helpers import small_device

# 3 requests decode on the rung of 4: one padded row a step. Long prompts fill the first blocks.
REQUESTS = [Request(str(i), (5 + i, 9, 2 + i, 30, 31, 7), 8) for i in range(3)]
EXPECTED = {r.request_id: alone(tuple(r.prompt), 8) for r in REQUESTS}


def served(engine: Engine) -> dict[str, tuple[int, ...]]:
    return tokens_by_id(engine.run(REQUESTS))


def full_engine(inputs: type[ModelInputs] = ModelInputs) -> Engine:
    """A full-graph engine whose static inputs are of a given kind."""
    engine = sim_engine("FULL", (1, 2, 4, 32), capture=False)
    runner = engine.runner
    assert isinstance(runner, SimRunner)
    faulty = inputs(runner.device, runner.limits, 32)
    runner.inputs = faulty
    runner.capture()
    return engine


def test_the_right_way_gives_every_request_its_own_tokens() -> None:
    assert served(full_engine()) == EXPECTED


def test_a_padded_row_that_writes_a_kv_slot_in_use_changes_somebodys_text() -> None:
    """nano-vllm issue 89: padded rows wrote K and V into slot 0, which a request owned."""
    engine = full_engine()
    engine.scheduler.pool._free.append(NULL_BLOCK)  # a pool that keeps no block for nobody
    assert served(engine) != EXPECTED
    eager = sim_engine("NONE", ())
    eager.scheduler.pool._free.append(NULL_BLOCK)
    assert served(eager) == EXPECTED  # nothing is padded: the fault hides until graphs come


class KeepsTheTail(ModelInputs):
    """Copies the batch in and leaves the padded rows as the last batch left them."""

    def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        view = self.view(rows)
        self.device.copy_batch([(view[n][: len(a)], a) for n, a in arrays.items()])


def test_stale_metadata_in_padded_rows_writes_into_blocks_that_have_a_new_owner() -> None:
    """The rows of a finished request go on writing where they last wrote."""
    requests = [Request("short", (3, 4, 5), 3), *REQUESTS]
    late = Request("late", (11, 12, 13, 14), 8, arrival_us=400)
    expected = EXPECTED | {"short": alone((3, 4, 5), 3), "late": alone((11, 12, 13, 14), 8)}
    right = tokens_by_id(full_engine().run([*requests, late]))
    wrong = tokens_by_id(full_engine(KeepsTheTail).run([*requests, late]))
    assert right == expected
    assert wrong != expected


class CopiesTheBlockTableOnce(ModelInputs):
    """Takes the block table for a property of the rung, which it is not once requests grow."""

    def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        table = self.view(rows)["block_table"]
        captured = self.device.read(table)
        super().stage(rows, arrays)
        if captured.any():
            self.device.copy_(table, captured)


def test_a_stale_block_table_reads_somebody_elses_context() -> None:
    """vLLM 55336 and 34948: metadata went on pointing at what was there at capture."""
    assert served(full_engine(CopiesTheBlockTableOnce)) != EXPECTED


class RebindsTheInput(ModelInputs):
    """`self.input_ids = new` in place of `self.input_ids.copy_(new)`; all else is copied."""

    def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        new = np.zeros(len(self.buffers["input_ids"]), np.int32)
        new[: len(arrays["input_ids"])] = arrays["input_ids"]
        self.buffers["input_ids"] = self.device.upload(new)
        super().stage(rows, arrays)  # into the new buffer, which no graph knows


def test_an_input_rebound_instead_of_copied_replays_the_old_one() -> None:
    """The graph reads the address it captured, not the one that the name has now."""
    assert served(full_engine(RebindsTheInput)) != EXPECTED


def test_a_kept_output_is_overwritten_by_the_next_replay() -> None:
    """pytorch issue 148439: a result must be read, or copied, before the graph runs again."""
    device = small_device()
    runner = scaled(device)
    runner.capture()
    first = runner.run(2, {"x": np.ones((2, 3), np.float32)})
    copied = device.read(first)
    runner.run(2, {"x": np.full((2, 3), 7, np.float32)})
    assert (copied == 2).all()
    assert (device.read(first) == 14).all()


def test_a_ladder_with_a_gap_drops_batches_out_of_the_graphs() -> None:
    """nano-vllm with max_num_seqs=20: no rung holds 17 to 20, and `next()` raised StopIteration."""
    engine = sim_engine("FULL_DECODE_ONLY", (1, 2), limits=sim_engine().scheduler.limits)
    modes = []
    tokens = tokens_by_id(
        engine.run(REQUESTS, on_step=lambda r: modes.append((r.batch.num_reqs, r.descriptor.mode)))
    )
    assert tokens == EXPECTED  # right, and slow: all three decode eagerly together
    assert (3, CUDAGraphMode.NONE) in modes
    runner = engine.runner
    assert isinstance(runner, SimRunner)
    with pytest.raises(CaptureError, match=r"a batch of 3 fits no captured rung of \[1, 2\]"):
        runner.graphs[CUDAGraphMode.FULL].run(3, {})


def accumulating(device: Device, warm_up_on_null: bool) -> tuple[GraphRunner, Buffer]:
    """state += x: a forward that keeps something from step to step."""
    state = device.upload(np.zeros((4, 3), np.float32))
    inputs = StaticInputs(device, {"x": ((4, 3), "float32")})

    def forward(rows: int) -> Buffer:
        out = device.empty((rows, 3))
        device.launch(k.add, state[:rows], state[:rows], inputs.view(rows)["x"])
        device.launch(k.scale, out, state[:rows], by=1.0)
        return out

    runner = GraphRunner(device, forward, inputs, [4])
    device.copy_(inputs.buffers["x"], np.ones((4, 3), np.float32))  # a batch is in flight
    if not warm_up_on_null:
        inputs.clear = lambda: None  # type: ignore[method-assign]
    return runner, state


def test_a_warm_up_on_live_inputs_mutates_state() -> None:
    """onnxruntime 32243: the warm-up run was a step like any other, and it counted."""
    for on_null, expected in ((True, 1.0), (False, 2.0)):
        device = small_device()
        runner, state = accumulating(device, on_null)
        runner.capture()
        runner.run(4, {"x": np.ones((4, 3), np.float32)})
        assert (device.read(state) == expected).all()


def test_what_was_computed_only_in_the_warm_up_is_missing_from_the_graph() -> None:
    """tvm 15839 and vLLM PR 42444: a plan made once, outside, is frozen at what it was."""
    for cached, expected in ((False, 5.0), (True, 0.0)):
        device = small_device()
        inputs = StaticInputs(device, {"x": ((4, 3), "float32")})
        plan: dict[int, Buffer] = {}

        def forward(
            rows: int,
            device: Device = device,
            inputs: StaticInputs = inputs,
            plan: dict[int, Buffer] = plan,
            cached: bool = cached,
        ) -> Buffer:
            x, out = inputs.view(rows)["x"], device.empty((rows, 3))
            if not cached or rows not in plan:
                plan[rows] = device.empty((rows, 3))
                device.launch(k.scale, plan[rows], x, by=1.0)
            device.launch(k.scale, out, plan[rows], by=1.0)
            return out

        runner = GraphRunner(device, forward, inputs, [4])
        runner.capture()
        out = runner.run(4, {"x": np.full((4, 3), 5, np.float32)})
        assert (device.read(out) == expected).all()


def test_a_workspace_that_grew_after_capture_leaves_a_stale_pointer() -> None:
    """vLLM 55336: the graph still points at the old workspace, and somebody else is there now."""
    device = small_device()
    x, y = device.upload(np.ones(4, np.float32)), device.empty(4)
    workspace = device.upload(np.full(4, 3, np.float32))
    with device.capture() as graph:
        device.launch(k.multiply, y, x, workspace)
    graph.replay()
    assert (device.read(y) == 3).all()
    device.free(workspace)  # it grew: freed, and a larger one allocated
    device.upload(np.full(400, 9, np.float32))
    graph.replay()
    assert not (device.read(y) == 3).any()


def scaled(device: Device) -> GraphRunner:
    inputs = StaticInputs(device, {"x": ((2, 3), "float32")})

    def forward(rows: int) -> Buffer:
        out = device.empty((rows, 3))
        device.launch(k.scale, out, inputs.view(rows)["x"], by=2.0)
        return out

    return GraphRunner(device, forward, inputs, [2])
