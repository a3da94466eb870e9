"""How fast the serving simulation is, how its cost grows, and whether strides are exact.

    python -m tests.serving.speed                      # 10^3 to 10^6 requests; over a minute
    python -m tests.serving.speed --most 100000        # a few seconds
    python -m tests.serving.speed --trace FILE         # and a trace of yours

In:  random requests (`request_trace.synthetic_trace`, seed 0), Qwen3-0.6B on an H200.
Out: three tables. Everything runs on one core. Peak memory is that of the whole process so far.
"""

import sys

if __name__ == "__main__":  # before anything else is imported: Ctrl-C may come any time
    from mini_engine.cli.ending import guarded

    def again() -> int:
        from tests.serving import speed

        return speed.main()

    sys.exit(guarded("tests.serving.speed", again))

import argparse
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mini_engine.cli.options import counted
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import named_shape
from mini_engine.predict.hardware import load_spec
from mini_engine.predict.step_model import StepModel
from mini_engine.serving.plan import ServerPlan, plan_server
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import TraceRequest, read_trace, synthetic_trace
from mini_engine.serving.simulate import simulate
from tests.support.serve_step_by_step import simulate_step_by_step

MODE = "FULL_AND_PIECEWISE"


def main(argv: list[str] | None = None) -> int:
    return guarded("tests.serving.speed", lambda: show(argv))


def show(argv: list[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.serving.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--most", type=counted, default=1_000_000, help="requests in the largest run"
    )
    parser.add_argument("--trace", help="a request trace (CSV or JSON lines) to run as well")
    args = parser.parse_args(argv)
    console = Console()
    console.print(runs_table("Strides, synthetic requests", growth(args.most)))
    if args.trace:
        console.print(runs_table(f"{args.trace}, reading included", [time_trace(args.trace)]))
    console.print(agreement_table(400))
    return 0


@dataclass(frozen=True)
class Timed:
    """A simulation and what it took."""

    report: ServeReport
    wall_s: float

    @property
    def steps_per_s(self) -> float:
        return self.report.steps / self.wall_s


def runs_table(title: str, runs: Iterable[Timed]) -> Table:
    """A row for each run."""
    table = Table(title=title)
    for column in ("requests", "steps", "turns", "wall s", "µs/req", "steps/s", "peak MB"):
        table.add_column(column, justify="right")
    for run in runs:
        report = run.report
        table.add_row(
            f"{report.requests:,}",
            f"{report.steps:,}",
            f"{report.turns:,}",
            f"{run.wall_s:.2f}",
            f"{run.wall_s / report.requests * 1e6:.0f}",
            f"{run.steps_per_s:,.0f}",
            f"{peak_mb():.0f}",
        )
    return table


def growth(most: int) -> Iterator[Timed]:
    """From 1,000 requests up to `most`, by tens: a request costs the same, memory stays flat."""
    requests = 1000
    while requests <= most:
        yield time_strides(synthetic_trace(requests, seed=0), requests)
        requests *= 10


def time_trace(path: str) -> Timed:
    began = time.perf_counter()
    requests = read_trace(path).requests
    read_s = time.perf_counter() - began
    timed = time_strides(requests, len(requests))
    return Timed(timed.report, timed.wall_s + read_s)


def agreement_table(requests: int) -> Table:
    """The same requests in strides and step by step: counts equal, times to rounding."""
    table = Table(title=f"Strides against the scheduler step by step: {requests} requests")
    for column in ("", "wall s", "steps/s", "counts differ", "largest relative difference"):
        table.add_column(column, justify="right")
    fast = time_strides(synthetic_trace(requests, seed=0), requests)
    plan, costs = server()
    began = time.perf_counter()
    report = simulate_step_by_step(
        synthetic_trace(requests, seed=0), costs, plan.limits, plan.dispatcher
    )
    slow = Timed(report, time.perf_counter() - began)
    counts, largest = differences(fast.report, slow.report)
    table.add_row("step by step", f"{slow.wall_s:.2f}", f"{slow.steps_per_s:,.0f}", "", "")
    found = ", ".join(counts) or "none", f"{largest:.0e}"
    table.add_row("strides", f"{fast.wall_s:.2f}", f"{fast.steps_per_s:,.0f}", *found)
    return table


def differences(one: ServeReport, other: ServeReport) -> tuple[list[str], float]:
    """Names of the counts that differ, and the largest relative difference of times and rates."""
    counts = [] if one.ran == other.ran else ["ran"]
    largest = 0.0
    others = other.to_dict()
    for name, value in one.to_dict().items():
        if isinstance(value, float) and value:
            largest = max(largest, abs(others[name] - value) / abs(value))
        elif value != others[name] and name != "turns":
            counts.append(name)
    return counts, largest


def time_strides(requests: Iterable[TraceRequest], total: int) -> Timed:
    """Serve the requests, with a progress bar."""
    plan, costs = server()
    with Progress(transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task("serving", total=total)
        began = time.perf_counter()
        report = simulate(
            requests, costs, plan.limits, plan.dispatcher,
            progress=lambda read: bar.update(task, completed=read),
        )  # fmt: skip
        return Timed(report, time.perf_counter() - began)


def server() -> tuple[ServerPlan, StepModel]:
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    plan = plan_server(config, spec, MODE, default_capture_sizes(256, 8192))
    return plan, StepModel(config, spec)


def peak_mb() -> float:
    """The most memory that this process has held, in MB (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
