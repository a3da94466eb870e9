"""How long a decode step takes, on the back of an envelope: the arithmetic of launch overhead.

    h200 = load_spec("h200")
    eager_itl_us(310, 3.3, h200)      # the CPU is late for every kernel: 310 x cpu_op_us and a bit
    full_itl_us(310, 3.3, h200)       # one launch: the GPU never waits for another

CPU and GPU work side by side. The CPU issues kernel after kernel; a kernel starts when it has
been issued *and* the one before it has ended, plus a gap. So a step is as long as the later of
two chains: the CPU issuing everything, or the GPU running everything.

All kernels are equally long here, which makes every formula exact; `run` does the same for real
lists of kernels. What each request adds to the engine's work is left out."""

from __future__ import annotations

import math

from mini_engine.step.cards import DeviceSpec


def eager_itl_us(kernels: int, kernel_us: float, spec: DeviceSpec) -> float:
    """One launch for each kernel. `kernel_us`: GPU time of one, its floor included, no gap. The
    first kernel starts when it has been issued and the copy of the inputs has ended
    (`_first_start_us`). Raises ValueError for fewer than 1 kernel, or for kernels of no length."""
    _check(kernels, kernel_us)
    issue, gap = spec.cpu_op_us, spec.stream_gap_us
    cpu_late = kernels * issue + kernel_us  # the GPU waits for every launch, the last one too
    gpu_late = _first_start_us(issue, spec) + kernels * kernel_us + (kernels - 1) * gap
    return _step_us(kernels * issue, max(cpu_late, gpu_late), spec)


def full_itl_us(kernels: int, kernel_us: float, spec: DeviceSpec) -> float:
    """One launch for all kernels: the CPU pays once, the gaps are those between graph nodes. The
    first node starts when the graph has been launched and the copy of the inputs has ended. Raises
    ValueError as `eager_itl_us` does."""
    _check(kernels, kernel_us)
    launch = graph_launch_us(kernels, spec)
    end = _first_start_us(launch, spec) + graph_us(kernels, kernel_us, spec)
    return _step_us(launch, end, spec)


def utilisation(kernels: int, kernel_us: float, itl_us: float) -> float:
    """The share of the step in which the GPU runs a kernel, 0 to 1."""
    return kernels * kernel_us / itl_us


def crossover(kernels: int, base_us: float, request_us: float, spec: DeviceSpec) -> int:
    """The smallest batch, 1 or more, at which eager launching no longer holds the GPU up. Together,
    the kernels of a batch of b run for base_us + b * request_us: the weights, which are read once
    whatever the batch, and what each request adds (its KV). Floors and gaps come on top. What the
    engine does around the step, or ahead of the next, is no launching and does not count."""
    hidden_us = kernels * (spec.cpu_op_us - spec.kernel_floor_us - spec.stream_gap_us)
    return max(1, math.ceil((hidden_us - base_us) / request_us))


def break_even_replays(capture_us: float, eager_us: float, graph_us: float) -> float:
    """The number of replays after which a graph has paid for warm-up, capture and instantiation. A
    whole number: the last of them may save more than is missing. Infinite when a replay saves
    nothing."""
    saved_us = eager_us - graph_us
    return math.ceil(capture_us / saved_us) if saved_us > 0 else math.inf


# ---------------------------------------------------------------- parts


def graph_launch_us(nodes: float, spec: DeviceSpec) -> float:
    """CPU time to launch a graph: nearly the same for 10 nodes and for 1,000."""
    return spec.graph_launch_us + spec.graph_node_ns * nodes / 1000


def graph_us(nodes: float, kernel_us: float, spec: DeviceSpec) -> float:
    """GPU time from the start of the first node to the end of the last."""
    return nodes * kernel_us + (nodes - 1) * spec.graph_gap_us


def _first_start_us(issue_us: float, spec: DeviceSpec) -> float:
    """When the first work can start, counted from when the copy of the inputs is issued. It must
    have been issued itself, and the copy, which is work for the GPU too, must have ended."""
    return max(issue_us, spec.kernel_floor_us + spec.stream_gap_us)


def _step_us(issued_us: float, ended_us: float, spec: DeviceSpec) -> float:
    """The whole step: `issued_us` is when the CPU has issued the last kernel, `ended_us` is when
    the GPU has ended it, both counted from when the copy of the inputs is issued. The engine works
    and the copy is issued before that; after it comes the read-back. An engine that schedules ahead
    does so while the GPU runs."""
    before_us = spec.host_step_us + spec.copy_us
    return before_us + max(ended_us, issued_us + spec.ahead_us) + spec.sync_us


def _check(kernels: int, kernel_us: float) -> None:
    if kernels < 1 or kernel_us <= 0:
        raise ValueError(f"{kernels} kernels of {kernel_us} us: expected 1 or more, above 0 us")
