"""What machine this is, and the few figures that tell at once whether it is in order.

In:  a `GraphBackend`. Out: figures of a measurement: card, host, versions; the bandwidth of a copy;
     a kernel that does nothing, in a stream and in a graph; a small norm in a graph with PDL.

Seconds, and before anything else: a run that ends here still says what the rest would have been
measured on.
"""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

import torch

from mini_engine.bench.calibrate import (
    captured,
    copy_bandwidth,
    dummy_kernel,
    pdl_figures,
    sizes_for,
)
from mini_engine.bench.evidence import gpu_state, version
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.timing import device_us, spin
from mini_engine.cuda.graphs.backend import GraphBackend

TOOLS = ("gcc", "nvcc", "ncu", "nsys", "compute-sanitizer")  # compilers and profilers at hand
PACKAGES = ("numpy", "torch", "triton", "transformers", "safetensors", "tokenizers", "pytest")


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
        "cpus": os.cpu_count(),
        "cuda": torch.version.cuda or "none",
        "packages": {name: version(name) for name in PACKAGES},
        "tools": [tool for tool in TOOLS if shutil.which(tool)],
    }
    if not backend.emulated:
        card = torch.cuda.get_device_properties()
        found |= {
            "sm": 10 * card.major + card.minor,
            "sm_count": card.multi_processor_count,
            "memory_bytes": card.total_memory,
            "l2_bytes": card.L2_cache_size,
            "state": gpu_state(),
        }
    return found


def null_kernel(backend: GraphBackend) -> dict[str, dict[str, Any]]:
    """µs from the start of one kernel to the start of the next: `stream_us` with the CPU launching
    each, which it may not do fast enough; `graph_us` as nodes of a graph; and those of PDL."""
    nodes, repeats = (32, 4) if backend.emulated else (1024, 12)
    dummy = dummy_kernel(backend)
    spin(backend, lambda: dummy(0))
    in_stream = device_us(backend, lambda: dummy(0), min(nodes, 400), repeats)
    graph, _, _ = captured(backend, dummy, nodes, 0)
    in_graph = [us / nodes for us in device_us(backend, graph.replay, 1, repeats)]
    graph.reset()
    return {
        "stream_us": median_interval(in_stream).as_dict(),
        "graph_us": median_interval(in_graph).as_dict(),
        **pdl_figures(backend, nodes, repeats),
    }
