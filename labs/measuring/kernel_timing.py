"""How long a kernel takes, next to the same in PyTorch: the measuring step of labs 11, 12b and 15.

In:  `Case`s: what a kernel must move, and calls of it on their own buffers. Out: a table of µs,
GB/s and percent of this GPU's own copy; without a GPU, what the figures of a card and of this
engine's kernels predict, marked as predicted.

A call takes a few µs, less than Python needs to launch it. So the calls are captured into a CUDA
graph, each on different buffers (together larger than the L2 cache, or 64 sets), and whole replays
are timed, alternating between the contestants.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from mini_engine.bench.calibrate import copy_bandwidth, sizes_for
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import Interval
from mini_engine.bench.timing import device_us
from mini_engine.cuda.graphs.backend import Graph, GraphBackend, graphs_for, why_no_bf16, why_no_gpu
from mini_engine.cuda.kernels.launch import INTERPRETED
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import OpCost
from mini_engine.step.run import kernel_us

YOURS = "yours"
ENGINE = "launch-bound"  # whose kernels they are
MOST_SETS = 64  # of buffers; a small call still finds its bytes in L2, as it does in a decode step
Calls = Mapping[str, Callable[[], tuple[torch.Tensor, ...]]]  # each returns all its results


@dataclass(frozen=True)
class Case:
    """One thing to time. `calls` makes new buffers on a device and a call for each contestant."""

    name: str
    ops: tuple[OpCost, ...]  # the kernels of YOURS
    calls: Callable[[torch.device], Calls]

    @property
    def bytes(self) -> float:
        return sum(op.bytes for op in self.ops)

    def predicted_us(self, spec: DeviceSpec) -> float:
        """The time as nodes of a graph: each kernel and the gap after it."""
        return sum(kernel_us(op, spec) + spec.graph_gap_us for op in self.ops)


def main(lab: str, cases: Callable[[DeviceSpec], Sequence[Case]], words: Sequence[str]) -> int:
    """The command. `cases` lists the cases for a spec; `--predict` is about the first one."""
    parser = argparse.ArgumentParser(prog=f"./lab measure {lab}")
    parser.add_argument(
        "--predict", type=float, metavar="µs", help="your prediction for the first line"
    )
    parser.add_argument("--spec", default="h200", help="the card to predict for (default: h200)")
    args = parser.parse_args(list(words))
    if args.predict is not None and not args.predict > 0:
        parser.error(f"--predict {args.predict:g}: a time in µs is above zero")
    spec, console = load_spec(args.spec, engine=ENGINE), Console(highlight=False)
    listed = cases(spec)
    reason = why_not()
    if reason:
        command = shlex.join(["./lab", "measure", str(lab), *words])
        console.print(f"Not yet measured: no run on a GPU has been kept, and here: {reason}.")
        console.print(f"Predicted for {spec.name}, {ENGINE}'s kernels, in a graph:\n")
        console.print(prediction_table(listed, spec))
        if args.predict is not None:
            console.print(f"\n{judged(args.predict, listed[0].predicted_us(spec), 'the spec')}")
        console.print(f"\nOn a machine with an NVIDIA GPU this line measures:\n  {command}")
        return 0
    backend = graphs_for("cuda")
    copy_gb_s = copy_bandwidth(backend, sizes_for(backend))["median"]
    console.print(f"{torch.cuda.get_device_name()}, its own copy: {copy_gb_s:,.0f} GB/s")
    console.print(f"Each in a graph, on the GPU's clock; predicted for {spec.name}:\n")
    timed = [time_calls(backend, case) for case in listed]
    console.print(measured_table(listed, timed, copy_gb_s, spec))
    if args.predict is not None:
        console.print(f"\n{judged(args.predict, timed[0][YOURS].median, 'measured')}")
    return 0


def why_not() -> str | None:
    """Why nothing can be measured here, in one line; None if it can."""
    if INTERPRETED:
        return "TRITON_INTERPRET is set, so kernels run in Python: unset it"
    return why_no_gpu() or why_no_bf16(graphs_for("cuda"))


# ---------------------------------------------------------------- the stopwatch


def time_calls(backend: GraphBackend, case: Case, rounds: int = 4) -> dict[str, Interval]:
    """µs per call of each contestant, by the device's clock, in the order AB BA AB BA."""
    graphs, calls = captured(backend, case)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for i in range(rounds):
        for name in list(graphs)[:: -1 if i % 2 else 1]:
            times[name] += device_us(backend, graphs[name].replay, calls=8, repeats=5)
    return {name: median_interval([us / calls for us in laps]) for name, laps in times.items()}


def captured(backend: GraphBackend, case: Case) -> tuple[dict[str, Graph], int]:
    """A graph for each contestant that calls it once per set of buffers, and how many sets."""
    l2_bytes = 0 if backend.emulated else torch.cuda.get_device_properties().L2_cache_size
    count = min(MOST_SETS, 2 + int(2 * l2_bytes / case.bytes))
    sets = [case.calls(backend.device) for _ in range(count)]
    graphs = {}
    for name in sets[0]:
        for calls in sets[:2]:
            calls[name]()  # compiles, and lets libraries allocate what they keep
        backend.synchronize()
        graphs[name] = backend.CUDAGraph()
        with backend.graph(graphs[name], pool=backend.graph_pool_handle()):
            for calls in sets:
                calls[name]()
    return graphs, count


# ---------------------------------------------------------------- what is printed


def prediction_table(cases: Sequence[Case], spec: DeviceSpec) -> Table:
    """What the spec predicts: bytes at the speed that this kind of kernel reaches, with a floor and
    a gap for each."""
    table = _table("", "kernels", "bytes", "predicted µs", "measured µs")
    for case in cases:
        kernels, us = str(len(case.ops)), f"{case.predicted_us(spec):.1f}"
        table.add_row(case.name, kernels, f"{case.bytes:,.0f}", us, "not yet")
    return table


def measured_table(
    cases: Sequence[Case],
    timed: Sequence[Mapping[str, Interval]],
    copy_gb_s: float,
    spec: DeviceSpec,
) -> Table:
    """A row for each contestant: µs with the 95% interval; for YOURS also GB/s."""
    table = _table("", "µs", "95%", "bytes", "GB/s", "% of copy", "predicted µs")
    for case, times in zip(cases, timed, strict=True):
        for name, us in times.items():
            gb_s = case.bytes / us.median / 1e3
            mine = name == YOURS
            table.add_row(
                f"{case.name}: {name}",
                f"{us.median:.2f}",
                f"{us.low:.2f} to {us.high:.2f}",
                f"{case.bytes:,.0f}" if mine else "",
                f"{gb_s:,.0f}" if mine else "",
                f"{100 * gb_s / copy_gb_s:.0f}%" if mine else "",
                f"{case.predicted_us(spec):.1f}" if mine else "",
            )
    return table


def judged(said_us: float, us: float, who: str) -> str:
    """The learner's prediction next to a time."""
    factor = max(said_us, us) / min(said_us, us)
    how = "longer" if said_us > us else "shorter"
    off = "as said" if factor < 1.005 else f"you said {factor:.2f} times {how}"
    return f"Your prediction {said_us:g} µs, {who} {us:.1f} µs: {off}."


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
