"""The lazy wrapper acts as vLLM 0.33's does, call for call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.launch import Buffer, UseAfterFree
from mini_engine.sim.wrapper import ForwardContext, GraphWrapper, WeakBuffer
from tests.support.sim_helpers import small_device
from tests.support.vllm_vectors import label, vectors

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


class Recorded:
    """A wrapper around y = 2x, and what each call did."""

    def __init__(self, mode: str, debug: bool = False, weak_output: bool = True) -> None:
        self.device, self.context = small_device(), ForwardContext()
        self.calls = 0
        self.wrapper = GraphWrapper(
            self.device, self.function, CUDAGraphMode[mode], self.context,
            debug=debug, weak_output=weak_output,
        )  # fmt: skip
        self.inputs: dict[int | None, Buffer] = {}

    def function(self, x: Buffer) -> Buffer:
        self.calls += 1
        out = self.device.empty(x.shape)
        self.device.launch(k.scale, out, x, by=2.0)
        return out

    def call(self, step: dict[str, Any]) -> Buffer:
        self.context.capturing_enabled = step.get("capturing_enabled", True)
        descriptor = None
        if step.get("forward_context", True):
            mode = CUDAGraphMode[step["ctx_mode"]]
            descriptor = BatchDescriptor(mode, step["num_tokens"] or 0)
        address = step.get("addr")
        if address not in self.inputs:
            self.inputs[address] = self.device.upload(np.ones(4, np.float32))
        with self.context.holding(descriptor):
            return self.wrapper(self.inputs[address])


@pytest.mark.parametrize("vector", vectors("wrapper"), ids=label)
def test_the_wrapper_runs_captures_and_replays_as_vllm_0_33_does(vector: dict[str, Any]) -> None:
    recorded = Recorded(vector["wrapper_mode"], vector["debug_logging"], vector["weak_ref_output"])
    errors = {"RuntimeError": RuntimeError, "AssertionError": AssertionError}
    for entry in vector["steps"]:
        step, expect = entry["step"], entry["expect"]
        calls, graphs = recorded.calls, recorded.device.counters.graphs
        if expect["action"] == "raise":
            with pytest.raises(errors[expect["error"]]) as error:
                recorded.call(step)
            sentence = expect["message"].partition(" [")[0]  # addresses are our own
            assert str(error.value).startswith(sentence)
        else:
            output = recorded.call(step)
            replayed = recorded.device.counters.graphs - graphs
            assert recorded.calls - calls == expect["runnable_called"]
            assert replayed == (expect["action"] == "replay")
            assert isinstance(output, WeakBuffer) == (expect["returns"] == "weakref_output")
            garbage = np.isnan(recorded.device.read(output)).all()
            assert garbage == (expect["action"] == "capture")
        assert len(recorded.wrapper.entries) == expect["entries"]


def test_a_moved_input_replays_silently_on_the_old_memory() -> None:
    recorded = Recorded("FULL")
    recorded.call({"ctx_mode": "FULL", "num_tokens": 4, "addr": 1})
    recorded.inputs[2] = recorded.device.upload(np.full(4, 50, np.float32))
    output = recorded.call({"ctx_mode": "FULL", "num_tokens": 4, "addr": 2})
    assert (recorded.device.read(output) == 2).all()


def test_a_wrapper_exists_for_modes_that_have_graphs() -> None:
    for mode in set(CUDAGraphMode) - {FULL, PIECEWISE}:
        with pytest.raises(ValueError, match="for FULL and PIECEWISE only"):
            Recorded(mode.name)


class Nested:
    """y = 3 (2x + 0): piece, a live copy that stands for attention, piece; FULL around it all."""

    def __init__(self, weak: tuple[bool, bool]) -> None:
        self.device, self.context = small_device(), ForwardContext()
        self.pool = self.device.memory.new_pool()
        self.x = self.device.upload(np.arange(4, dtype=np.float32))
        self.attended = self.device.upload(np.zeros(4, np.float32))
        self.first, self.second = (
            GraphWrapper(
                self.device, function, PIECEWISE, self.context, pool=self.pool, weak_output=weak_it
            )
            for function, weak_it in zip((self.double, self.triple), weak, strict=True)
        )
        self.whole = GraphWrapper(self.device, self.forward, FULL, self.context, pool=self.pool)

    def double(self, x: Buffer) -> Buffer:
        out = self.device.empty(x.shape)
        self.device.launch(k.scale, out, x, by=2.0)
        return out

    def triple(self, residual: Buffer, attended: Buffer) -> Buffer:
        scratch, out = self.device.empty(attended.shape), self.device.empty(attended.shape)
        self.device.launch(k.scale, scratch, attended, by=2.0)
        self.device.launch(k.add, out, scratch, residual)
        self.device.free(scratch)
        return out

    def forward(self, x: Buffer) -> Buffer:
        residual = self.first(x)
        self.device.copy_(self.attended, residual)
        return self.second(residual, self.attended)

    def run(self, mode: CUDAGraphMode) -> tuple[np.ndarray, int]:
        """The output, and how many graphs were launched for it."""
        before = self.device.counters.graphs
        with self.context.holding(BatchDescriptor(mode, 4)):
            output = self.whole(self.x)
        return self.device.read(output), self.device.counters.graphs - before


def test_of_nested_wrappers_the_one_whose_mode_the_context_holds_has_the_graph() -> None:
    nested = Nested(weak=(False, True))
    right = 6 * np.arange(4, dtype=np.float32)
    for mode, graphs in ((CUDAGraphMode.NONE, 0), (PIECEWISE, 2), (FULL, 1)):
        if mode is not CUDAGraphMode.NONE:
            assert nested.run(mode)[1] == 0, "a capture launches no graph"
        output, launched = nested.run(mode)
        assert launched == graphs
        assert (output == right).all()
    assert [len(w.entries) for w in (nested.whole, nested.first, nested.second)] == [1, 1, 1]
    (entry,) = nested.whole.entries.values()
    assert entry.graph is not None
    assert len(entry.graph.nodes) == 4, "the pieces' kernels and the live one between them"


def test_a_weak_output_that_a_later_piece_reads_is_overwritten_by_that_piece() -> None:
    nested = Nested(weak=(True, True))
    nested.run(PIECEWISE)
    output, _ = nested.run(PIECEWISE)
    assert not (output == 6 * np.arange(4)).all(), "triple's scratch took the memory of residual"


def test_a_weak_output_leaves_its_memory_to_the_next_capture_and_a_kept_one_does_not() -> None:
    for weak, reserved in ((True, 0), (False, 1024)):
        recorded = Recorded("FULL", weak_output=weak)
        for tokens in (8, 4):
            recorded.call({"ctx_mode": "FULL", "num_tokens": tokens})
        assert recorded.device.memory.allocated_bytes(recorded.wrapper.pool) == reserved


def test_a_weak_buffer_is_read_and_sliced_after_its_memory_was_freed() -> None:
    device = small_device()
    buffer = device.upload(np.arange(4, dtype=np.float32))
    weak = WeakBuffer(buffer)
    device.free(buffer)
    with pytest.raises(UseAfterFree):
        device.read(buffer)
    again = device.upload(np.arange(10, 14, dtype=np.float32))
    assert again.address == weak.address
    assert device.read(weak[1:3]).tolist() == [11, 12]


def test_after_a_capture_that_failed_the_next_call_captures() -> None:
    recorded = Recorded("PIECEWISE")
    step = {"ctx_mode": "PIECEWISE", "num_tokens": 4}
    device, right = recorded.device, recorded.wrapper.function

    def waits(x: Buffer) -> Buffer:
        device.synchronize()
        return right(x)

    recorded.wrapper.function = waits
    with pytest.raises(CaptureError):
        recorded.call(step)
    recorded.wrapper.function = right
    recorded.call(step)
    assert (device.read(recorded.call(step)) == 2).all()


def test_a_context_holds_a_descriptor_for_its_body_and_after_an_error_no_longer() -> None:
    context, outer = ForwardContext(), BatchDescriptor(FULL, 4)
    with context.holding(outer):
        with pytest.raises(KeyError), context.holding(BatchDescriptor(PIECEWISE, 8)):
            raise KeyError
        assert context.descriptor is outer
    assert context.descriptor is None
