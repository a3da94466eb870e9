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
of ours; where only a table was published, bars stand for the lanes. Of SGLang under nsys there are
steps of 1, 4, 8 and 16 requests (--batch). Give it a file of your own (torch.profiler's
export_chrome_trace, .json or .json.gz; `bench --traces` keeps one of each variant): its
"ProfilerStep" of median length is taken, or all of it; with --shape, --mode and the rest, the step
that you recorded is predicted beside it. A profiler itself takes time: `bench` tells what a step
takes without one, and `explain --itl` what its time went into.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import Columns, table
from mini_engine.model.config import SHAPES
from mini_engine.sim.predict import HF_EAGER, Prediction, predict
from mini_engine.sim.recorded import (
    UNLISTED,
    Anatomy,
    anatomy,
    anatomy_of,
    kind_of,
    load_recording,
    recording_names,
)
from mini_engine.sim.trace import GPU, TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

FEW = 0.02  # a kind below this share of a step has no colour of its own
OPEN_IT = "open it at https://ui.perfetto.dev or chrome://tracing"
COLUMNS: Columns = {  # of (name, summary)
    "<timeline": "{0[0]}", "events": "{0[1][events]:,}", "length µs": "{0[1][length_us]:,.1f}",
    "CPU at work µs": "{0[1][cpu_us]:,.1f}", "GPU at work µs": "{0[1][gpu_us]:,.1f}",
    "GPU busy": "{0[1][utilisation]:.0%}",
}  # fmt: skip
COMPARED: Columns = {  # of (what, (recorded, predicted))
    "<": "{0[0]}", "recorded": "{0[1][0]:,.0f}", "predicted": "{0[1][1]:,.0f}",
    "off by": lambda row: f"{row[1][1] / row[1][0] - 1:+.0%}",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    words = f"take a recorded step apart: {', '.join(recording_names())}, or a profiler's file"
    add("--recorded", metavar="NAME", help=words)
    words = "a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)"
    add("--mode", action="append", choices=[*options.MODES, HF_EAGER], help=words)
    options.add(parser, "shape", "spec", "batch", "context", context=512)
    parser.set_defaults(shape=None)  # to know whether a recorded step is to be predicted
    words = "where to write the timelines: .json (default: out/trace.json or out/recorded.json)"
    add("-o", "--out", type=options.json_out, metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    out = args.out or Path("out/recorded.json" if args.recorded else "out/trace.json")
    read = [Path(word) for word in (args.recorded, args.spec, args.host, args.engine) if word]
    if out.resolve() in [path.resolve() for path in read]:
        raise ValueError(f"-o {out}: this is read: give another name")
    if args.recorded:
        return _recorded(args, out)
    modes, args.shape = args.mode or ["NONE", "PIECEWISE", "FULL"], args.shape or "qwen3-0.6b"
    steps = {mode: _predicted(args, mode) for mode in modes}
    timelines = {mode: step.timeline for mode, step in steps.items()}
    write_trace(out, timelines)
    return {"file": out, "timelines": summary(timelines), **_about(args)}


def _predicted(args: argparse.Namespace, mode: str) -> Prediction:
    """A step of a full-size model, on the simulated device."""
    shape, spec = options.shape_of(args.shape), load_spec(args.spec, args.host, args.engine)
    check_batch(shape, spec, args.batch, args.context)
    if mode == HF_EAGER:  # the ops of transformers are issued by its own Python
        spec = load_spec(args.spec, args.host or spec.host, args.engine or "transformers")
    return predict(shape, spec, mode, batch=args.batch, context=args.context)


def _about(args: argparse.Namespace) -> dict[str, str]:
    told = f"{options.shape_of(args.shape).name}, batch {args.batch}, context {args.context:,}"
    return {"shape": told, **options.on_spec(load_spec(args.spec, args.host, args.engine))}


def show(r: argparse.Namespace, console: Console) -> None:
    if r.recorded:
        return _show_recorded(r, console)
    console.print(table(COLUMNS, r.timelines.items()))
    console.print(f"{r.shape}, predicted on {options.on(r)}.\n{r.file}: {OPEN_IT}")


# ---------------------------------------------------------------- a recorded step


def _recorded(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Take the recording apart, write it for a viewer, and draw it beside a prediction."""
    from mini_engine import plots

    recording = load_recording(args.recorded, args.batch)
    if recording.like and recording.like["shape"] in SHAPES:
        vars(args).update(recording.like)  # the step that was recorded, as we have it
    steps, timelines = {"recorded": anatomy(recording)}, {}
    found, whole = steps["recorded"], not recording.events
    if recording.events:  # a name that fits its box: what a kernel is for, calls that launch
        timelines["recorded"] = [replace(e, name=_short_name(e)) for e in recording.events]
    if args.shape:
        predicted = _predicted(args, (args.mode or ["NONE"])[0])
        timelines["predicted"] = [*predicted.timeline]
        steps["predicted"] = _like_a_profiler(args, predicted, whole and found.idle_us is not None)
    picture, caption = (
        out.with_suffix(".png"),
        f"{recording.what}. {recording.source.split(',')[0]}",
    )
    title = "; ".join(f"{name}: {_in_short(step)}" for name, step in steps.items())
    if whole:
        plots.step_bars(_bars(steps), picture, title=title, caption=caption)
    else:
        a_layer_us = found.gpu_us / (found.layers or found.gpu_us)
        plots.timeline(
            timelines, picture, title=title, caption=caption, zoom_us=max(60.0, a_layer_us // 3)
        )
    if recording.events:
        timelines["recorded"] = [*recording.events]
    if timelines:
        write_trace(out, timelines)
    return {
        "recording": recording.name, "what": recording.what, "source": recording.source,
        **vars(found), "predicted": steps.get("predicted"), "compared": _compared(*steps.values()),
        "picture": picture, "file": out if timelines else None, "timelines": summary(timelines),
        **(_about(args) if args.shape else {}),
    }  # fmt: skip


def _short_name(event: TraceEvent) -> str:
    if event.lane == GPU:
        return kind_of(event.name)
    return "" if event.category == "host" else event.name


def _like_a_profiler(args: argparse.Namespace, step: Prediction, whole: bool) -> Anatomy:
    """A predicted step as a profiler would see it, from its first kernel on or all of it. The
    simulated call holds all that Python and PyTorch do for a kernel; the last of it is the
    driver's, and only that is what a profiler calls a launch."""
    found, spec = (
        anatomy_of(step.timeline, whole=whole),
        load_spec(args.spec, args.host, args.engine),
    )
    waits = (found.idle_in_launch_us or 0.0) + (found.idle_us or 0.0)
    calls = min(found.idle_in_launch_us or 0.0, (found.launches or 0) * spec.cpu_launch_us)
    layers = options.shape_of(args.shape).num_layers
    return replace(found, layers=layers, idle_in_launch_us=calls, idle_us=waits - calls)


def _in_short(step: Anatomy) -> str:
    if step.idle_us is None:
        return f"{step.busy_us / 1e3:.2f} ms of kernels"
    return f"a kernel runs {step.busy_us / step.gpu_us:.0%} of {step.gpu_us / 1e3:.2f} ms"


def _bars(steps: dict[str, Anatomy]) -> dict[str, dict[str, float]]:
    """For each step the parts of its time: kinds of kernels, where no gaps were published."""
    from mini_engine.plots.bars import LAUNCHES, OTHER_WORK, RUNS

    found, bars = steps["recorded"], {}
    large = [kind for kind, share in found.kinds.items() if share.us > FEW * found.busy_us]
    for name, step in steps.items():
        parts = {kind: step.kinds[kind].us for kind in large if kind in step.kinds}
        bars[name] = {**parts, "the rest": step.busy_us - sum(parts.values())}
        if found.idle_us is not None:
            name = f"{name}, {step.kernels:,.0f} kernels, {step.launches:,.0f} launches"
            waits = {LAUNCHES: step.idle_in_launch_us or 0.0, OTHER_WORK: step.idle_us or 0.0}
            bars[name] = {RUNS: step.busy_us, **waits}
    return bars


def _compared(found: Anatomy, step: Anatomy | None = None) -> dict[str, tuple[float, float]]:
    """What both steps tell: recorded, and predicted."""
    if step is None:
        return {}
    pairs = {
        "kernels": (found.kernels, step.kernels),
        "launches": (found.launches, step.launches),
        "µs in which a kernel runs": (found.busy_us, step.busy_us),
    }
    if found.idle_us is not None:
        pairs["µs in all"] = (found.gpu_us, step.gpu_us)
    return {what: (was, said) for what, (was, said) in pairs.items() if was and said}


def _show_recorded(r: argparse.Namespace, console: Console) -> None:
    console.print(f"{r.what}\n({r.source})")
    rows = [
        (kind, "" if kind == UNLISTED else f"{share.count:,.0f}",
         f"{share.count / r.layers:.1f}" if r.layers and kind != UNLISTED else "",
         f"{share.us:,.0f}", f"{share.us / r.busy_us:.0%}")
        for kind, share in r.kinds.items()
    ]  # fmt: skip
    if rows:
        console.print(table(("<kind", "count", "a layer", "µs", "share"), rows))
    counts = {"kernels": r.kernels, "launches and copies": r.launches, "graphs": r.graph_launches}
    told = [f"{count:,.0f} {what}" for what, count in counts.items() if count]
    if told:
        console.print(f"{', '.join(told)} a step")
    if r.idle_us is not None:
        parts = r.busy_us, r.idle_in_launch_us, r.idle_us
        busy, launching, other = (f"{us / sum(parts):.0%}" for us in parts)
        console.print(f"Of {sum(parts):,.0f} µs the GPU is {busy} at work, {launching} waiting for "
                      f"launch calls, {other} for other work of the CPU")  # fmt: skip
    if r.predicted:
        console.print(table(COMPARED, r.compared.items()))
        console.print(f"Predicted: {r.shape}, on {options.on(r)}.")
    console.print(f"Picture: {r.picture}")
    if r.file:
        console.print(f"{r.file}: {OPEN_IT}")
