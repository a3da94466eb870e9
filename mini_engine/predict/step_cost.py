"""How long a step of a real model takes: the launch model, run over a list of ops.

In:  ops (`mini_engine.predict.oplists`), a `DeviceSpec`, and how the step is launched:
     "eager"      every op is a launch of its own
     "piecewise"  runs of ops between splitting ops are graphs, the splitting ops are live launches
     "full"       one graph
Out: `StepTime`. `mini_engine.predict.step_model` gives the same numbers at the price of a few
additions.

A step, exactly as the simulated device runs it. Two clocks; every piece of work moves both:

    cpu   = max(cpu, end of the work queue_depth places before)  + what issuing it costs
    start = max(cpu, end of the work before + stream_gap_us)
    end   = start + its GPU time

The CPU begins with `host_step_us` for the engine, then issues one packed copy of the inputs, then
the model's work; at the end it waits for the GPU and reads a token back (`sync_us`). GPU time of a
kernel is max(bytes / copy bandwidth, flops / peak) + floor. A graph is one piece of work: its
nodes, and `graph_gap_us` between them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.launch_model import graph_launch_us
from mini_engine.predict.oplists import OpCost

Mode = Literal["eager", "piecewise", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)
Line = tuple[float, float]  # us, and us for each key that attention reads: see `step_model`


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


def step_time(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, requests: int = 1) -> StepTime:
    """One step from an idle device. Raises ValueError for no ops or an unknown mode."""
    works = [input_copy(spec), *launched(ops, spec, mode)]
    cpu_us = sum(work.cpu_us for work in works)
    serial_us, ahead_us = around(spec, requests)
    end_us = max(run(works, spec), cpu_us + ahead_us)
    return StepTime(
        itl_us=serial_us + end_us + spec.sync_us,
        cpu_us=serial_us + cpu_us + ahead_us,
        gpu_busy_us=sum(work.busy_us for work in works),
        launches=len(works),
        kernels=len(ops),
    )


def around(spec: DeviceSpec, requests: int) -> tuple[float, float]:
    """The engine's CPU time between two steps: while the GPU waits, and beside it (µs).

    What it does for each request goes with the larger of the two.
    """
    per_request_us = spec.request_us * requests
    if spec.ahead_us > spec.host_step_us:
        return spec.host_step_us, spec.ahead_us + per_request_us
    return spec.host_step_us + per_request_us, spec.ahead_us


def run(works: Iterable[Work], spec: DeviceSpec) -> float:
    """When the last work has ended on the GPU, in µs from the first launch."""
    cpu, end = 0.0, -math.inf
    outstanding: deque[float] = deque()  # when each of the last queue_depth works ends
    for work in works:
        if len(outstanding) == spec.queue_depth:
            cpu = max(cpu, outstanding.popleft())
        cpu += work.cpu_us
        end = max(cpu, end + spec.stream_gap_us) + work.gpu_us
        outstanding.append(end)
    return end


# ---------------------------------------------------------------- from ops to work


def kernel_us(op: OpCost, spec: DeviceSpec) -> float:
    """GPU time of one kernel: the slower of memory and arithmetic, and the floor. An empty kernel
    takes none: what it costs is the gap to the next."""
    if not op.bytes and not op.flops:
        return 0.0
    bandwidth, tflops = rates(op, spec)
    memory_us = op.bytes / (bandwidth * 1e3)  # 1 GB/s is 1e3 bytes a µs
    compute_us = op.flops / (tflops * 1e6)  # 1 TFLOP/s is 1e6 a µs
    return max(memory_us, compute_us) + spec.kernel_floor_us


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
    if mode == "eager":
        return [_live(op, spec, spec.cpu_op_us) for op in ops]
    if mode == "full":
        return [_graph(list(ops), spec)]
    if mode != "piecewise":
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    works: list[Work] = []
    for splitting, group in groupby(ops, key=lambda op: op.splitting):
        piece = list(group)
        works += (
            [_live(op, spec, spec.live_op_us) for op in piece]
            if splitting
            else [_graph(piece, spec)]
        )
    return works


def input_copy(spec: DeviceSpec) -> Work:
    """All inputs of a step in one copy: small, so that on the GPU only its floor counts."""
    return Work(spec.copy_us, spec.kernel_floor_us, spec.kernel_floor_us, 0)


def _live(op: OpCost, spec: DeviceSpec, cpu_us: float) -> Work:
    gpu_us = kernel_us(op, spec)
    return Work(cpu_us, gpu_us, gpu_us, 1)


def _graph(ops: Sequence[OpCost], spec: DeviceSpec) -> Work:
    busy_us = sum(kernel_us(op, spec) for op in ops)
    gaps_us = (len(ops) - 1) * spec.graph_gap_us
    return Work(graph_launch_us(len(ops), spec), busy_us + gaps_us, busy_us, len(ops))
