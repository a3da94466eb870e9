"""How long a step of a real model takes: the launch model, run over a list of kernels.

In:  kernels (`mini_engine.step.kernels`), a `DeviceSpec`, and how the step is launched:
     "eager"      every kernel is a launch of its own
     "piecewise"  kernels between splitting ones are graphs, the splitting ones are live launches
     "full"       one graph
Out: `StepTime`. `StepModel` gives the same for many steps of a model.

    step_time(step_ops(config, StepShape.decode(8, 1000), "fused9"), load_spec("h200"), "eager")

A step runs exactly as on the simulated device. There are two clocks, and every piece of work moves
both:

    cpu   = cpu + what issuing it costs
    start = max(cpu, end of the work before + stream_gap_us)
    end   = start + its GPU time

So a run of launches is three numbers (`Run`), and 28 layers are a power of one.

The CPU spends `host_step_us` in the engine, then issues one packed copy of the inputs and the
model's work. An engine that schedules ahead then prepares the next step while the GPU runs
(`ahead_us`). At the end the CPU waits for the GPU and reads a token back (`sync_us`).

The GPU time of a kernel is max(bytes / bandwidth, flops / peak) + floor, at the bandwidth and the
peak that its kind of kernel reaches. A graph is one piece of work: its nodes, with `graph_gap_us`
between them.

A queue of one launch makes the CPU wait for each work before it issues the next. A longer queue is
taken to have room for everything: it is full only while the GPU is far behind, and then the GPU is
what takes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, part_costs
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.ops import Kind
from mini_engine.step.storage import Stored, stored_as

Mode = Literal["eager", "piecewise", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)
LAUNCHED_AS: dict[CUDAGraphMode, Mode] = {  # of a batch's run-time mode
    CUDAGraphMode.NONE: "eager",
    CUDAGraphMode.PIECEWISE: "piecewise",
    CUDAGraphMode.FULL: "full",
}
Line = tuple[float, float]  # us without keys, and us for each key that attention reads
# Where a line is read: at one key, since a copy of no keys is no kernel, and far from it.
PROBE_KEYS = (1, 1 << 20)
Chains = tuple[NDArray[np.float64], NDArray[np.float64], float]


class Run(NamedTuple):
    """A run of launches, as three numbers (µs). With `issue` above `gpu` it is launch-bound."""

    issue: float  # how long the CPU issues it
    both: float  # from a standing start until the GPU has ended it
    gpu: float  # how long it keeps a GPU busy that never waits, the gap before it included

    def then(self, after: Run) -> Run:
        """One run and then another: both have been issued, and the later chain ends last."""
        both = max(self.both + after.gpu, self.issue + after.both)
        return Run(self.issue + after.issue, both, self.gpu + after.gpu)

    def times(self, n: int) -> Run:
        """The same run n times: each time after the first, the slower of the two sets the pace."""
        pace = (n - 1) * max(self.issue, self.gpu)
        return Run(n * self.issue, self.both + pace, n * self.gpu)


class Work(NamedTuple):
    """One piece of work in the stream: a kernel, a graph or the copy of the inputs."""

    cpu_us: float  # to issue it
    gpu_us: float  # from its start to its end
    busy_us: float  # of that, with a kernel running
    kernels: int

    def alone(self, spec: DeviceSpec, *, last: bool = False) -> Run:
        """The run of this work only. `last`: nothing is issued after it."""
        both, gpu = self.cpu_us + self.gpu_us, spec.stream_gap_us + self.gpu_us
        waits = spec.queue_depth == 1 and not last  # then the CPU goes on when it has ended
        return Run(both if waits else self.cpu_us, both, gpu)


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
    """One step from an idle device. Raises ValueError for no kernels or an unknown mode."""
    works = [input_copy(spec), *launched(ops, spec, mode)]
    return StepTime(
        itl_us=itl_us(works, spec, num_reqs),
        cpu_us=sum(around(spec, num_reqs)) + sum(work.cpu_us for work in works),
        gpu_busy_us=sum(work.busy_us for work in works),
        launches=len(works),
        kernels=len(ops),
    )


def itl_us(works: Sequence[Work], spec: DeviceSpec, num_reqs: int) -> float:
    """From the start of one step to the start of the next."""
    run, (before_us, beside_us) = run_of(works, spec), around(spec, num_reqs)
    return float(before_us + max(run.both, run.issue + beside_us) + spec.sync_us)


def around(spec: DeviceSpec, num_reqs: Any) -> tuple[Any, Any]:
    """The engine's CPU time around a step: before it, while the GPU waits, and beside it (µs; an
    array for an array of requests).

    What each request costs goes with the larger of the two.
    """
    requests_us = spec.request_us * num_reqs
    if spec.ahead_us > spec.host_step_us:
        return spec.host_step_us, spec.ahead_us + requests_us
    return spec.host_step_us + requests_us, spec.ahead_us


def run_of(works: Sequence[Work], spec: DeviceSpec) -> Run:
    """All works of a step as one run: the last of them is the last that the CPU issues."""
    *before, last = works
    return joined([*(work.alone(spec) for work in before), last.alone(spec, last=True)])


def joined(runs: Iterable[Run]) -> Run:
    """Runs one after another, at least one."""
    whole, *rest = runs
    for run in rest:
        whole = whole.then(run)
    return whole


# ---------------------------------------------------------------- from batches to kernels to work


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
    memory_us = op.bytes / (gb_s_of(op.kind, spec) * 1e3)  # 1 GB/s is 1e3 bytes a µs
    compute_us = op.flops / (spec.product_tflops * 1e6)  # 1 TFLOP/s is 1e6 a µs
    slower_us = memory_us if memory_us > compute_us else compute_us  # max() would be slower
    return slower_us + spec.kernel_floor_us


def gb_s_of(kind: Kind, spec: DeviceSpec) -> float:
    """The bandwidth that kernels of this kind reach."""
    if kind == "product":
        return spec.product_gb_s
    return spec.attention_gb_s if kind == "attention" else spec.copy_bandwidth_gb_s


def launched(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> list[Work]:
    """The kernels as pieces of work. Raises ValueError for no kernels or an unknown mode."""
    times_us = [kernel_us(op, spec) for op in ops]
    live_us, works, first = _live_us(spec, mode), [], 0
    for kernels, graph in pieces([op.splitting for op in ops], mode):
        inside, first = times_us[first : first + kernels], first + kernels
        works.append(
            graph_work(inside, spec) if graph else Work(live_us, inside[0], inside[0], kernels)
        )
    return works


def pieces(splitting: Sequence[bool], mode: Mode) -> list[tuple[int, bool]]:
    """Kernels as they are launched: how many there are in each work, and whether it is a graph.

    Raises ValueError for no kernels or an unknown mode.
    """
    if not splitting:
        raise ValueError("a step without ops: give at least one")
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "full":
        return [(len(splitting), True)]
    found: list[tuple[int, bool]] = []
    for live, group in groupby(splitting):
        kernels = len(list(group))
        found += [(1, False)] * kernels if mode == "eager" or live else [(kernels, True)]
    return found


def input_copy(spec: DeviceSpec) -> Work:
    """All inputs of a step in one copy: small, so that on the GPU only its floor counts."""
    return Work(spec.copy_us, spec.kernel_floor_us, spec.kernel_floor_us, 0)


def graph_work(times_us: Sequence[float], spec: DeviceSpec) -> Work:
    """One graph, from the GPU time of each of its kernels."""
    nodes, busy_us = len(times_us), sum(times_us)
    gpu_us = busy_us + (nodes - 1) * spec.graph_gap_us
    return Work(graph_launch_us(nodes, spec), gpu_us, busy_us, nodes)


def _live_us(spec: DeviceSpec, mode: Mode) -> float:
    """CPU time to launch one kernel outside of a graph."""
    return spec.cpu_op_us if mode == "eager" else spec.live_op_us


def with_pdl(spec: DeviceSpec) -> DeviceSpec:
    """The same device where every node of a graph is launched with PDL (programmatic dependent
    launch): it starts while the node before it drains, loads its weights, and waits. On a card
    without PDL nothing changes.

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


# ---------------------------------------------------------------- many steps of one model


class Launches(NamedTuple):
    """What a step of a model launches, without its times."""

    nodes: Any  # of each work: how many kernels it has; an array of int64
    graphs: NDArray[np.bool_]  # of each work: is it a graph
    # (kernels, works + 1): how often a kernel runs in a work and in those after it, at last in none
    rest: NDArray[np.float64]


@cache
def launches_of(config: ModelConfig, style: str, mode: Mode) -> Launches:
    """The works of a step in this mode, and the different kernels of head, layer and tail in them.
    Raises ValueError for an unknown mode or style."""
    parts = part_costs(config, style)
    splitting = np.array([live for part in parts for live in part.splitting])
    ends = np.cumsum([len(part.names) for part in parts])
    head, layer, tail = np.split(np.arange(ends[-1]), ends[:-1])
    order = np.concatenate([head, np.tile(layer, config.num_layers), tail])
    nodes, graphs = map(np.array, zip(*pieces(splitting[order].tolist(), mode), strict=True))
    runs = np.add.reduceat(np.eye(ends[-1])[order], nodes.cumsum() - nodes)
    rest = np.vstack([runs[::-1].cumsum(axis=0)[::-1], np.zeros(ends[-1])])
    return Launches(nodes, graphs, np.ascontiguousarray(rest.T))


class StepModel:
    """Costs of the steps of one model on one device: what `step_time` says, for many steps.

        costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
        costs.itl_us("full", StepShape.decode(batch=8, context=1000))
        costs.lines("full", num_tokens=8, num_reqs=8)      # ((us, us for each key), ...)

    A kernel's costs are affine in how much the step computes (`StepShape.sizes`), so the times of
    all kernels are one product. And joined from the first to the last, the runs of a step take as
    long as the longest of its chains: for each work, the CPU issues everything up to it, and from
    there on the GPU never waits. A chain is a sum of kernels' times, so all chains are one more
    product. In decode, a chain is a straight line in the number of keys.
    """

    def __init__(
        self,
        config: ModelConfig,
        spec: DeviceSpec,
        style: str | None = None,
        stored: Stored | None = None,
    ) -> None:
        """`style`: the op list, the engine's own where none is given. `stored`: as it is."""
        self.config, self.spec, self.style = config, spec, style or spec.ops
        self.stored = stored or stored_as(config)
        parts = part_costs(config, self.style, self.stored)
        gb_s = np.array([gb_s_of(kind, spec) for part in parts for kind in part.kinds])
        # µs for each of `kernels.PER`: (5, 2 * kernels), first all memory, then all compute
        memory_us = np.vstack([part.bytes for part in parts]) / (gb_s[:, None] * 1e3)
        compute_us = np.vstack([p.flops for p in parts]) / (spec.product_tflops * 1e6)
        self._rates_us = np.vstack([memory_us, compute_us]).T
        self._chains: dict[Mode, Chains] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """What `step_time` says. Raises ValueError for an unknown mode."""
        before_us, beside_us = around(self.spec, shape.served)
        chains_us = self._chains_us(mode, self._times_us(shape.sizes), beside_us)
        return float(before_us + chains_us.max() + self.spec.sync_us)

    def steps(self, mode: Mode, shapes: Sequence[StepShape]) -> list[StepTime]:
        """What `step_time` says of each of these steps."""
        spec, launches = self.spec, launches_of(self.config, self.style, mode)
        times_us = self._times_us([shape.sizes for shape in shapes])
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
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens.

        From the flattest to the steepest, and none that is nowhere the highest. `served`: the
        requests among num_reqs that are no padding; all where it is None.
        """
        before_us, beside_us = around(self.spec, num_reqs if served is None else served)
        sizes = [StepShape(num_tokens, num_reqs, keys, keys).sizes for keys in PROBE_KEYS]
        near, far = self._chains_us(mode, self._times_us(sizes), beside_us)
        per_key = (far - near) / (PROBE_KEYS[1] - PROBE_KEYS[0])
        us = before_us + near - PROBE_KEYS[0] * per_key + self.spec.sync_us
        return upper_envelope(zip(us.tolist(), per_key.tolist(), strict=True))

    # ------------------------------------------------------------ parts

    def _times_us(self, sizes: Any) -> NDArray[np.float64]:
        """`kernel_us` of the kernels of head, layer and tail: (..., kernels) for (..., 5) sizes."""
        us, kernels = np.array(sizes, dtype=float) @ self._rates_us, self._rates_us.shape[1] // 2
        slower_us = np.maximum(us[..., :kernels], us[..., kernels:])
        times_us: NDArray[np.float64] = slower_us + self.spec.kernel_floor_us * (slower_us > 0)
        return times_us

    def _chains_us(
        self, mode: Mode, times_us: NDArray[np.float64], beside_us: Any
    ) -> NDArray[np.float64]:
        """How long each chain takes, from the copy to the end of the last work: (..., works + 1)
        for (..., kernels) times. The last one is the CPU's own, with what it does beside the GPU.
        """
        if mode not in self._chains:
            self._chains[mode] = self._new_chains(mode)
        constant_us, counts, _ = self._chains[mode]
        chains_us: NDArray[np.float64] = times_us @ counts + constant_us
        chains_us[..., -1] += beside_us
        return chains_us

    def _new_chains(self, mode: Mode) -> Chains:
        """Of each chain: what it takes without its kernels, and how often it runs each of them,
        (kernels, works + 1); and how long the CPU issues the whole step."""
        spec, launches = self.spec, launches_of(self.config, self.style, mode)
        live_us, in_turn = _live_us(spec, mode), spec.queue_depth == 1
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
    kept: list[Line] = []
    for us, slope in sorted(lines, key=itemgetter(1, 0)):
        while kept and kept[-1][0] <= us:  # less steep, and lower from the start
            kept.pop()
        while len(kept) > 1 and _cross(kept[-2], (us, slope)) <= _cross(kept[-2], kept[-1]):
            kept.pop()
        kept.append((us, slope))
    return tuple(kept)


def _cross(flat: Line, steep: Line) -> float:
    """At how many keys the steeper line overtakes the flatter one."""
    return (flat[0] - steep[0]) / (steep[1] - flat[1])
