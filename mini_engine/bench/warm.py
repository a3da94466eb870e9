"""Compile what a run will launch, many kernels at once, before anything is timed.

In:  shapes and variants of the benchmark. Out: nothing but Triton's cache on disk, full.

A cold machine compiles a kernel when it is first launched, one after the other, and a minute of a
run's nine would go by in each stage. Here every pair of shape and variant has a process of its own,
as many at a time as there are CPUs. What a kernel is compiled for does not depend on the number of
layers, so one layer will do; the room for tokens is the benchmark's, because splits depend on it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from mini_engine.bench.bench import check_names, room_for
from mini_engine.bench.decode_setup import build_setup
from mini_engine.bench.variants import VARIANTS
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import ModelConfig

Pair = tuple[str, str]  # a word of --shape, a variant


def warm(backend: GraphBackend, config: ModelConfig, name: str, context: int, steps: int) -> str:
    """Prepare one variant of one layer. What became of it, in a line."""
    check_names([name])
    if reason := VARIANTS[name].why_not(backend):
        return reason
    one = replace(config, num_layers=1)
    with torch.no_grad():
        weights = random_weights(one, backend.device, torch.bfloat16, seed=0)
        setup = build_setup(backend, weights, 1, context, room_for(1, context, steps))
        variant = VARIANTS[name].make(setup)
        variant.prepare()
        backend.synchronize()
        variant.release()
    return "compiled"


def warm_all(
    pairs: Sequence[Pair], line: Callable[[Pair], Sequence[str]], told: Callable[[str], None]
) -> int:
    """Run `python` with `line(pair)` for each pair. How many of them failed, of which `told` hears
    the last line."""
    count = min(len(pairs), os.cpu_count() or 1)

    def run(pair: Pair) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *line(pair)], capture_output=True, text=True)

    failed = 0
    with ThreadPoolExecutor(count) as pool:
        for pair, done in zip(pairs, pool.map(run, pairs), strict=True):
            words = (done.stdout + done.stderr).strip().splitlines() or ["it printed nothing"]
            failed += done.returncode != 0
            told(f"{' '.join(pair)}: {words[-1]}")
    return failed


def pairs_of(shapes: Sequence[str], names: Sequence[str]) -> list[Pair]:
    """Every shape with every variant."""
    return list(itertools.product(shapes, names))
