"""How long a step of a real model takes: the launch model, run over a list of kernels.

    step_time(step_ops(config, StepShape.decode(8, 1000), "vllm"), load_spec("h200"), "eager")

A step is launched in one of three modes (`step_model.py` does so for many steps of a model):

    eager        every kernel is a launch of its own
    piecewise    kernels between splitting ones are graphs, the splitting ones are live launches
    full         one graph, and live what no graph of this engine contains

There are two clocks, and every piece of work, a kernel or a graph, moves both:

    cpu   = cpu + what issuing it costs
    start = max(cpu, end of the work before + stream_gap_us)
    end   = start + its GPU time

So a run of launches is three numbers (`Run`). Around it, the CPU works in the engine
(`host_step_us`, and `request_us` for each request), copies the inputs, may prepare the next step
while the GPU runs (`ahead_us`), waits for the GPU and reads a token back (`sync_us`).

With a `queue_depth` of 1 the CPU issues a work when the one before it has ended. A longer queue is
taken to have room for everything: where it is full, the GPU is far behind and sets the pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from typing import Any, Literal, NamedTuple

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import Launcher, OpCost, StepShape
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.link import LINKED, link_us
from mini_engine.step.ops import Kind

Mode = Literal["eager", "piecewise", "full"]
WAYS: Mapping[str, Mode] = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}
MODES = tuple(WAYS.values())


class Run(NamedTuple):
    """A run of launches, as three numbers (µs). With `issue` above `gpu` it is launch-bound."""

    issue: float  # how long the CPU takes to issue it
    both: float  # from a standing start until the GPU has ended it
    gpu: float  # how long it keeps a GPU busy that never waits, the gap before it included

    def then(self, after: Run) -> Run:
        """This run, then `after`. Two chains lead to the end, and the longer one counts: the GPU
        goes straight on from this run to the next, or the CPU issues this and `after` starts from
        standing."""
        both = max(self.both + after.gpu, self.issue + after.both)
        return Run(self.issue + after.issue, both, self.gpu + after.gpu)


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
        return self.gpu_busy_us / self.itl_us


def step_time(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1) -> StepTime:
    """One step from an idle device. Raises ValueError for no kernels or an unknown mode."""
    works = [input_copy(spec), *launched(ops, spec, mode)]
    cpu_us = sum(around(spec, num_reqs)) + sum(work.cpu_us for work in works)
    busy_us = sum(work.busy_us for work in works)
    return StepTime(itl_us(works, spec, num_reqs), cpu_us, busy_us, len(works), len(ops))


def itl_us(works: Sequence[Work], spec: DeviceSpec, num_reqs: int) -> float:
    """From the start of one step to the start of the next."""
    run, (before_us, beside_us) = run_of(works, spec), around(spec, num_reqs)
    return float(before_us + max(run.both, run.issue + beside_us) + spec.sync_us)


def around(spec: DeviceSpec, num_reqs: Any) -> tuple[Any, Any]:
    """The engine's CPU time around a step: before it, while the GPU waits, and beside it (µs; an
    array for an array of requests). What each request costs is in the GPU's way even where an
    engine schedules ahead: published steps of vLLM grow by some 50 µs a request."""
    return spec.host_step_us + spec.request_us * num_reqs, spec.ahead_us


def run_of(works: Sequence[Work], spec: DeviceSpec) -> Run:
    """All works of a step as one run: the last of them is the last that the CPU issues."""
    *before, last = works
    runs = [*(work.alone(spec) for work in before), last.alone(spec, last=True)]
    return reduce(Run.then, runs)


def padded_step(
    descriptor: BatchDescriptor, num_reqs: int, kv_tokens: int = 0, qk_pairs: int = 0
) -> tuple[Mode, StepShape]:
    """How a batch runs as this descriptor: the way its work is launched, and its padded shape.
    Padded tokens read no keys. In a full graph the number of requests is padded, too."""
    reqs = descriptor.num_reqs or num_reqs
    shape = StepShape(descriptor.num_tokens, reqs, kv_tokens, qk_pairs, num_reqs)
    return WAYS[descriptor.mode.name], shape


def kernel_us(op: OpCost, spec: DeviceSpec) -> float:
    """GPU time of one kernel: the slower of memory and arithmetic, plus the floor. An empty kernel
    takes none: all that it costs is the gap to the next. Between GPUs, `link.py` says."""
    if op.kind in LINKED:
        return float(link_us(op.kind, op.bytes, op.ranks, spec))
    if not op.bytes and not op.flops:
        return 0.0
    memory_us = op.bytes / (gb_s_of(op.kind, spec) * 1e3)  # 1 GB/s is 1e3 bytes a µs
    compute_us = op.flops / (spec.product_tflops * 1e6)  # 1 TFLOP/s is 1e6 a µs
    slower_us = memory_us if memory_us > compute_us else compute_us  # max() would be slower
    return slower_us + spec.kernel_floor_us


def gb_s_of(kind: Kind, spec: DeviceSpec) -> float:
    if kind == "product":
        return spec.product_gb_s
    return spec.attention_gb_s if kind == "attention" else spec.copy_bandwidth_gb_s


def launched(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> list[Work]:
    """The kernels as pieces of work. Raises ValueError for no kernels or an unknown mode."""
    works, first = [], 0
    for kernels, graph in pieces([is_live(mode, op.splitting, op.by) for op in ops]):
        part, first = ops[first : first + kernels], first + kernels
        us = [kernel_us(op, spec) for op in part]
        issue_us = issue_live_us(spec, mode, part[0].by)
        works.append(graph_work(us, spec) if graph else Work(issue_us, us[0], us[0], 1))
    return works


def is_live(mode: Mode, splitting: bool, by: Launcher) -> bool:
    """Whether a kernel is a launch of its own in this mode. ValueError for an unknown mode."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    return mode == "eager" or by == "torch" or (splitting and mode == "piecewise")


def pieces(live: Sequence[bool]) -> list[tuple[int, bool]]:
    """Kernels as they are launched: how many there are in each work, and whether it is a graph.
    Raises ValueError for no kernels."""
    if not live:
        raise ValueError("a step without ops: give at least one")
    found: list[tuple[int, bool]] = []
    for alone, group in groupby(live):
        kernels = len(list(group))
        found += [(1, False)] * kernels if alone else [(kernels, True)]
    return found


def input_copy(spec: DeviceSpec) -> Work:
    """All inputs of a step in one copy: small, so that on the GPU only its floor counts."""
    return Work(spec.copy_us, spec.kernel_floor_us, spec.kernel_floor_us, 0)


def graph_work(times_us: Sequence[float], spec: DeviceSpec) -> Work:
    nodes, busy_us = len(times_us), sum(times_us)
    gpu_us = busy_us + (nodes - 1) * spec.graph_gap_us
    return Work(graph_launch_us(nodes, spec), gpu_us, busy_us, nodes)


def issue_live_us(spec: DeviceSpec, mode: Mode, by: Launcher) -> float:
    if by == "engine":
        return spec.live_op_us if mode == "piecewise" else spec.cpu_op_us
    return spec.torch_op_us if by == "torch" else spec.cpu_launch_us


def with_pdl(spec: DeviceSpec) -> DeviceSpec:
    """The same device where every node of a graph is launched with PDL (programmatic dependent
    launch): it starts while the node before it drains. `pdl_saves_us` comes off the gap between two
    nodes, and the rest of it off a kernel's floor; neither falls below zero."""
    gap_us = spec.graph_gap_us - spec.pdl_saves_us
    floor_us = spec.kernel_floor_us + min(0.0, gap_us)
    return replace(spec, graph_gap_us=max(0.0, gap_us), kernel_floor_us=max(0.0, floor_us))
