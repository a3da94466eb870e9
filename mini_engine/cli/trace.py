"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --read out/step.json

The first predicts a decode step of a full-size model in each mode and writes a file that
https://ui.perfetto.dev and chrome://tracing open. The second sums up any such file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import options
from mini_engine.sim.predict import HF_EAGER, Service, predict
from mini_engine.trace import CPU, GPU, TraceEvent, busy_us, read_trace, write_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--read", type=Path, metavar="FILE", help="sum up this trace instead")
    parser.add_argument(
        "--mode",
        action="append",
        choices=[*options.MODES, HF_EAGER],
        help="a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)",
    )
    options.add_shape(parser)
    options.add_spec(parser)
    parser.add_argument("--batch", type=options.positive, default=1, metavar="N")
    parser.add_argument("--context", type=options.positive, default=512, metavar="TOKENS")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/trace.json"), metavar="FILE")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.read:
        return {"file": str(args.read), "timelines": _summary(read_trace(args.read))}
    if args.context < 2:
        raise ValueError("--context 1: a decode step needs at least one token before it, so 2")
    shape, spec = options.shape_of(args.shape), options.spec_of(args.spec)
    timelines: dict[str, Sequence[TraceEvent]] = {}
    for mode in args.mode or ("NONE", "PIECEWISE", "FULL"):
        step = predict(
            shape, spec, mode, batch=args.batch, context=args.context,
            service=Service(requests=1, new_tokens=2),
        )  # fmt: skip
        timelines[mode] = step.timeline
    write_trace(args.out, timelines)
    return {"file": str(args.out), "timelines": _summary(timelines)}


def show(result: dict[str, Any], console: Console) -> None:
    table = Table("timeline", "events", "length µs", "CPU at work µs", "GPU at work µs", "GPU busy")
    for name, row in result["timelines"].items():
        table.add_row(
            name,
            f"{row['events']:,}",
            f"{row['length_us']:,.1f}",
            f"{row['cpu_us']:,.1f}",
            f"{row['gpu_us']:,.1f}",
            f"{row['utilisation']:.0%}",
        )
    console.print(table)
    console.print(f"{result['file']}: open it at https://ui.perfetto.dev or chrome://tracing")


def _summary(timelines: Mapping[str, Sequence[TraceEvent]]) -> dict[str, dict[str, float]]:
    summary = {}
    for name, events in timelines.items():
        if not events:
            continue
        length = max(e.end_us for e in events) - min(e.start_us for e in events)
        gpu = busy_us(events, GPU)
        summary[name] = {
            "events": len(events),
            "length_us": length,
            "cpu_us": busy_us(events, CPU),
            "gpu_us": gpu,
            "utilisation": gpu / length if length else 0.0,
        }
    return summary
