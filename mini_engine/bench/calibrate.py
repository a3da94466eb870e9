"""What this machine charges: micro-measurements, each the simplest program that shows its figure,
with its interval. `spec_fit.py` makes a card and a host of them; `op_on_cpu_us` needs no GPU.

The dummy kernel, `torch.cuda._sleep(cycles)`, spins in one thread and is launched without the
dispatcher: the CPU pays for the launch alone. On the emulator it adds a number, and means nothing.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from mini_engine.bench.decode_setup import build_setup
from mini_engine.bench.intervals import line_fit, median_interval
from mini_engine.bench.timing import device_us, host_us, spin
from mini_engine.bench.variants import OursEager, no_kernels
from mini_engine.cuda.generate import no_pdl
from mini_engine.cuda.graphs.backend import Graph, GraphBackend, graphs_for
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import tiny_shape

Figure = dict[str, Any]  # median, low, high, samples; fits: value and residuals
Dummy = Callable[[int], object]


class Sizes(NamedTuple):
    repeats: int
    copy_bytes: int  # far above the L2 cache
    matmul_n: int
    nodes: tuple[int, ...]  # of the graphs
    launches: int  # in a row: below the launches that a driver queues
    busy_cycles: int  # a dummy that lasts longer than a launch takes


def sizes_for(backend: GraphBackend) -> Sizes:
    if backend.emulated:
        return Sizes(4, 1 << 16, 32, (1, 8, 32), 16, 1)
    return Sizes(12, 1 << 29, 8192, (1, 64, 256, 1024), 400, 40_000)


def measure(
    backend: GraphBackend, sizes: Sizes, dtype: torch.dtype = torch.bfloat16
) -> Iterator[tuple[str, Figure]]:
    dummy = dummy_kernel(backend)
    raw = host_us(backend, lambda: dummy(0), sizes.launches, sizes.repeats)
    yield "launch_us", _median(raw)
    yield "op_us", decoder_op_us(backend, sizes.repeats, dtype)
    yield from _graph_figures(backend, sizes, dummy, statistics.median(raw))
    yield from pdl_figures(backend, sizes.nodes[-1], sizes.repeats).items()
    yield "copy_bandwidth_gb_s", copy_bandwidth(backend, sizes)
    # Two matrices in turns, so that no cache keeps one: GB/s at which a product of one row reads
    # its weights, as in a decode step, and TFLOP/s of their own product.
    n = sizes.matmul_n
    a, b = (torch.randn((n, n), device=backend.device).to(dtype) for _ in range(2))
    rows = device_us(backend, lambda: (a[:1] @ a, a[:1] @ b), 4, sizes.repeats)
    yield "product_gb_s", _median([2 * 2 * n**2 / us / 1e3 for us in rows])
    squares = device_us(backend, lambda: a @ b, 4, sizes.repeats)
    yield "matmul_tflops", _median([2 * n**3 / us / 1e6 for us in squares])
    there = torch.zeros(256, dtype=torch.int32, device=backend.device)
    here = torch.zeros(256, dtype=torch.int32, pin_memory=not backend.emulated)
    copies = host_us(backend, lambda: there.copy_(here, non_blocking=True), 16, sizes.repeats)
    yield "copy_us", _median(copies)  # of the CPU, to start a small copy
    yield "sync_us", _median(host_us(backend, there[:1].tolist, 1, sizes.repeats))
    if not backend.emulated:
        card = torch.cuda.get_device_properties()
        yield "sm_count", {"value": card.multi_processor_count}
        yield "vram_bytes", {"value": card.total_memory}
        yield "graph_node_bytes", {"value": node_bytes(backend, dummy, sizes.nodes[-1])}


def dummy_kernel(backend: GraphBackend) -> Dummy:
    """A call that queues one kernel, which does nothing for the cycles given."""
    if not backend.emulated:
        return torch.cuda._sleep
    number = torch.zeros(1)
    return lambda _: number.add_(1)


def _median(samples: Sequence[float] | np.ndarray) -> Figure:
    return asdict(median_interval(list(samples)))


def decoder_op_us(backend: GraphBackend, repeats: int, dtype: torch.dtype) -> Figure:
    """CPU time of an eager op: the step of a decoder of two layers, so small that no kernel
    outlasts its launch, divided by its ops."""
    with torch.no_grad():
        weights = random_weights(tiny_shape(), backend.device, dtype, seed=0)
        variant = OursEager(build_setup(backend, weights, batch=1, context=16, room=64))
        ops = len(variant.ops())
        step_us = host_us(backend, variant.step, 1, repeats)
    return {**_median([us / ops for us in step_us]), "ops": ops}


def op_on_cpu_us(repeats: int) -> Figure:
    """The same on CPU tensors, in float32: with arithmetic on a few hundred floats, no launch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # ops so small that threads would only wait for each other
    try:
        return decoder_op_us(graphs_for("cpu"), repeats, torch.float32)
    finally:
        torch.set_num_threads(threads)


def _graph_figures(
    backend: GraphBackend, sizes: Sizes, dummy: Dummy, raw_us: float
) -> Iterator[tuple[str, Figure]]:
    """Each cost against the number of nodes, as a straight line with what it misses."""
    times, repeats = [], sizes.repeats
    captured(backend, dummy, 8)[0].reset()  # the first capture of a process pays for more
    for nodes in sizes.nodes:
        graph, body_us, exit_us = captured(backend, dummy, nodes)
        launch = statistics.median(host_us(backend, graph.replay, 1, repeats))
        graph.reset()
        device = nodes * statistics.median(node_us(backend, dummy, nodes, repeats))
        times.append((launch, device, body_us, exit_us))
    # base: µs, slope: µs a node; of graph_device an empty node, graph_gap_us
    every = zip(*times, strict=True)
    launched, on_device, record, make = (line_fit(sizes.nodes, each) for each in every)
    yield "graph_launch", launched
    yield "graph_device", on_device
    yield "capture", {**record, "slope_over_a_launch": record["slope"] - raw_us}
    yield "instantiate", make
    # stream_gap_us - graph_gap_us: the same kernels in a stream and in a graph, each so long that
    # the CPU is ahead either way
    count, busy = sizes.launches, sizes.busy_cycles
    in_graph = node_us(backend, dummy, count, repeats, busy)
    in_stream = device_us(backend, lambda: dummy(busy), count, repeats)
    yield "gap_difference_us", _median(in_stream - in_graph)
    # What a node that moves 8 KB takes longer than an empty one: ramp-up and drain of PyTorch's own
    # kernels. Another family of kernels has another floor.
    few = torch.zeros(1024, device=backend.device)
    few.add_(1)  # loads the kernel before a capture needs it
    moving = node_us(backend, lambda _: few.add_(1), sizes.nodes[-1], repeats)
    yield "kernel_floor_us", _median(moving - node_us(backend, dummy, sizes.nodes[-1], repeats))


def captured(
    backend: GraphBackend, work: Dummy, nodes: int, cycles: int = 0
) -> tuple[Graph, float, float]:
    """A graph of so many calls, µs to record its body, and µs to end and instantiate it."""
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle()):
        began = time.perf_counter()
        for _ in range(nodes):
            work(cycles)
        recorded = time.perf_counter()
    return graph, (recorded - began) * 1e6, (time.perf_counter() - recorded) * 1e6


def node_us(
    backend: GraphBackend, work: Dummy, nodes: int, repeats: int, cycles: int = 0
) -> np.ndarray:
    """µs of the device for each node of a graph of so many calls."""
    graph, _, _ = captured(backend, work, nodes, cycles)
    spin(backend, graph.replay)  # capturing left the GPU idle, and its clocks low
    times = device_us(backend, graph.replay, 1, repeats)
    graph.reset()
    return np.array(times) / nodes


def pdl_figures(backend: GraphBackend, nodes: int, rounds: int) -> dict[str, Figure]:
    """µs a node without PDL, with it, and what it saves, or None and why: an RMSNorm of one row, in
    a chain in which each node reads what the last one wrote, of so many `nodes` that launching the
    graph does not count. Both graphs are replayed in turns, each from an idle device: inside the
    last replay, overlap would count as saved."""
    names = "norm_node_us", "norm_node_pdl_us", "pdl_saves_us"
    if reason := no_kernels(backend) or no_pdl(backend):
        return {name: {"median": None, "reason": reason.partition(":")[0]} for name in names}
    from mini_engine.cuda.kernels.norm import rms_norm

    # One row of 1,024: one program, one pass, nothing that memory would slow down. Back and forth
    # between two rows, for the norm of a norm is the same row.
    rows = torch.ones((2, 1, 1024), device=backend.device, dtype=torch.bfloat16)
    weight = torch.ones(1024, device=backend.device, dtype=torch.bfloat16)

    def chain(pdl: bool) -> Graph:
        turn = itertools.cycle(((rows[1], rows[0]), (rows[0], rows[1])))
        rms_norm(*next(turn), weight, 1e-6, pdl)  # not to be compiled inside the capture
        backend.synchronize()
        return captured(backend, lambda _: rms_norm(*next(turn), weight, 1e-6, pdl), nodes)[0]

    graphs = chain(pdl=False), chain(pdl=True)
    spin(backend, graphs[0].replay)
    pairs = [[device_us(backend, graph.replay, 1, 1)[0] / nodes for graph in graphs]
             for _ in range(rounds)]  # fmt: skip
    for graph in graphs:
        graph.reset()
    saved = [without - with_it for without, with_it in pairs]
    return dict(zip(names, map(_median, (*zip(*pairs, strict=True), saved)), strict=True))


def node_bytes(backend: GraphBackend, dummy: Dummy, nodes: int) -> int:
    """Device memory that the driver holds for each node of a graph, at most: it takes megabytes."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # or the first capture does, and more is free after than before
    free = torch.cuda.mem_get_info()[0]
    graphs = [captured(backend, dummy, nodes)[0] for _ in range(8)]
    torch.cuda.synchronize()
    held = free - torch.cuda.mem_get_info()[0]
    for graph in graphs:
        graph.reset()
    return max(0, held // (8 * nodes))


def copy_bandwidth(backend: GraphBackend, sizes: Sizes) -> Figure:
    """GB/s within the device's memory, bytes read and bytes written."""
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, device=backend.device)
    target = torch.empty_like(source)
    times = device_us(backend, lambda: target.copy_(source), 4, sizes.repeats)
    return _median([2 * sizes.copy_bytes / us / 1e3 for us in times])
