"""How fast the replay of a trace is, and how its cost grows.

    python -m tests.serving.speed                      # 10^3 to 10^6 requests; over a minute
    python -m tests.serving.speed --most 100000        # a few seconds
    python -m tests.serving.speed --trace FILE         # and a trace of yours

In:  random requests (`request_trace.synthetic_trace`, seed 0), Qwen3-0.6B on an H200.
Out: a line for each run. Everything runs on one core. Peak memory is that of the whole process so
     far.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import TraceRequest, read_trace, synthetic_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.step_model import StepModel


def timed(what: str, requests: Iterable[TraceRequest]) -> None:
    """Serve the requests, and print what it took."""
    config, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    server = size_server(config, spec, "FULL_AND_PIECEWISE", default_capture_sizes(256, 8192))
    began = time.perf_counter()
    report = replay(requests, StepModel(config, spec), server.limits, server.dispatcher)
    wall_s = time.perf_counter() - began
    print(
        f"{what:>24}  {report.requests:>9,} {report.steps:>11,} {report.turns:>10,} {wall_s:7.2f} "
        f"{wall_s / report.requests * 1e6:7.0f} {report.steps / wall_s:>10,.0f} {peak_mb():8.0f}",
        flush=True,
    )


def peak_mb() -> float:
    """The most memory that this process has held, in MB (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.serving.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--most", type=int, default=1_000_000, help="requests in the largest run")
    parser.add_argument("--trace", help="a request trace (CSV or JSON lines) to run as well")
    args = parser.parse_args()
    heads = (
        f"{'requests':>9} {'steps':>11} {'turns':>10} {'wall s':>7} {'µs/req':>7} {'steps/s':>10}"
    )
    print(f"{'':>24}  {heads} {'peak MB':>8}")
    if args.trace:
        timed("the trace", read_trace(args.trace))
    requests = 1000
    while requests <= args.most:
        timed("synthetic", synthetic_trace(requests, seed=0))
        requests *= 10


if __name__ == "__main__":
    main()
