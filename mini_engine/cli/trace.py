"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --recorded sglang-qwen3-8b-graph

The first predicts a decode step of a full-size model in each mode and writes a file that
https://ui.perfetto.dev and chrome://tracing open. Each engine launches the kernels that were
counted in it; "HF eager" runs the ops of transformers, issued at the speed of its Python. Look for
the launches on track CPU (one for each kernel, or one for a graph), for what track GPU does below
them, and for the gaps in it.

The second takes a step apart that somebody has recorded: how many launches, which kernels, how busy
the GPU was, and what it waited for. It draws the step, beside a prediction where the model is one
of ours, and says how far off that is; where only a table was published, bars stand for the lanes.
Of SGLang under nsys there are steps of 1, 4, 8 and 16 requests (--batch). Give it a file of your
own (torch.profiler's export_chrome_trace, .json or .json.gz; `bench --traces` keeps one of each
variant): its "ProfilerStep" of median length is taken, or all of it; with --shape, --mode and the
rest, the step that you recorded is predicted beside it. A profiler itself takes time: `bench` tells
what a step takes without one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import options, recorded
from mini_engine.cli.terminal import Columns, table
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.recorded import recording_names
from mini_engine.sim.trace import TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

COLUMNS: Columns = {  # of (name, summary)
    "<timeline": "{0[0]}", "events": "{0[1][events]:,}", "length µs": "{0[1][length_us]:,.1f}",
    "CPU at work µs": "{0[1][cpu_us]:,.1f}", "GPU at work µs": "{0[1][gpu_us]:,.1f}",
    "GPU busy": "{0[1][utilisation]:.0%}",
}  # fmt: skip
Timelines = Mapping[str, Sequence[TraceEvent]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    words = f"take a recorded step apart: {', '.join(recording_names())}, or a profiler's file"
    add("--recorded", metavar="NAME", help=words)
    words = "a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)"
    add("--mode", action="append", choices=[*options.MODES, HF_EAGER], help=words)
    options.add(parser, "shape", "spec", "batch", "context", context=512)
    parser.set_defaults(shape=None, spec=None)  # to know whether a recorded step is to be predicted
    words = "where to write the timelines: .json (default: out/trace.json)"
    add("-o", "--out", type=options.json_out, metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.recorded:
        return recorded.run(args)
    modes, out = args.mode or ["NONE", "PIECEWISE", "FULL"], args.out or Path("out/trace.json")
    if out.resolve() in [Path(one or ".").resolve() for one in (args.spec, args.host, args.engine)]:
        raise ValueError(f"-o {out}: figures are read from there: give another name")
    timelines, about = _predicted(args, modes)
    write_trace(out, timelines)
    return {"file": out, "timelines": summary(timelines), **about}


def _predicted(args: argparse.Namespace, modes: Sequence[str]) -> tuple[Timelines, dict[str, Any]]:
    """A step of a full-size model in each mode, on the simulated device."""
    context, card = args.context, args.spec or options.CARD
    shape = options.shape_of(args.shape or "qwen3-0.6b")
    spec = load_spec(card, args.host, args.engine)
    check_batch(shape, spec, args.batch, context)
    # the ops of transformers are issued by its own Python
    specs = {HF_EAGER: load_spec(card, args.host or spec.host, args.engine or "transformers")}
    timelines = {
        mode: predict(
            shape, specs.get(mode, spec), mode, batch=args.batch, context=context
        ).timeline
        for mode in modes
    }
    about = f"{shape.name}, batch {args.batch}, context {context:,}"
    return timelines, {"shape": about, **options.told(spec)}


def show(result: dict[str, Any], console: Console) -> None:
    if "recording" in result:
        return recorded.show(result, console)
    console.print(table(COLUMNS, result["timelines"].items()))
    console.print(f"{result['shape']}, predicted on {options.on(result)}.")
    console.print(f"{result['file']}: open it at https://ui.perfetto.dev or chrome://tracing")
