"""A decode step of Qwen3-0.6B on a simulated GPU: launched piece by piece, or out of a recording.

In:  a device that counts costs, and a function that launches a step. Out: the step's events on two
lanes, CPU and GPU. The holes are `record` and `feed`; the rest is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mini_engine.model.config import named_shape
from mini_engine.sim.capture import Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer, cost_kernel
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import around, issue_live_us, kernel_us

Step = Callable[[], None]


def launches_of_a_token(device: Device) -> tuple[Step, Step]:
    """What vLLM launches for a token, as two functions: the model, and the choice of the token,
    which PyTorch launches behind it, with a graph or without one. Each call launches anew."""
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), device.spec.ops)

    def launch(by_torch: bool) -> None:
        for op in (op for op in ops if (op.by == "torch") is by_torch):
            if device.recorder:  # under a capture, which writes it down
                device.launch(cost_kernel(op.name, op.bytes, op.flops, op.kind))
            else:  # PyTorch and compiled code take less of the CPU for a launch than vLLM's Python
                issue_us = issue_live_us(device.spec, "eager", op.by)
                device.issue(op.name, issue_us, "kernel", [(op.name, kernel_us(op, device.spec))])

    return partial(launch, False), partial(launch, True)


def record(device: Device, step: Step) -> Graph:
    """Record all launches of `step` into one graph, and run none of them. Returns the graph.

    `with device.capture() as graph:` records what is launched in its body. `graph.replay()` runs
    the recording with one launch, later, as often as somebody wants a token.
    """
    with device.capture() as recording:
        step()
    return recording


def feed(device: Device, graph: Graph, place: Buffer, values: np.ndarray) -> None:
    """Play a recorded step once more, on other values. `place` is the memory on the device that
    the step read when it was recorded, and `values` is an array of its shape.

    `device.copy_(target, array)` copies an array to a place, `device.upload(array)` makes a new
    place for it and returns that.
    """
    device.copy_(place, values)
    graph.replay()


def played(device: Device, model: Step, choice: Step) -> list[TraceEvent]:
    """One token: the engine prepares it, copies the inputs, has `model` and `choice` launched, and
    waits. `model` is a function that launches, or the replay of a graph."""
    before_us, beside_us = around(device.spec, 1)
    device.synchronize()
    seen, began_us = len(device.timeline), device.cpu_us
    device.host_work("schedule and prepare", before_us)
    device.copy_batch([])
    model()
    choice()
    device.host_work("schedule the next step", beside_us)
    device.synchronize()
    events = device.timeline[seen:]
    return [replace(event, start_us=event.start_us - began_us) for event in events]
