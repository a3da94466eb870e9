"""ITL of one decode step, computed on arrays: for a fit, which asks for it again and again.

In:  once, the model and the shape of a step; then a card, host and engine as often as you like.
Out: ITL in µs, the same as `StepModel.itl_us` up to rounding.

    step = FastStep(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused9", "eager")
    step.itl_us(spec)

At each piece of work the recursion takes the later of two times, so the last one ends at the
largest of many sums: all work up to j is issued, then j and everything after it run back to back,

    end = max over j of (cpu_0 + ... + cpu_j) + (gpu_j + ... + gpu_n) + (n - j) x gap

The bounded queue is left out. It delays a launch only while the GPU has a full queue to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.config import ModelConfig
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import OpCost, StepShape, step_parts
from mini_engine.step.step_cost import Mode, around

Floats = NDArray[np.float64]
KINDS = ("product", "attention", "other")


class FastStep:
    """One step of one model, launched in one way."""

    def __init__(self, config: ModelConfig, shape: StepShape, style: str, mode: Mode) -> None:
        parts = step_parts(config, shape, style)
        ops = [*parts.head, *parts.layer, *parts.tail]
        h, m = len(parts.head), len(parts.layer)
        layer = np.arange(h, h + m)
        tail = np.arange(h + m, len(ops))
        self._order = np.concatenate([np.arange(h), np.tile(layer, parts.num_layers), tail])
        self._bytes = np.array([op.bytes for op in ops])
        self._flops = np.array([op.flops for op in ops])
        self._kind = np.array([KINDS.index(op.kind) for op in ops])
        self._works = self._grouped(ops, mode)
        self._mode, self._num_reqs = mode, shape.num_reqs

    def _grouped(self, ops: Sequence[OpCost], mode: Mode) -> list[tuple[int, int]]:
        """(first op, number of ops) of each graph; live launches are (op, 0)."""
        count = len(self._order)
        if mode == "full":
            return [(0, count)]
        if mode == "eager":
            return [(i, 0) for i in range(count)]
        works, at = [], 0
        for splitting, group in groupby(ops[i].splitting for i in self._order):
            size = len(list(group))
            works += [(at + i, 0) for i in range(size)] if splitting else [(at, size)]
            at += size
        return works

    def itl_us(self, spec: DeviceSpec) -> float:
        """From the start of this step to the start of the next."""
        bandwidth = np.array([spec.product_gb_s, spec.attention_gb_s, spec.copy_bandwidth_gb_s])
        memory_us = self._bytes / (bandwidth[self._kind] * 1e3)
        compute_us = self._flops / (spec.product_tflops * 1e6)
        floors = spec.kernel_floor_us * ((self._bytes > 0) | (self._flops > 0))
        gpu = (np.maximum(memory_us, compute_us) + floors)[self._order]
        cpu_us, end_us = self._run(gpu, spec)
        before_us, beside_us = around(spec, self._num_reqs)
        return before_us + max(end_us, cpu_us + beside_us) + spec.sync_us

    def _run(self, gpu: Floats, spec: DeviceSpec) -> tuple[float, float]:
        if self._mode == "eager":
            issue = np.full(len(gpu), spec.cpu_op_us)
        else:
            total = np.concatenate([[0.0], np.cumsum(gpu)])
            first, size = np.array(self._works).T
            graph = size > 0
            last = np.where(graph, first + size, first + 1)
            gaps = np.where(graph, (size - 1) * spec.graph_gap_us, 0.0)
            gpu = total[last] - total[first] + gaps
            issue = np.where(
                graph, spec.graph_launch_us + spec.graph_node_ns * size / 1000, spec.live_op_us
            )
        gpu = np.concatenate([[spec.kernel_floor_us], gpu])
        issued = np.cumsum(np.concatenate([[spec.copy_us], issue]))
        after = np.cumsum(gpu[::-1])[::-1]
        gaps_left = np.arange(len(gpu) - 1, -1, -1) * spec.stream_gap_us
        return float(issued[-1]), float((issued + after + gaps_left).max())
