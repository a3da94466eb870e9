"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --recorded sglang-qwen3-8b-graph

The first predicts a decode step of a full-size model in each mode and writes a file that
https://ui.perfetto.dev and chrome://tracing open. Look for the launches on track CPU (one for each
kernel, or one for a graph), for what track GPU does below them, and for the gaps in it.

The second takes a step apart that somebody has recorded: how many launches, which kernels, how busy
the GPU was, and what it waited for; and draws it, beside a prediction where the model is one of
ours. SGLang under nsys has steps of 1, 4, 8 and 16 requests (--batch). Give it a file of your own
(torch.profiler's export_chrome_trace, .json or .json.gz; `bench --traces` keeps some): its
"ProfilerStep" of median length is taken, or all of it; with --shape, --mode and the rest, your step
is predicted beside it. A profiler itself takes time: `bench` measures without one.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import Columns, table
from mini_engine.model.config import SHAPES
from mini_engine.sim import recorded
from mini_engine.sim.predict import HF_EAGER, predict
from mini_engine.sim.trace import GPU, TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

OPEN_IT = "open it at https://ui.perfetto.dev or chrome://tracing"
COLUMNS: Columns = {  # of (name, summary)
    "<timeline": "{0[0]}", "events": "{0[1][events]:,}", "length µs": "{0[1][length_us]:,.1f}",
    "CPU at work µs": "{0[1][cpu_us]:,.1f}", "GPU at work µs": "{0[1][gpu_us]:,.1f}",
    "GPU busy": "{0[1][utilisation]:.0%}",
}  # fmt: skip
SHARED, DEFAULTS = "shape spec batch context", {"shape": None, "context": 512}
MORE = "or HF eager; give it again for more (default: NONE, PIECEWISE and FULL)"
KNOWN = f"take it apart: {', '.join(recorded.recording_names())}, or a profiler's file"
OUT = "the timelines (default: out/trace.json, or out/recorded.json)"
OPTIONS: options.Rows = {
    "--recorded NAME": (str, None, KNOWN),
    "--mode NAME": (list, None, f"{', '.join(options.MODES)} {MORE}"),
    "-o --out FILE": (options.json_out, None, OUT),
}


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    out = args.out or Path("out/recorded.json" if args.recorded else "out/trace.json")
    read = [Path(word) for word in (args.recorded, args.spec, args.host, args.engine) if word]
    if out.resolve() in [path.resolve() for path in read]:
        raise ValueError(f"-o {out}: this is read: give another name")
    if args.recorded:
        return _recorded(args, out)
    modes, args.shape = args.mode or ["NONE", "PIECEWISE", "FULL"], args.shape or "qwen3-0.6b"
    timelines = {mode: _predicted(args, mode) for mode in modes}
    write_trace(out, timelines)
    return {**options.told(options.server(args)), "file": out, "timelines": summary(timelines)}


def _predicted(args: argparse.Namespace, mode: str) -> Sequence[TraceEvent]:
    """A step of a full-size model, on the simulated device."""
    server = options.server(args)
    shape, spec = server.config, server.spec
    check_batch(shape, spec, args.batch, args.context)
    if mode == HF_EAGER:  # the ops of transformers are issued by its own Python
        spec = load_spec(args.spec, args.host or spec.host, args.engine or "transformers")
    return predict(shape, spec, mode, batch=args.batch, context=args.context).timeline


def _recorded(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Take the recording apart, write it for a viewer, and draw it beside a prediction."""
    from mini_engine import plots
    from mini_engine.plots.bars import RUNS, WAITS

    recording = recorded.load_recording(args.recorded, args.batch)
    if recording.like and recording.like["shape"] in SHAPES:
        vars(args).update(recording.like)  # the step that was recorded, as we have it
    steps = {"recorded": recorded.anatomy(recording)}
    timelines = {"recorded": recording.events} if recording.events else {}
    if args.shape:
        predicted = tuple(_predicted(args, (args.mode or ["NONE"])[0]))
        timelines["predicted"] = predicted
        steps["predicted"] = recorded.anatomy_of(predicted, whole=not recording.events)
    found, picture = steps["recorded"], out.with_suffix(".png")
    runs = {name: f"{step.busy_us / step.gpu_us:.0%} of {step.gpu_us / 1e3:.2f} ms"
            for name, step in steps.items()}  # fmt: skip
    title = "A kernel runs " + ", ".join(f"{name} {share}" for name, share in runs.items())
    caption = f"{recording.what}. {recording.source.split(',')[0]}"
    if recording.events:
        short = [replace(e, name=_short_name(e)) for e in recording.events]
        zoom_us = max(60.0, found.gpu_us / (found.layers or 1e9) // 3)
        plots.timeline({**timelines, "recorded": short}, picture, title=title, caption=caption,
                       zoom_us=zoom_us, middle=True)  # fmt: skip
    else:
        bars = {name: {RUNS: step.busy_us, WAITS: step.gpu_us - step.busy_us}
                for name, step in steps.items()}  # fmt: skip
        plots.step_bars(bars, picture, title=title, caption=caption)
    if timelines:
        write_trace(out, timelines)
    about = {"what": recording.what, "source": recording.source, "picture": picture}
    beside = {**options.told(options.server(args)), **steps} if args.shape else {"predicted": None}
    return {**about, **vars(found), "file": out if timelines else None,
            "timelines": summary(timelines), **beside}  # fmt: skip


def _short_name(event: TraceEvent) -> str:
    """A name that fits its box: what a kernel is for, and on the CPU only calls that launch."""
    if event.lane == GPU:
        return recorded.kind_of(event.name)
    return "" if event.category == "host" else event.name


def show(r: argparse.Namespace, console: Console) -> None:
    if not r.recorded:
        about = f"{r.shape}, batch {r.batch}, context {r.context:,}, predicted on {options.on(r)}"
        console.print(table(COLUMNS, r.timelines.items()))
        return console.print(f"{about}.\n{r.file}: {OPEN_IT}")
    console.print(f"{r.what}\n({r.source})")
    rows = [
        (kind, "" if kind == recorded.UNLISTED else f"{share.count:,.0f}",
         f"{share.count / r.layers:.1f}" if r.layers and kind != recorded.UNLISTED else "",
         f"{share.us:,.0f}", f"{share.us / r.busy_us:.0%}")
        for kind, share in r.kinds.items()
    ]  # fmt: skip
    if rows:
        console.print(table(("<kind", "count", "a layer", "µs", "share"), rows))
    counts = {"kernels": r.kernels, "launches and copies": r.launches, "graphs": r.graph_launches}
    if told := [f"{count:,.0f} {what}" for what, count in counts.items() if count]:
        console.print(f"{', '.join(told)} a step")
    if r.idle_us is not None:
        parts = r.busy_us, r.idle_in_launch_us, r.idle_us
        busy, launching, other = (f"{us / sum(parts):.0%}" for us in parts)
        console.print(
            f"Of {sum(parts):,.0f} µs the GPU is {busy} at work, {launching} waiting for launch "
            f"calls, {other} for other work of the CPU"
        )
    if step := r.predicted:
        pairs = {
            "kernels": (r.kernels, step.kernels), "launches": (r.launches, step.launches),
            "µs in which a kernel runs": (r.busy_us, step.busy_us),
            "µs in all": (r.idle_us and sum(parts), step.gpu_us),
        }  # fmt: skip
        beside = [(what, f"{was:,.0f}", f"{said:,.0f}", f"{said / was - 1:+.0%}")
                for what, (was, said) in pairs.items() if was and said]  # fmt: skip
        console.print(table(("<", "recorded", "predicted", "off by"), beside))
        console.print(f"Predicted: {r.shape}, batch {r.batch}, context {r.context:,}, on "
                      f"{options.on(r)}.")  # fmt: skip
    console.print(f"Picture: {r.picture}")
    if r.file:
        console.print(f"{r.file}: {OPEN_IT}")
