"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --backend cuda --mode FULL -o out/step.json
  python -m mini_engine trace --recorded sglang-qwen3-8b-graph

The first predicts a decode step of a full-size model in each mode and writes a file that
https://ui.perfetto.dev and chrome://tracing open. The simulated device runs nine kernels a layer,
whatever the engine; "HF eager" runs the ops of transformers, issued at the speed of its Python. The
second also runs the real engine under PyTorch's profiler, and writes two processes for each mode
with the same two tracks: "measured FULL", and above it "predicted FULL", the same ops on the
simulated device. Look for the launches on track CPU (one for each kernel, or one for a graph), for
what track GPU does below them, and for the gaps in it.

The third takes a step apart that somebody has recorded: how many launches, which kernels, how busy
the GPU was, and what it waited for. It draws the step, beside a prediction where the model is one
of ours, and says how far off that is; where only a table was published, bars stand for the lanes.
Of SGLang under nsys there are steps of 1, 4, 8 and 16 requests (--batch). Give it a file of your
own (torch.profiler's export_chrome_trace, .json or .json.gz): its "ProfilerStep" of median length
is taken, or all of it; with --shape, --mode and the rest, the step that you recorded is predicted
beside it.

A profiler itself takes time: `bench` tells what a step takes without one. Weights are random unless
--shape is a checkpoint folder. Without a GPU, a tiny model runs on the CPU emulator: its kernels
are on track CPU, and track GPU stays empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.cli import measuring, options, recorded
from mini_engine.cli.terminal import table
from mini_engine.sim.predict import HF_EAGER, play, predict
from mini_engine.sim.recorded import recording_names
from mini_engine.sim.trace import TraceEvent, summary, write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec

Timelines = Mapping[str, Sequence[TraceEvent]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    words = f"take a recorded step apart: {', '.join(recording_names())}, or a profiler's file"
    add("--recorded", metavar="NAME", help=words)
    words = "sim: predict. cuda: predict and measure, side by side (default: sim)"
    add("--backend", default="sim", choices=("sim", "cuda"), help=words)
    words = "a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)"
    add("--mode", action="append", choices=[*options.MODES, HF_EAGER], help=words)
    options.add_shape(parser)
    options.add_spec(parser)
    parser.set_defaults(shape=None, spec=None, out=None)  # which depend on other options
    add("--batch", type=number, default=1, metavar="N", help="requests (default: 1)")
    words = "of each request, this step's token included (default: 512; emulated: 40)"
    add("--context", type=number, metavar="TOKENS", help=words)
    words = "with --backend cuda: the plain model, and not the kernels, five a layer"
    add("--plain", action="store_true", help=words)
    measuring.add_device(parser)
    words = "where to write the timelines: .json (default: out/trace.json)"
    add("-o", "--out", type=options.json_out, metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.recorded:
        return recorded.run(args)
    modes, out = args.mode or ["NONE", "PIECEWISE", "FULL"], args.out or Path("out/trace.json")
    if out.resolve() in [Path(one or ".").resolve() for one in (args.spec, args.host, args.engine)]:
        raise ValueError(f"-o {out}: figures are read from there: give another name")
    if args.backend == "cuda":
        timelines, about = _side_by_side(args, modes, console)
    else:
        timelines, about = _predicted(args, modes)
    write_trace(out, timelines)
    return {"file": out, "timelines": summary(timelines), **about}


def _predicted(args: argparse.Namespace, modes: Sequence[str]) -> tuple[Timelines, dict[str, Any]]:
    """A step of a full-size model in each mode, on the simulated device."""
    if args.plain or args.device != "auto":
        option = "--plain" if args.plain else f"--device {args.device}"
        raise ValueError(f"{option}: a prediction runs no model; add --backend cuda")
    context, card = args.context or 512, args.spec or options.CARD
    shape = measuring.shape_of(args.shape or "qwen3-0.6b")
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


def _side_by_side(
    args: argparse.Namespace, modes: Sequence[str], console: Console
) -> tuple[Timelines, dict[str, Any]]:
    """For each mode, what the profiler saw below what the simulator predicts for the same ops."""
    if HF_EAGER in modes or args.engine:
        option = f"--engine {args.engine}" if args.engine else f"--mode {HF_EAGER!r}"
        raise ValueError(f"{option}: --backend cuda traces this engine: leave out one of the two")
    backend = measuring.backend_of(args.device, "trace --backend cuda", console)
    import torch

    from mini_engine.bench.evidence import gpu_name
    from mini_engine.bench.profile import process_name, profile_step
    from mini_engine.bench.spec_fit import base_name
    from mini_engine.bench.variants import OURS, PLAIN
    from mini_engine.cuda.generate import Kernels, why_plain
    from mini_engine.cuda.weights import no_room

    gpu = gpu_name(backend.device.type)
    word, context, card, dtype = "qwen3-0.6b", 512, base_name(gpu), torch.bfloat16
    if backend.emulated:
        word, context, card, dtype = "tiny", 40, "laptop-cpu", torch.float32
    word, context = args.shape or word, args.context or context
    config = measuring.shape_of(word)
    kernels: Kernels = 0 if args.plain else 5
    if kernels and (reason := why_plain(config, backend, kernels)):
        console.print(f"{reason}: the plain model runs")
        kernels = 0
    spec_for = measuring.specs_for(args.spec or card or options.CARD, args.host)
    spec = spec_for(OURS if kernels else PLAIN)
    if reason := no_room(config, backend, "fp32" if backend.emulated else "bf16"):
        raise ValueError(reason)
    weights = measuring.weights_of(word, config, backend, dtype)
    timelines: dict[str, Sequence[TraceEvent]] = {}
    for mode in modes:
        console.print(f"{config.name} {mode}: running under the profiler")
        step = profile_step(
            backend, weights, mode, batch=args.batch, context=context, kernels=kernels
        )
        timelines[f"predicted {mode}"], _ = play(step.ops, spec, step.launched, args.batch)
        timelines[process_name(mode, emulated=backend.emulated)] = step.timeline
    about = f"{config.name}, batch {args.batch}, context {context:,}"
    measured = {"measured_on": gpu, "emulated": backend.emulated}
    return timelines, {"shape": about, **measured, **options.told(spec)}


def show(result: dict[str, Any], console: Console) -> None:
    if "recording" in result:
        return recorded.show(result, console)
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
    if "measured_on" in result:
        console.print(
            f"{result['shape']}. Measured on: {result['measured_on']}, slowed down by the "
            f"profiler. Predicted: the same ops on {options.on(result)}."
        )
    else:
        console.print(f"{result['shape']}, predicted on {options.on(result)}.")
    console.print(f"{result['file']}: open it at https://ui.perfetto.dev or chrome://tracing")
