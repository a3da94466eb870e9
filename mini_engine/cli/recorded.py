"""`trace --recorded`: a step that somebody has recorded, taken apart beside a prediction of it.

In:  the words of `trace`. Out: what the step consists of, the same of the predicted step, and both
     drawn: on two lanes where there is a timeline, as bars where only a table was published.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import measuring, options
from mini_engine.cli.terminal import table
from mini_engine.model.config import SHAPES
from mini_engine.sim.predict import HF_EAGER, play
from mini_engine.sim.recorded import UNLISTED, Anatomy, anatomy, anatomy_of, kind_of, load_recording
from mini_engine.sim.trace import GPU, TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec
from mini_engine.step.explain import Explained, explain
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import WAYS

ONCE = ("KV write", "attention")  # what a layer has one of: the first that is there
FEW = 0.02  # a kind below this share of every bar has no colour of its own


@dataclass(frozen=True)
class Beside:
    """The same step, predicted."""

    timeline: Sequence[TraceEvent]
    step: Anatomy  # the whole step, from one token to the next
    explained: Explained  # the recorded time, if it is that of a whole step; else the predicted
    about: Mapping[str, Any]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Take `args.recorded` apart, write it for a viewer, and draw it beside a prediction."""
    from mini_engine import plots

    recording = load_recording(args.recorded, args.batch)
    out = args.out or Path("out/recorded.json")
    if out.resolve() == Path(args.recorded).resolve():
        raise ValueError(f"-o {out}: the recording is read from there: give another name")
    like = recording.like if recording.like and recording.like["shape"] in SHAPES else {}
    for name, value in like.items():  # the step that was recorded, as we have it
        setattr(args, name, getattr(args, name) if name == "mode" and args.mode else value)
    found = anatomy(recording)
    whole_us = None if recording.events or found.idle_us is None else found.gpu_us
    beside = _predicted(args, whole_us) if args.shape else None  # --shape: one's own file
    timelines = {"recorded": recording.events} if recording.events else {}
    if beside:
        timelines["predicted"] = tuple(beside.timeline)
    picture, title = out.with_suffix(".png"), _title(found, beside)
    caption = f"{recording.what}. {recording.source.split(',')[0]}"
    if recording.events:
        short = [replace(e, name=_short_name(e)) for e in recording.events]
        begins = {name: _middle_layer_us(events) for name, events in timelines.items()}
        plots.timeline(
            {**timelines, "recorded": short},
            picture,
            title=title,
            caption=caption,
            zoom_us=_window_us(found),
            recorded_us=begins,
        )
    else:
        plots.step_bars(_bars(found, beside), picture, title=title, caption=caption)
    if timelines:
        write_trace(out, timelines)
    return {
        "recording": recording.name,
        "what": recording.what,
        "source": recording.source,
        **asdict(found),
        "compared": dict(_compared(found, beside.step)) if beside else {},
        "predicted": asdict(beside.step) if beside else None,
        "explained": vars(beside.explained) if beside and whole_us else None,
        "picture": picture,
        "file": out if timelines else None,
        "timelines": summary(timelines),
        **(beside.about if beside else {}),
    }


def _predicted(args: argparse.Namespace, itl_us: float | None) -> Beside:
    """The step that the options describe, by the kernels of its engine; taken apart from its first
    kernel on, or from token to token, as the recorded one is."""
    mode, context = args.mode[0] if args.mode else "NONE", args.context or 512
    engine = args.engine or ("transformers" if mode == HF_EAGER else None)
    shape = measuring.shape_of(args.shape)
    spec = load_spec(args.spec or options.CARD, args.host, engine)
    check_batch(shape, spec, args.batch, context)
    way = {"FULL_AND_PIECEWISE": "FULL", HF_EAGER: "NONE"}.get(mode, mode)
    ops = step_ops(shape, StepShape.decode(args.batch, context), spec.ops)
    timeline, _ = play(ops, spec, WAYS[way], args.batch)
    explained = explain(shape, spec, batch=args.batch, context=context, itl_us=itl_us, mode=way)
    about = f"{shape.name}, batch {args.batch}, context {context:,}"
    told = {"shape": about, **options.told(spec)}
    step = anatomy_of(timeline, whole=itl_us is not None)
    # The simulated call holds all that Python and PyTorch do for a kernel; the last of it is the
    # driver's, and only that is what a profiler calls a launch.
    waits = (step.idle_in_launch_us or 0.0) + (step.idle_us or 0.0)
    calls = min(step.idle_in_launch_us or 0.0, (step.launches or 0) * spec.cpu_launch_us)
    layers = shape.num_layers
    step = replace(step, layers=layers, idle_in_launch_us=calls, idle_us=waits - calls)
    return Beside(timeline, step, explained, told)


def _short_name(event: TraceEvent) -> str:
    """A name that fits its box: what a kernel is for, and on the CPU only calls that launch."""
    if event.lane == GPU:
        return kind_of(event.name)
    return "" if event.category == "host" else event.name


def _middle_layer_us(events: Sequence[TraceEvent]) -> float:
    """When the layer in the middle of a step writes its keys; where none does, its middle kernel
    begins."""
    on_gpu = [e for e in events if e.lane == GPU]
    kinds = {kind: [e for e in on_gpu if kind_of(e.name) == kind] for kind in ONCE}
    once = next(filter(None, kinds.values()), on_gpu)
    return once[len(once) // 2].start_us - min(e.start_us for e in events)


def _window_us(step: Anatomy) -> float:
    """About a third of a layer: few enough kernels that their names are read."""
    return max(60.0, round(step.gpu_us / step.layers / 3, -1)) if step.layers else 60.0


# ---------------------------------------------------------------- bars


def _title(found: Anatomy, beside: Beside | None) -> str:
    says = []
    for name, step in (("Recorded", found), *([("predicted", beside.step)] if beside else [])):
        if found.idle_us is None:
            say = f"{step.busy_us / 1e3:.2f} ms of kernels, {_of(step, 'product'):.0%} products, "
            says.append(f"{name}: {say}{_of(step, 'attention'):.0%} attention")
        else:
            share = step.busy_us / step.gpu_us
            says.append(f"{name}: a kernel runs {share:.0%} of {step.gpu_us / 1e3:.2f} ms")
    return "; ".join(says)


def _bars(found: Anatomy, beside: Beside | None) -> dict[str, Mapping[str, float]]:
    """For each step the parts of its time."""
    from mini_engine.plots.bars import BYTES, LAUNCHES, OTHER_WORK, RUNS, STARTS, WAITS

    steps = {"recorded": found} | ({"predicted": beside.step} if beside else {})
    bars: dict[str, Mapping[str, float]] = {}
    if found.idle_us is None:
        large = [kind for kind, share in found.kinds.items() if share.us > FEW * found.busy_us]
        for name, step in steps.items():
            parts = {kind: step.kinds[kind].us for kind in large if kind in step.kinds}
            bars[name] = {**parts, "the rest": step.busy_us - sum(parts.values())}
        return bars
    for name, step in steps.items():
        bytes_us = min(beside.explained.floor_us, step.busy_us) if beside else 0.0
        runs = {BYTES: bytes_us, STARTS: step.busy_us - bytes_us}
        runs = runs if beside else {RUNS: step.busy_us}
        waits = {LAUNCHES: step.idle_in_launch_us or 0.0, OTHER_WORK: step.idle_us or 0.0}
        bars[f"{name}, {step.kernels:,.0f} kernels, {step.launches:,.0f} launches"] = runs | waits
    if beside:
        by = beside.explained
        bars["what explain makes of the recorded time"] = {
            BYTES: by.floor_us, STARTS: by.kernels_us, WAITS: by.cpu_us
        }  # fmt: skip
    return bars


def _of(step: Anatomy, kind: str) -> float:
    """The share of one kind in the time of all kernels."""
    return step.kinds[kind].us / step.busy_us if kind in step.kinds else 0.0


def _compared(found: Anatomy, predicted: Anatomy) -> Iterator[tuple[str, tuple[float, float]]]:
    """What both steps tell: recorded, and predicted."""
    if found.kernels and predicted.kernels:
        yield "kernels", (found.kernels, predicted.kernels)
    if found.launches and predicted.launches:
        yield "launches", (found.launches, predicted.launches)
    yield "µs in which a kernel runs", (found.busy_us, predicted.busy_us)
    if found.idle_us is not None:
        yield "µs in all", (found.gpu_us, predicted.gpu_us)
        busy = (found.busy_us / found.gpu_us, predicted.busy_us / predicted.gpu_us)
        yield "share of it busy", busy
    if found.kinds:
        yield "share of attention", (_of(found, "attention"), _of(predicted, "attention"))
    if found.small_us and predicted.small_us:
        yield "µs from a small kernel to the next", (found.small_us, predicted.small_us)


# ---------------------------------------------------------------- for people


def show(r: dict[str, Any], console: Console) -> None:
    console.print(f"{r['what']}\n({r['source']})", soft_wrap=True)
    if r["kinds"]:
        console.print(_kinds(r))
    told = [f"{r[name]:,.0f} {what}" for name, what in (
        ("kernels", "kernels"), ("launches", "launches and copies"), ("graph_launches", "graphs")
    ) if r[name]]  # fmt: skip
    if told:
        console.print(f"{', '.join(told)} a step")
    if r["idle_us"] is not None:
        whole = r["busy_us"] + r["idle_in_launch_us"] + r["idle_us"]
        shares = (r[name] / whole for name in ("busy_us", "idle_in_launch_us", "idle_us"))
        busy, in_launch, otherwise = (f"{share:.0%}" for share in shares)
        console.print(
            f"Of {whole:,.0f} µs the GPU is {busy} at work, {in_launch} waiting for launch calls, "
            f"{otherwise} for other work of the CPU",
            soft_wrap=True,
        )
    if r["compared"]:
        rows = []
        for what, (was, said) in r["compared"].items():
            shown = "{:.0%}" if what.startswith("share") else "{:,.1f}" if was < 100 else "{:,.0f}"
            off = f"{said / was - 1:+.0%}" if was else ""
            rows.append((what, shown.format(was), shown.format(said), off))
        console.print(table(("<", "recorded", "predicted", "off by"), rows))
        console.print(f"Predicted: {r['shape']}, on {options.on(r)}.", soft_wrap=True)
    if by := r["explained"]:
        ms = [f"{by[name] / 1e3:.2f} ms {what}" for name, what in (
            ("floor_us", "of bytes"), ("kernels_us", "of beginnings and ends of kernels"),
            ("cpu_us", "of waiting for the CPU"),
        )]  # fmt: skip
        factor = by["host_factor"]
        host = f", on a host that takes {factor:.1f} times as long as {r['host']}" if factor else ""
        console.print(f"explain makes of it: {', '.join(ms)}{host}.", soft_wrap=True)
    console.print(f"Picture: {r['picture']}")
    if r["file"]:
        console.print(
            f"{r['file']}: open it at https://ui.perfetto.dev or chrome://tracing", soft_wrap=True
        )


def _kinds(r: dict[str, Any]) -> Any:
    """Kernels by kind, recorded and predicted."""
    layers, rows = r["layers"], []
    beside = r["predicted"]

    def a_layer(step: dict[str, Any], kind: str) -> str:
        share = step["kinds"].get(kind)
        return f"{share['count'] / step['layers']:.1f}" if share and step["layers"] else ""

    for kind, share in r["kinds"].items():
        count = "" if kind == UNLISTED else f"{share['count']:,.0f}"
        ours = [f"{share['us']:,.0f}", f"{share['us'] / r['busy_us']:.0%}"]
        row = [kind, count, a_layer(r, kind) if count and layers else "", *ours]
        if beside:
            us = beside["kinds"].get(kind, {"us": 0.0})["us"]
            row += [a_layer(beside, kind), f"{us / beside['busy_us']:.0%}"]
        rows.append(row)
    heads = ("<kind", "count", "a layer", "µs", "share")
    return table((*heads, "predicted: a layer", "share") if beside else heads, rows)
