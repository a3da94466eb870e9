"""One decode step of any list of ops on the simulated GPU, as a timeline.

In:  ops (`mini_engine.step.kernels`, or recorded from a running model), a `DeviceSpec`, and how
     the step is launched: "eager", "piecewise" or "full".
Out: what the CPU and the GPU would do, as `TraceEvent`s; time 0 is the start of the step.

    events = op_timeline(step_ops(shape, StepShape.decode(1, 512), "fused5"), spec, "full")

The ops are mere figures: nothing is computed. `mini_engine.step.run` gives the length of
the same step to the µs, without a timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby

from mini_engine.sim.device import Device
from mini_engine.sim.launch import cost_kernel
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost
from mini_engine.step.run import MODES, Mode, around


def op_timeline(
    ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1
) -> tuple[TraceEvent, ...]:
    """Engine, copy of the inputs, `ops`, read-back. ValueError for no ops or an unknown mode."""
    if not ops:
        raise ValueError("a step without ops: give at least one")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    device = Device(spec, compute=False)
    pieces = _pieces(device, ops, mode)  # captured here, which no step waits for
    with device.clocks.recorded() as events:
        before_us, beside_us = around(spec, num_reqs)
        device.host_work("schedule and prepare", before_us)
        device.copy_batch([])
        with device.live() if mode == "piecewise" else nullcontext():
            for run in pieces:
                run()
        device.host_work("schedule the next step", beside_us)
        device.synchronize()
    return tuple(events)


def _pieces(device: Device, ops: Sequence[OpCost], mode: Mode) -> list[Callable[[], None]]:
    """What the CPU does in turn: live launches, and replays of graphs."""
    if mode == "eager":
        return [partial(launch_ops, device, ops)]
    if mode == "full":
        return [_captured(device, ops, "graph")]
    return [
        partial(launch_ops, device, list(group))
        if splitting
        else _captured(device, list(group), f"piece {number // 2 + 1}")
        for number, (splitting, group) in enumerate(groupby(ops, key=lambda op: op.splitting))
    ]


def _captured(device: Device, ops: Sequence[OpCost], name: str) -> Callable[[], None]:
    with device.capture(name=name) as graph:
        launch_ops(device, ops)
    return graph.replay


def launch_ops(device: Device, ops: Sequence[OpCost]) -> None:
    """Each op as a launch that costs what the op does and computes nothing."""
    for op in ops:
        device.launch(cost_kernel(op.name, op.bytes, op.flops, op.kind))
