"""How long a step of a real model takes: the launch model, run over a list of kernels.

In:  kernels (`mini_engine.step.kernels`), a `DeviceSpec`, and how the step is launched:
     "eager"      every kernel is a launch of its own
     "piecewise"  kernels between splitting ones are graphs, the splitting ones are live launches
     "full"       one graph
Out: `StepTime`; `StepModel` gives the same for many steps of a model at once.

A step runs exactly as on the simulated device. There are two clocks, and every piece of work moves
both:

    cpu   = cpu + what issuing it costs
    start = max(cpu, end of the work before + stream_gap_us)
    end   = start + its GPU time

So a run of launches is three numbers, and 28 layers are a power of one (`Run`).

The CPU spends `host_step_us` in the engine, then issues one packed copy of the inputs and the
model's work. An engine that schedules ahead then prepares the next step while the GPU runs
(`ahead_us`). At the end the CPU waits for the GPU and reads a token back (`sync_us`).

The GPU time of a kernel is max(bytes / bandwidth, flops / peak) + floor, at the bandwidth and the
peak that its kind of kernel reaches. An empty kernel takes no time of its own, only the gap to the
next. A graph is one piece of work: its nodes, with `graph_gap_us` between them. Where they are
launched with PDL (programmatic dependent launch), `with_pdl(spec)` has what a boundary then costs.

A queue of one launch makes the CPU wait for each work before it issues the next. A longer queue is
taken to have room for everything: it is full only while the GPU is far behind, and then the GPU is
what takes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, part_costs
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.ops import Kind
from mini_engine.step.storage import Stored, as_it_is

Mode = Literal["eager", "piecewise", "full"]
MODES: tuple[Mode, ...] = get_args(Mode)
LAUNCHED_AS: dict[CUDAGraphMode, Mode] = {  # of a batch's run-time mode
    CUDAGraphMode.NONE: "eager",
    CUDAGraphMode.PIECEWISE: "piecewise",
    CUDAGraphMode.FULL: "full",
}
Us: TypeAlias = Any  # µs: a float, an array of them, or whatever can be added and has `later`


def later(a: Us, b: Us) -> Us:
    """The later of two times."""
    if isinstance(a, float | int) and isinstance(b, float | int):
        return a if a > b else b
    of = getattr(a, "later", None) or getattr(b, "later", None)
    return of(a, b) if of else np.maximum(a, b)


class Run(NamedTuple):
    """A run of launches, as three numbers. With `issue` larger than `gpu` it is launch-bound."""

    issue: Us  # how long the CPU issues it
    both: Us  # from a standing start until the GPU has ended it
    gpu: Us  # how long it keeps a GPU busy that never waits, the gap before it included

    def then(self, after: Run) -> Run:
        """One run and then another: both have been issued, and the later chain ends last."""
        both = later(self.both + after.gpu, self.issue + after.both)
        return Run(self.issue + after.issue, both, self.gpu + after.gpu)

    def times(self, n: int) -> Run:
        """The same run n times: each time after the first, the slower of the two sets the pace."""
        pace = (n - 1) * later(self.issue, self.gpu)
        return Run(n * self.issue, self.both + pace, n * self.gpu)


class Work(NamedTuple):
    """One piece of work in the stream: a kernel, a graph or the copy of the inputs."""

    cpu_us: float  # to issue it
    gpu_us: Us  # from its start to its end
    busy_us: Us  # of that, with a kernel running
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


def around(spec: DeviceSpec, num_reqs: Us) -> tuple[Us, Us]:
    """The engine's CPU time around a step: before it, while the GPU waits, and beside it (µs).

    What each request costs goes with the larger of the two.
    """
    requests_us = spec.request_us * num_reqs
    if spec.ahead_us > spec.host_step_us:
        return spec.host_step_us, spec.ahead_us + requests_us
    return spec.host_step_us + requests_us, spec.ahead_us


def itl_us(works: Sequence[Work], spec: DeviceSpec, num_reqs: int) -> float:
    """From the start of one step to the start of the next."""
    return float(step_us(run_of(works, spec), spec, num_reqs))


def step_us(run: Run, spec: DeviceSpec, num_reqs: Us) -> Us:
    """The same for the run of all works of a step."""
    before_us, beside_us = around(spec, num_reqs)
    return before_us + later(run.both, run.issue + beside_us) + spec.sync_us


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
    bandwidth, tflops = rates(op, spec)
    memory_us = op.bytes / (bandwidth * 1e3)  # 1 GB/s is 1e3 bytes a µs
    compute_us = op.flops / (tflops * 1e6)  # 1 TFLOP/s is 1e6 a µs
    slower_us = memory_us if memory_us > compute_us else compute_us  # max() would be slower
    return slower_us + spec.kernel_floor_us


def rates(op: OpCost, spec: DeviceSpec) -> tuple[float, float]:
    """GB/s and TFLOP/s that this kind of kernel reaches."""
    return gb_s_of(op.kind, spec), spec.product_tflops


def gb_s_of(kind: Kind, spec: DeviceSpec) -> float:
    if kind == "product":
        return spec.product_gb_s
    return spec.attention_gb_s if kind == "attention" else spec.copy_bandwidth_gb_s


def launched(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> list[Work]:
    """The kernels as pieces of work. Raises ValueError for no kernels or an unknown mode."""
    if not ops:
        raise ValueError("a step without ops: give at least one")
    times_us = [kernel_us(op, spec) for op in ops]
    return list(works_of(times_us, [op.splitting for op in ops], spec, mode))


def works_of(
    times_us: Sequence[Us], splitting: Sequence[bool], spec: DeviceSpec, mode: Mode
) -> Iterator[Work]:
    """Kernels as pieces of work, from their GPU times. Raises ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "full":
        yield graph_work(times_us, spec)
        return
    for live, group in groupby(zip(splitting, times_us, strict=True), key=lambda pair: pair[0]):
        times = [us for _, us in group]
        if mode == "eager" or live:
            cpu_us = spec.cpu_op_us if mode == "eager" else spec.live_op_us
            yield from (Work(cpu_us, us, us, 1) for us in times)
        else:
            yield graph_work(times, spec)


def input_copy(spec: DeviceSpec) -> Work:
    """All inputs of a step in one copy: small, so that on the GPU only its floor counts."""
    return Work(spec.copy_us, spec.kernel_floor_us, spec.kernel_floor_us, 0)


def graph_work(times_us: Sequence[Us], spec: DeviceSpec) -> Work:
    """One graph, from the GPU time of each of its kernels."""
    return graph_of(len(times_us), sum(times_us), spec)


def graph_of(nodes: int, busy_us: Us, spec: DeviceSpec) -> Work:
    """One graph, from the GPU time of all its kernels together."""
    gpu_us = busy_us + (nodes - 1) * spec.graph_gap_us
    return Work(graph_launch_us(nodes, spec), gpu_us, busy_us, nodes)


def with_pdl(spec: DeviceSpec) -> DeviceSpec:
    """The same device where every node of a graph is launched with PDL: it starts while the node
    before it drains, loads its weights, and waits. On a card without PDL nothing changes.

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


Line = tuple[float, float]  # us without keys, and us for each key that attention reads
# Where a line is read: at one key, since a copy of no keys is no kernel, and far from it.
PROBE_KEYS = (1, 1 << 20)
ALONE = 200  # steps of a model that are computed one by one before their sums are found


class StepModel:
    """Costs of the steps of one model on one device. Remembers the lines that it was asked for."""

    def __init__(
        self,
        config: ModelConfig,
        spec: DeviceSpec,
        style: str | None = None,
        stored: Stored | None = None,
    ) -> None:
        """`style`: the op list, the engine's own where none is given. `stored`: as it is."""
        self.config, self.spec, self.style = config, spec, style or spec.ops
        self.stored = stored or as_it_is(config)
        self._parts = part_costs(config, self.style, self.stored)
        gb_s = np.array([gb_s_of(kind, spec) for part in self._parts for kind in part.kinds])
        # µs for each of `kernels.PER`: (2 * kernels, 5), as 1 GB/s is 1e3 bytes a µs
        memory_us = np.vstack([part.bytes for part in self._parts]) / (gb_s[:, None] * 1e3)
        compute_us = np.vstack([p.flops for p in self._parts]) / (spec.product_tflops * 1e6)
        self._rates_us = np.vstack([memory_us, compute_us])  # first all memory, then all compute
        self._alone = 0  # steps that were asked for one by one
        self._sums: dict[Mode, tuple[Sums, Sums]] = {}
        self._lines: dict[tuple[Mode, int, int, int], tuple[Line, ...]] = {}

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """What `step_time` says. Raises ValueError for an unknown mode."""
        times_us = self._times_us(np.array(shape.sizes))
        if mode not in self._sums and self._alone < ALONE:
            self._alone += 1  # one step by itself: its run is found sooner than the sums
            run = self._run(mode, self._in_parts(times_us.tolist()))
            return float(step_us(run, self.spec, shape.served))
        return float(self._step_us(mode, times_us, shape.served))

    def itls_us(
        self, mode: Mode, sizes: NDArray[np.float64], served: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Many steps at once: a row of `sizes` (`StepShape.sizes`) and the requests that are no
        padding, for each."""
        itls: NDArray[np.float64] = self._step_us(mode, self._times_us(sizes), served)
        return itls

    def steps(self, mode: Mode, shapes: Sequence[StepShape]) -> list[StepTime]:
        """What `step_time` says of each of these steps."""
        sizes = np.array([shape.sizes for shape in shapes], dtype=float)
        served = np.array([shape.served for shape in shapes], dtype=float)
        times = self._in_parts(list(self._times_us(sizes)))
        busy_us: Us = sum(times[0]) + self.config.num_layers * sum(times[1]) + sum(times[2])
        launches = self._launches(mode)
        issued_us = sum(work.cpu_us for work in launches)
        kernels = sum(work.kernels for work in launches)
        around_us: Us = sum(around(self.spec, served))
        itl_us = step_us(self._run(mode, times), self.spec, served)
        cpu_us = around_us + issued_us
        rows = zip(itl_us, cpu_us, busy_us + self.spec.kernel_floor_us, strict=True)
        return [
            StepTime(float(itl), float(cpu), float(busy), len(launches), kernels)
            for itl, cpu, busy in rows
        ]

    def launch_bound(self, shape: StepShape) -> bool:
        """Launched eagerly, does the CPU take longer to issue the kernels than the GPU takes to
        run them, gaps included?"""
        head, layer, tail = self._in_parts(self._times_us(np.array(shape.sizes)).tolist())
        layers, spec = self.config.num_layers, self.spec
        kernels = len(head) + layers * len(layer) + len(tail)
        gpu_us: float = sum(head) + layers * sum(layer) + sum(tail)
        return gpu_us + kernels * spec.stream_gap_us < kernels * spec.cpu_op_us

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> tuple[Line, ...]:
        """A decode step for any contexts: ITL is the highest of us + us_per_key * kv_tokens.

        From the flattest to the steepest, and none that is nowhere the highest. `served`: the
        requests among num_reqs that are no padding; all where it is None.
        """
        asked = mode, num_tokens, num_reqs, num_reqs if served is None else served
        if asked not in self._lines:
            sizes = [StepShape(num_tokens, num_reqs, keys, keys).sizes for keys in PROBE_KEYS]
            near, far = self._times_us(np.array(sizes, dtype=float)).T
            per_key = (far - near) / (PROBE_KEYS[1] - PROBE_KEYS[0])
            both, issue = self._sums_of(mode)
            before_us, beside_us = around(self.spec, asked[3])
            us = before_us + self.spec.sync_us
            lines = both.lines(near - PROBE_KEYS[0] * per_key, per_key, us)
            lines += issue.lines(near - PROBE_KEYS[0] * per_key, per_key, us + beside_us)
            self._lines[asked] = upper_envelope(lines)
        return self._lines[asked]

    # ------------------------------------------------------------ parts

    def _times_us(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """`kernel_us` of each kernel of head, layer and tail: (kernels, steps)."""
        us, kernels = self._rates_us @ sizes.T, len(self._rates_us) // 2
        slower_us = np.maximum(us[:kernels], us[kernels:])
        times: NDArray[np.float64] = slower_us + self.spec.kernel_floor_us * (slower_us > 0)
        return times

    def _step_us(self, mode: Mode, times_us: NDArray[np.float64], served: Us) -> Us:
        """`step_us`, from the times of the kernels: (kernels,) or (kernels, steps)."""
        both, issue = self._sums_of(mode)
        before_us, beside_us = around(self.spec, served)
        ready_us = np.maximum(both.at(times_us), issue.at(times_us) + beside_us)
        return before_us + ready_us + self.spec.sync_us

    def _sums_of(self, mode: Mode) -> tuple[Sums, Sums]:
        """When the GPU has ended a step's work, and when the CPU has issued it."""
        if mode not in self._sums:
            kernels = len(self._rates_us) // 2
            unknown = [Sums(row[None]) for row in np.eye(1 + kernels)[1:]]
            run = self._run(mode, self._in_parts(unknown))
            self._sums[mode] = unknown[0].also(run.both), unknown[0].also(run.issue)
        return self._sums[mode]

    def _in_parts(self, times: list[Us]) -> list[list[Us]]:
        """Of all kernels: those of head, layer and tail."""
        head, layer, _ = (len(part.names) for part in self._parts)
        return [times[:head], times[head : head + layer], times[head + layer :]]

    def _run(self, mode: Mode, times_us: Sequence[Sequence[Us]]) -> Run:
        """A whole step, from the GPU times of the kernels of head, layer and tail."""
        spec, layers = self.spec, self.config.num_layers
        before, turned, after = self._turned(mode, times_us)
        begin = joined(work.alone(spec) for work in (input_copy(spec), *before))
        if layers > 1 and turned:
            begin = begin.then(joined(work.alone(spec) for work in turned).times(layers - 1))
        return begin.then(run_of(after, spec))

    def _launches(self, mode: Mode) -> list[Work]:
        """The works of a step, without their times on the GPU."""
        nothing = [[0.0] * len(part.names) for part in self._parts]
        before, turned, after = self._turned(mode, nothing)
        return [input_copy(self.spec), *before, *turned * (self.config.num_layers - 1), *after]

    def _turned(self, mode: Mode, times_us: Sequence[Sequence[Us]]) -> tuple[list[Work], ...]:
        """The works of a step in three: up to the first attention, from one attention to the next,
        and from the last one on. Cut there, a graph that spans two layers stays whole."""
        head, layer, tail = times_us
        cuts = [part.splitting for part in self._parts]
        if mode == "full":
            layers = self.config.num_layers
            nodes = len(head) + len(layer) * layers + len(tail)
            return [], [], [graph_of(nodes, sum(head) + layers * sum(layer) + sum(tail), self.spec)]
        at = cuts[1].index(True)

        def works(times: Sequence[Us], cut: Sequence[bool]) -> list[Work]:
            return list(works_of(times, cut, self.spec, mode))

        return (
            works([*head, *layer[:at]], [*cuts[0], *cuts[1][:at]]),
            works([*layer[at:], *layer[:at]], [*cuts[1][at:], *cuts[1][:at]]),
            works([*layer[at:], *tail], [*cuts[1][at:], *cuts[2]]),
        )


# ---------------------------------------------------------------- times that are sums


class Sums:
    """A time that is the highest of some sums of kernels' times, which are not known yet.

    `rows`: (sums, 1 + kernels), the constant of each sum and how often it counts each kernel.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        self.rows = np.unique(rows, axis=0)
        self._constant, self._counts = self.rows[:, 0].copy(), self.rows[:, 1:].copy()

    def at(self, times_us: NDArray[np.float64]) -> Us:
        """The time for kernels that take so long: (kernels,) or (kernels, steps)."""
        return ((self._counts @ times_us).T + self._constant).max(axis=-1)

    def lines(
        self, us: NDArray[np.float64], per_key: NDArray[np.float64], more_us: float
    ) -> list[Line]:
        """Each sum as a line, for kernels that take us + per_key * keys; and `more_us`."""
        start_us = self._counts @ us + self._constant + more_us
        return list(zip(start_us.tolist(), (self._counts @ per_key).tolist(), strict=True))

    def also(self, time: Sums | float) -> Sums:
        """A time as sums over the same kernels: a number is one without any."""
        return time if isinstance(time, Sums) else Sums(time * np.eye(1, self.rows.shape[1]))

    def __add__(self, other: Sums | float) -> Sums:
        """Of two such times: every sum of the one and every sum of the other."""
        rows = self.rows[:, None] + self.also(other).rows
        return Sums(rows.reshape(-1, self.rows.shape[1]))

    __radd__ = __add__

    def __rmul__(self, n: float) -> Sums:
        return Sums(n * self.rows)

    @staticmethod
    def later(a: Sums | float, b: Sums | float) -> Sums:
        one = a if isinstance(a, Sums) else b
        assert isinstance(one, Sums)
        return Sums(np.vstack([one.also(a).rows, one.also(b).rows]))


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
