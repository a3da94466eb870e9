"""What machine this is, and the few figures that tell at once whether it is in order.

In:  a `GraphBackend`. Out: figures of a measurement: card, host, versions, tools; the bandwidth of
     a copy; a kernel that does nothing, in a stream, in a graph, and in a graph with PDL.

Seconds, and before anything else: a run that ends here still says what the rest would have been
measured on.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from mini_engine.bench.blas import preferred
from mini_engine.bench.calibrate import captured, copy_bandwidth, dummy_kernel, sizes_for
from mini_engine.bench.evidence import gpu_state, version
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.timing import device_us
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.path import no_pdl, no_triton
from mini_engine.records.rows import Interval

TOOLS = ("gcc", "nvcc", "ncu", "nsys", "compute-sanitizer")  # compilers and profilers at hand
PACKAGES = ("numpy", "torch", "triton", "transformers", "safetensors", "tokenizers", "pytest")
CHAIN = {False: 1024, True: 32}  # nodes of a graph, on a GPU and emulated
REPEATS = {False: 12, True: 3}


def environment(backend: GraphBackend) -> dict[str, Any]:
    """All figures. What cannot be measured here is None, with the reason beside it."""
    return {
        "machine": machine(backend),
        "copy_bandwidth_gb_s": copy_bandwidth(backend, sizes_for(backend, quick=True)),
        "null_kernel": null_kernel(backend),
    }


def machine(backend: GraphBackend) -> dict[str, Any]:
    """Card, host, versions and tools. Names only: no path and no host's name."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "cuda": torch.version.cuda or "none",
        "packages": {name: version(name) for name in PACKAGES},
        "tools": {tool: _version_line(tool) for tool in TOOLS},
    }
    if not backend.emulated:
        card = torch.cuda.get_device_properties()
        found |= {
            "sm": 10 * card.major + card.minor,
            "sm_count": card.multi_processor_count,
            "memory_bytes": card.total_memory,
            "l2_bytes": card.L2_cache_size,
            "blas": preferred(),
            "state": gpu_state(),
        }
    return found


def null_kernel(backend: GraphBackend) -> dict[str, dict[str, Any]]:
    """µs from the start of one to the start of the next: `stream_us` with the CPU launching each,
    which it may not do fast enough; `graph_us` and `pdl_us` as nodes of a graph."""
    nodes, repeats = CHAIN[backend.emulated], REPEATS[backend.emulated]
    dummy = dummy_kernel(backend)
    launched = device_us(backend, lambda: dummy(0), min(nodes, 400), repeats)
    found = {"stream_us": median_interval(launched).as_dict()}
    if reason := no_triton(backend):
        return found | {name: {"median": None, "reason": reason} for name in ("graph_us", "pdl_us")}
    found["graph_us"] = _chain(backend, nodes, repeats, pdl=False).as_dict()
    if reason := no_pdl(backend):
        return found | {"pdl_us": {"median": None, "reason": reason}}
    return found | {"pdl_us": _chain(backend, nodes, repeats, pdl=True).as_dict()}


def _chain(backend: GraphBackend, nodes: int, repeats: int, *, pdl: bool) -> Interval:
    """µs a node. RuntimeError where the graph did not run as many nodes as it has."""
    from mini_engine.cuda.kernels.null import count

    cell = torch.zeros(1, dtype=torch.int32, device=backend.device)
    work: Callable[[int], object] = lambda _: count(cell, pdl)  # noqa: E731
    work(0)  # compiles before a capture needs it
    graph, _, _ = captured(backend, work, nodes, 0)
    cell.zero_()
    times = device_us(backend, graph.replay, 1, repeats)
    counted = int(cell.item())
    graph.reset()
    if counted != nodes * (repeats + 1):
        raise RuntimeError(f"{nodes} nodes replayed {repeats + 1} times counted to {counted}")
    return median_interval([us / nodes for us in times])


def _version_line(tool: str) -> str:
    """The line of `tool --version` with a number in it; "none" where the tool is missing."""
    path = shutil.which(tool)
    if path is None:
        return "none"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    lines = [line.strip() for line in done.stdout.splitlines()]
    numbered = [line for line in lines if any(c.isdigit() for c in line) and "(c)" not in line]
    return (numbered or lines or ["no version"])[0]
