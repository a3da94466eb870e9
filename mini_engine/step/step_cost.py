"""How long a step of a real model takes: the launch model, run over a list of ops.

In:  ops (`mini_engine.step.oplists`), a `DeviceSpec`, and how the step is launched:
     "eager"      every op is a launch of its own
     "piecewise"  runs of ops between splitting ops are graphs, the splitting ops are live launches
     "full"       one graph
Out: `StepTime`. `mini_engine.step.step_model` gives the same ITL in a fraction of the time.

A step runs exactly as on the simulated device. There are two clocks, and every piece of work moves
both:

    cpu   = max(cpu, end of the work queue_depth places before)  + what issuing it costs
    start = max(cpu, end of the work before + stream_gap_us)
    end   = start + its GPU time

The CPU spends `host_step_us` in the engine, then issues one packed copy of the inputs and the
model's work. An engine that schedules ahead then prepares the next step while the GPU runs
(`ahead_us`). At the end the CPU waits for the GPU and reads a token back (`sync_us`).

The GPU time of a kernel is max(bytes / bandwidth, flops / peak) + floor, at the bandwidth and the
peak that its kind of kernel reaches. An empty kernel takes no time of its own, only the gap to the
next. A graph is one piece of work: its nodes, with `graph_gap_us` between them. Where they are
launched with PDL (programmatic dependent launch), `with_pdl(spec)` has what a boundary then costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, repeat
from typing import Literal, NamedTuple, get_args

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.oplists import OpCost, StepShape

Mode = Literal["eager", "piecewise", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)
LAUNCHED_AS: dict[CUDAGraphMode, Mode] = {  # of a batch's run-time mode
    CUDAGraphMode.NONE: "eager",
    CUDAGraphMode.PIECEWISE: "piecewise",
    CUDAGraphMode.FULL: "full",
}


class Work(NamedTuple):
    """One piece of work in the stream: a kernel, a graph or the copy of the inputs."""

    cpu_us: float  # to issue it
    gpu_us: float  # from its start to its end
    busy_us: float  # of that, with a kernel running
    kernels: int


@dataclass(frozen=True)
class StepTime:
    """One step. `launches` counts kernels, graphs and the copy; `kernels` leaves the copy out."""

    itl_us: float
    cpu_us: float  # CPU at work before the read-back: engine, copy, launches
    gpu_busy_us: float  # GPU at work: gaps left out
    launches: int
    kernels: int

    @property
    def utilisation(self) -> float:
        """The share of the step in which the GPU works, 0 to 1."""
        return self.gpu_busy_us / self.itl_us


def step_time(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1) -> StepTime:
    """One step from an idle device. Raises ValueError for no ops or an unknown mode."""
    works = [input_copy(spec), *launched(ops, spec, mode)]
    return StepTime(
        itl_us=itl_us(works, spec, num_reqs),
        cpu_us=sum(around(spec, num_reqs)) + sum(work.cpu_us for work in works),
        gpu_busy_us=sum(work.busy_us for work in works),
        launches=len(works),
        kernels=len(ops),
    )


def around(spec: DeviceSpec, num_reqs: int) -> tuple[float, float]:
    """The engine's CPU time around a step: before it, while the GPU waits, and beside it (µs).

    What each request costs goes with the larger of the two.
    """
    requests_us = spec.request_us * num_reqs
    if spec.ahead_us > spec.host_step_us:
        return spec.host_step_us, spec.ahead_us + requests_us
    return spec.host_step_us + requests_us, spec.ahead_us


def itl_us(works: Iterable[Work], spec: DeviceSpec, num_reqs: int) -> float:
    """From the start of one step to the start of the next."""
    before_us, beside_us = around(spec, num_reqs)
    cpu_us, end_us = run(works, spec)
    return before_us + max(end_us, cpu_us + beside_us) + spec.sync_us


def run(works: Iterable[Work], spec: DeviceSpec) -> tuple[float, float]:
    """When the CPU has issued the last work, and when that has ended on the GPU (µs)."""
    cpu, end, gap = 0.0, -math.inf, spec.stream_gap_us
    ends: list[float] = []
    rooms = chain(repeat(-math.inf, spec.queue_depth), ends)  # when the queue has room for a work
    for work, room in zip(works, rooms, strict=False):
        cpu = (cpu if cpu > room else room) + work.cpu_us  # max() would be slower
        end += gap
        end = (cpu if cpu > end else end) + work.gpu_us
        ends.append(end)
    return cpu, end


# ---------------------------------------------------------------- from batches to ops to work


def padded_step(
    descriptor: BatchDescriptor, num_reqs: int, kv_tokens: int = 0, qk_pairs: int = 0
) -> tuple[Mode, StepShape]:
    """How a batch runs as this descriptor: the way its work is launched, and its padded shape.

    Rows of padding have no keys to read. A full graph contains the head, so the rows that get
    logits are padded too; the engine works only for the requests that there are.
    """
    reqs = descriptor.num_reqs or num_reqs
    shape = StepShape(descriptor.num_tokens, reqs, kv_tokens, qk_pairs, num_reqs)
    return LAUNCHED_AS[descriptor.mode], shape


def kernel_us(op: OpCost, spec: DeviceSpec) -> float:
    """GPU time of one kernel: the slower of memory and arithmetic, plus the floor.

    An empty kernel takes none: all that it costs is the gap to the next.
    """
    if not op.bytes and not op.flops:
        return 0.0
    bandwidth, tflops = rates(op, spec)
    memory_us = op.bytes / (bandwidth * 1e3)  # 1 GB/s is 1e3 bytes a µs
    compute_us = op.flops / (tflops * 1e6)  # 1 TFLOP/s is 1e6 a µs
    slower_us = memory_us if memory_us > compute_us else compute_us  # max() would be slower
    return slower_us + spec.kernel_floor_us


def rates(op: OpCost, spec: DeviceSpec) -> tuple[float, float]:
    """GB/s and TFLOP/s that this kind of kernel reaches."""
    if op.kind == "product":
        return spec.product_gb_s, spec.product_tflops
    if op.kind == "attention":
        return spec.attention_gb_s, spec.product_tflops
    return spec.copy_bandwidth_gb_s, spec.product_tflops


def launched(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> list[Work]:
    """The ops as pieces of work. Raises ValueError for no ops or an unknown mode."""
    if not ops:
        raise ValueError("a step without ops: give at least one")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "full":
        return [graph_work([kernel_us(op, spec) for op in ops], spec)]
    works: list[Work] = []
    for splitting, group in groupby(ops, key=lambda op: op.splitting):
        times_us = [kernel_us(op, spec) for op in group]
        if mode == "eager" or splitting:
            cpu_us = spec.cpu_op_us if mode == "eager" else spec.live_op_us
            works += [Work(cpu_us, us, us, 1) for us in times_us]
        else:
            works.append(graph_work(times_us, spec))
    return works


def input_copy(spec: DeviceSpec) -> Work:
    """All inputs of a step in one copy: small, so that on the GPU only its floor counts."""
    return Work(spec.copy_us, spec.kernel_floor_us, spec.kernel_floor_us, 0)


def graph_work(times_us: Sequence[float], spec: DeviceSpec) -> Work:
    """One graph, from the GPU time of each of its kernels."""
    nodes, busy_us = len(times_us), sum(times_us)
    gpu_us = busy_us + (nodes - 1) * spec.graph_gap_us
    return Work(graph_launch_us(nodes, spec), gpu_us, busy_us, nodes)


def with_pdl(spec: DeviceSpec) -> DeviceSpec:
    """The same device where every node of a graph is launched with PDL: it starts while the node
    before it drains, loads its weights, and waits. On a card without PDL nothing changes.

    `pdl_saves_us` comes off the gap between two nodes; what it is more than that comes off the
    ramp-up and drain of a kernel. Neither falls below zero.

    What this leaves out. The bytes that move while a kernel waits are charged in full, so a step of
    large kernels may be faster. All kernels save the same, whatever they do between wait and end.
    And the floor of hand-written kernels was fitted to two published loops that had PDL already:
    until it is measured without, what PDL saves may be counted twice, once there and once here.
    """
    gap_us = min(spec.pdl_saves_us, spec.graph_gap_us)
    floor_us = min(spec.pdl_saves_us - gap_us, spec.kernel_floor_us)
    return replace(
        spec,
        graph_gap_us=spec.graph_gap_us - gap_us,
        kernel_floor_us=spec.kernel_floor_us - floor_us,
    )
