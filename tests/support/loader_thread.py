"""A capture beside a thread that loads: what CUDA, or its emulator, tells each of them.

In: a backend and a `capture_error_mode`. Out: `Told`. As a program (`python -m
tests.support.loader_thread cuda global`) it prints one as JSON: on a GPU a capture that another
thread broke may spoil its process, so the test of that gives it one of its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TypedDict

import torch

from labs.support.loading import allocate, give_back
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for

LOADED_BYTES = 64 * 2**20  # more than an allocator keeps, once its cache has been emptied


class Told(TypedDict):
    """Errors, if any, and what the graph computed, if there is one."""

    loader: str | None
    capture: str | None
    result: list[float] | None


def capture_beside_a_loader(graphs: GraphBackend, mode: str) -> Told:
    """Another thread allocates device memory, on a stream of its own, while this one captures."""
    told: Told = {"loader": None, "capture": None, "result": None}
    x, side, graph = torch.ones(4, device=graphs.device), graphs.Stream(), graphs.CUDAGraph()
    (x * 2 + 1).sum()  # kernels are loaded before the capture
    graphs.failed.append(graph)  # a graph whose capture fails must stay alive

    def load() -> None:
        try:
            with graphs.stream(side):
                give_back(graphs, allocate(graphs, LOADED_BYTES))
        except RuntimeError as error:
            told["loader"] = str(error)

    try:
        with graphs.graph(graph, capture_error_mode=mode):
            y = x * 2
            loader = threading.Thread(target=load, name="loader")
            loader.start()
            loader.join()
            y = y + 1
        graph.replay()
        told["result"] = y.tolist()
    except RuntimeError as error:
        told["capture"] = str(error)
    return told


if __name__ == "__main__":
    device, mode = sys.argv[1:]
    print(json.dumps(capture_beside_a_loader(graphs_for(device), mode)), flush=True)
    os._exit(0)  # no destructors: they may fail after such a capture
