"""The lazy wrapper acts as vLLM 0.33's does, call for call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labs.lab09b_cudagraph_mode.wrapper import ForwardContext, GraphWrapper, WeakBuffer
from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim import kernels as k
from mini_engine.sim.launch import Buffer
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


def test_a_wrapper_exists_for_modes_that_have_graphs() -> None:
    for mode in set(CUDAGraphMode) - {FULL, PIECEWISE}:
        with pytest.raises(ValueError, match="for FULL and PIECEWISE only"):
            Recorded(mode.name)
