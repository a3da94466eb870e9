"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --recorded sglang-qwen3-8b-graph

The first predicts a decode step of a full-size model in each mode and writes a file that
https://ui.perfetto.dev and chrome://tracing open. The simulated device runs nine kernels a layer,
whatever the engine; "HF eager" runs the ops of transformers, issued at the speed of its Python.
Look for the launches on track CPU (one for each kernel, or one for a graph), for what track GPU
does below them, and for the gaps in it.

The second takes a step apart that somebody has recorded with PyTorch's profiler: how many launches,
which kernels, how busy the GPU was, and what it waited for. It draws the step, beside a prediction
where the model is one of ours. Give it a file of your own (torch.profiler's export_chrome_trace,
.json or .json.gz, as `bench --traces` keeps one of each variant): its last "ProfilerStep" is taken,
or all of it; with --shape, --mode and the rest, the step that you recorded is predicted beside it.
A profiler itself takes time: `bench` tells what a step takes without one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import table
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.recorded import anatomy, kind_of, load_recording, recording_names
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

Timelines = Mapping[str, Sequence[TraceEvent]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    words = f"take a recorded step apart: {', '.join(recording_names())}, or a profiler's file"
    add("--recorded", metavar="NAME", help=words)
    words = "a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)"
    add("--mode", action="append", choices=[*options.MODES, HF_EAGER], help=words)
    options.add_shape(parser)
    options.add_spec(parser)
    parser.set_defaults(shape=None, spec=None)  # to know whether a recorded step is to be predicted
    add("--batch", type=number, default=1, metavar="N", help="requests (default: 1)")
    words = "of each request, this step's token included (default: 512)"
    add("--context", type=number, default=512, metavar="TOKENS", help=words)
    words = "where to write the timelines: .json (default: out/trace.json, or out/recorded.json)"
    add("-o", "--out", type=options.json_out, metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    out = args.out or Path(f"out/{'recorded' if args.recorded else 'trace'}.json")
    read = (args.spec, args.host, args.engine, args.recorded)
    if out.resolve() in [Path(one).resolve() for one in read if one]:
        raise ValueError(f"-o {out}: that file is read: give another name")
    if args.recorded:
        return _recorded(args, out)
    timelines, about = _predicted(args, args.mode or ["NONE", "PIECEWISE", "FULL"])
    write_trace(out, timelines)
    return {"file": out, "timelines": _summary(timelines), **about}


def _recorded(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """A recorded step: taken apart, written for a viewer, and drawn above a prediction."""
    from mini_engine import plots

    recording, about = load_recording(args.recorded), dict[str, Any]()
    timelines: dict[str, Sequence[TraceEvent]] = {"recorded": recording.events}
    for name, value in (recording.like or {}).items():  # the step that was recorded, as we have it
        setattr(args, name, getattr(args, name) if name == "mode" and args.mode else value)
    if args.shape:  # so it is for a profile of one's own, with --shape and --mode
        mode = args.mode[0] if args.mode else "NONE"
        predicted, about = _predicted(args, [mode])
        timelines["predicted"] = predicted[mode]
    write_trace(out, timelines)
    picture = out.with_suffix(".png")
    short = [replace(e, name=_short_name(e)) for e in recording.events]
    caption = f"{recording.what}. {recording.source}"
    plots.timeline({**timelines, "recorded": short}, picture, caption=caption)
    return {
        "recording": recording.name,
        "what": recording.what,
        "source": recording.source,
        **asdict(anatomy(recording)),
        "file": out,
        "picture": picture,
        "timelines": _summary(timelines),
        **about,
    }


def _short_name(event: TraceEvent) -> str:
    """A name that fits its box: what a kernel is for, and on the CPU only calls that launch."""
    if event.lane == GPU:
        return kind_of(event.name)
    return "" if event.category == "host" else event.name


def _predicted(args: argparse.Namespace, modes: Sequence[str]) -> tuple[Timelines, dict[str, Any]]:
    """A step of a full-size model in each mode, on the simulated device."""
    card, shape = args.spec or options.CARD, options.shape_of(args.shape or "qwen3-0.6b")
    spec = load_spec(card, args.host, args.engine)
    check_batch(shape, spec, args.batch, args.context)
    # the ops of transformers are issued by its own Python
    specs = {HF_EAGER: load_spec(card, args.host or spec.host, args.engine or "transformers")}
    timelines = {
        mode: predict(
            shape, specs.get(mode, spec), mode, batch=args.batch, context=args.context
        ).timeline
        for mode in modes
    }
    about = f"{shape.name}, batch {args.batch}, context {args.context:,}"
    return timelines, {"shape": about, **options.told(spec)}


def _summary(timelines: Timelines) -> dict[str, dict[str, float]]:
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


def show(result: dict[str, Any], console: Console) -> None:
    if "recording" in result:
        _show_anatomy(result, console)
        if "predicted" not in result["timelines"]:
            return
    rows = [
        (
            name,
            f"{row['events']:,}",
            *(f"{row[what]:,.1f}" for what in ("length_us", "cpu_us", "gpu_us")),
            f"{row['utilisation']:.0%}",
        )
        for name, row in result["timelines"].items()
    ]
    heads = ("<timeline", "events", "length µs", "CPU at work µs", "GPU at work µs", "GPU busy")
    console.print(table(heads, rows))
    console.print(f"{result['shape']}, predicted on {options.on(result)}.")
    console.print(f"{result['file']}: open it at https://ui.perfetto.dev or chrome://tracing")


def _show_anatomy(r: dict[str, Any], console: Console) -> None:
    whole = r["busy_us"] + r["idle_in_launch_us"] + r["idle_us"]
    rows = [
        (
            kind,
            f"{share['count']:,}",
            f"{share['count'] / r['layers']:.1f}" if r["layers"] else "",
            f"{share['us']:,.0f}",
            f"{share['us'] / r['busy_us']:.0%}",
        )
        for kind, share in r["kinds"].items()
    ]
    console.print(f"{r['what']}\n({r['source']})")
    console.print(table(("<kind", "count", "a layer", "µs", "share"), rows))
    graphs = f", {r['graph_launches']} of them of graphs" if r["graph_launches"] else ""
    shares = (r[name] / whole for name in ("busy_us", "idle_in_launch_us", "idle_us"))
    busy, in_launch, otherwise = (f"{share:.0%}" for share in shares)
    console.print(f"{r['kernels']:,} kernels, {r['launches']:,} launches and copies{graphs}")
    console.print(f"{whole:,.0f} µs from the GPU's first kernel to its last:")
    console.print(f"{busy} at work, {in_launch} waiting for launch calls, {otherwise} otherwise")
    console.print(f"Picture: {r['picture']}")
