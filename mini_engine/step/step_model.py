"""The steps of one model on one device, thousands at a time: what `run.step_time` says of each.

StepModel(named_shape("qwen3-0.6b"), load_spec("h200")).itl_us("full", StepShape.decode(8, 1000))"""

from collections.abc import Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mini_engine.model.config import ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import LAUNCHERS, StepShape, step_costs
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.link import LINKED, link_us
from mini_engine.step.run import Mode, StepTime, around, gb_s_of, is_live, issue_live_us, pieces
from mini_engine.step.storage import Stored, stored_as

Line = tuple[float, float]  # us without keys, and us for each key that attention reads
# Where a line is read: at one key, since a copy of no keys is no kernel, and far from it.
PROBE_KEYS = (1, 1 << 20)
Chains = tuple[NDArray[np.float64], NDArray[np.float64], float]


class Launches(NamedTuple):
    nodes: Any  # of each work: how many kernels it has; an array of int64
    graphs: NDArray[np.bool_]  # of each work: is it a graph
    by: NDArray[np.int64]  # of each work: who launches it, an index into `LAUNCHERS`
    # (kernels, works + 1): how often a kernel runs from work w on; the last column is zeros
    rest: NDArray[np.float64]


@cache
def launches_of(config: ModelConfig, style: str, mode: Mode) -> Launches:
    """Raises ValueError for an unknown mode or style."""
    costs = step_costs(config, style)
    different = len(costs.names)
    head, layer, tail = np.split(np.arange(different), costs.ends)
    order = np.concatenate([head, np.tile(layer, config.num_layers), tail])
    live = [is_live(mode, costs.splitting[kernel], costs.by[kernel]) for kernel in order]
    nodes, graphs = map(np.array, zip(*pieces(live), strict=True))
    first = nodes.cumsum() - nodes
    runs = np.add.reduceat(np.eye(different)[order], first)
    rest = np.vstack([runs[::-1].cumsum(axis=0)[::-1], np.zeros(different)])
    by = np.array([LAUNCHERS.index(costs.by[kernel]) for kernel in order[first]])
    return Launches(nodes, graphs, by, np.ascontiguousarray(rest.T))


class StepModel:
    """A kernel's costs are affine in how much the step computes (`StepShape.sizes`), so the times
    of all kernels are one product. And a step takes as long as the longest of its chains: for each
    work, the CPU issues everything up to it, and from there on the GPU never waits. A chain is a
    sum of kernels' times, so all chains are one more product. In decode, a chain is a straight line
    in the number of keys."""

    def __init__(self, config: ModelConfig, spec: DeviceSpec, stored: Stored | None = None) -> None:
        self.config, self.spec, self.stored = config, spec, stored or stored_as(config)
        costs = step_costs(config, spec.ops, self.stored)
        self._linked = [(i, k) for i, k in enumerate(costs.kinds) if k in LINKED]
        # of kernels between GPUs the rate is 1: their "µs" are bytes, for `link_us`
        gb_s = np.array([[1e-3 if k in LINKED else gb_s_of(k, spec)] for k in costs.kinds])
        # µs for each of `kernels.PER`: (6, 2 * kernels), first all memory, then all compute
        compute_us = costs.flops / (spec.product_tflops * 1e6)
        self._rates_us = np.vstack([costs.bytes / (gb_s * 1e3), compute_us]).T
        self._chains: dict[Mode, Chains] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        before_us, beside_us = around(self.spec, shape.served)
        chains_us = self._chains_us(mode, self._times_us(shape.sizes(self.config)), beside_us)
        return float(before_us + chains_us.max() + self.spec.sync_us)

    def steps(self, mode: Mode, shapes: Sequence[StepShape]) -> list[StepTime]:
        spec, launches = self.spec, launches_of(self.config, self.spec.ops, mode)
        times_us = self._times_us([shape.sizes(self.config) for shape in shapes])
        before_us, beside_us = around(spec, np.array([shape.served for shape in shapes]))
        itl_us = before_us + self._chains_us(mode, times_us, beside_us).max(axis=-1) + spec.sync_us
        cpu_us = before_us + beside_us + self._chains[mode][2]
        busy_us = times_us @ launches.rest[:, 0] + spec.kernel_floor_us
        counts = 1 + len(launches.nodes), int(launches.nodes.sum())
        rows = zip(itl_us.tolist(), cpu_us.tolist(), busy_us.tolist(), strict=True)
        return [StepTime(*row, *counts) for row in rows]

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> tuple[Line, ...]:
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens. The
        flattest comes first. `served`: the requests that are no padding; None: all of them."""
        before_us, beside_us = around(self.spec, num_reqs if served is None else served)
        shapes = [StepShape(num_tokens, num_reqs, keys, keys, served) for keys in PROBE_KEYS]
        sizes = [shape.sizes(self.config) for shape in shapes]
        near, far = self._chains_us(mode, self._times_us(sizes), beside_us)
        per_key = (far - near) / (PROBE_KEYS[1] - PROBE_KEYS[0])
        us = before_us + near - PROBE_KEYS[0] * per_key + self.spec.sync_us
        return upper_envelope(zip(us.tolist(), per_key.tolist(), strict=True))

    def _times_us(self, sizes: Any) -> NDArray[np.float64]:
        """`kernel_us` of the kernels of head, layer and tail: (..., kernels) for (..., 6) sizes."""
        us, kernels = np.array(sizes, dtype=float) @ self._rates_us, self._rates_us.shape[1] // 2
        slower_us = np.maximum(us[..., :kernels], us[..., kernels:])
        times_us: NDArray[np.float64] = slower_us + self.spec.kernel_floor_us * (slower_us > 0)
        for i, kind in self._linked:
            times_us[..., i] = link_us(kind, us[..., i], self.config.ranks, self.spec)
        return times_us

    def _chains_us(
        self, mode: Mode, times_us: NDArray[np.float64], beside_us: Any
    ) -> NDArray[np.float64]:
        """How long each chain takes, from the copy to the end of the last work: (..., works + 1)
        for (..., kernels) times. The last is the CPU's own, with what it does beside the GPU."""
        if mode not in self._chains:
            self._chains[mode] = self._new_chains(mode)
        constant_us, counts, _ = self._chains[mode]
        chains_us: NDArray[np.float64] = times_us @ counts + constant_us
        chains_us[..., -1] += beside_us
        return chains_us

    def _new_chains(self, mode: Mode) -> Chains:
        """Of each chain: what it takes without its kernels, and how often it runs each of them,
        (kernels, works + 1); and how long the CPU issues the whole step."""
        spec, launches = self.spec, launches_of(self.config, self.spec.ops, mode)
        in_turn = spec.queue_depth == 1
        live_us = np.array([issue_live_us(spec, mode, by) for by in LAUNCHERS])[launches.by]
        issue_us = np.where(launches.graphs, graph_launch_us(launches.nodes, spec), live_us)
        gap_us = np.full_like(issue_us, spec.stream_gap_us)  # of the GPU, before each work
        if in_turn:  # nothing is issued before the work ahead of it has ended
            gap_us = np.maximum(gap_us, issue_us)
        issued_us = spec.copy_us + issue_us.cumsum()
        all_us = own_us = float(issued_us[-1])
        # the first work waits until the copy has ended, too
        issued_us[0] = max(issued_us[0], spec.copy_us + spec.kernel_floor_us + gap_us[0])
        # each work, and what follows it on a GPU that never waits
        gpu_us = (launches.nodes - 1) * spec.graph_gap_us
        rest_us = (gpu_us + gap_us)[::-1].cumsum()[::-1] - gap_us
        constant_us, rest = issued_us + rest_us, launches.rest
        if in_turn:  # the CPU's own chain has all works but the last
            own_us = float(constant_us[0] - gpu_us[-1] - gap_us[-1] + issue_us[-1])
            rest = np.column_stack([rest[:, :-1], rest[:, 0] - rest[:, -2]])
        return np.append(constant_us, own_us), rest, all_us


def upper_envelope(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines that are the highest somewhere at 0 or more keys, from the flattest on."""

    def overtakes(flat: Line, steep: Line) -> float:
        return (flat[0] - steep[0]) / (steep[1] - flat[1])

    kept: list[Line] = []
    for line in sorted(lines, key=itemgetter(1, 0)):
        while kept and kept[-1][0] <= line[0]:  # less steep, and lower from the start
            kept.pop()
        while len(kept) > 1 and overtakes(kept[-2], line) <= overtakes(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return tuple(kept)
