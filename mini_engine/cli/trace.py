"""Look at one decode step: where the CPU was, where the GPU was, who waited for whom.

  python -m mini_engine trace --mode NONE --mode FULL --batch 4 -o out/step.json
  python -m mini_engine trace --backend cuda --mode FULL -o out/step.json
  python -m mini_engine trace --read out/step.json

The first predicts a decode step of a full-size model in each mode, for a card, a host and an engine
(--spec, --host, --engine), and writes a file that https://ui.perfetto.dev and chrome://tracing
open. The simulated device runs nine kernels a layer, whatever the engine; "HF eager" runs the ops
of transformers, issued at the speed of its Python. The second also runs the real engine under
PyTorch's profiler, and writes two processes for each mode, with the same two tracks: "measured
FULL", and above it "predicted FULL", the same ops on the simulated device. Look for the launches on
track CPU (one for each kernel, or one for a graph), for what track GPU does below them, and for the
gaps in it. Our kernels are named by what they are for: "norm + QKV (linear_kernel)". The third sums
up any such file.

A profiler itself takes time: `bench` tells what a step takes without one.
Weights are random in the true shape unless --shape is a checkpoint folder. Without a GPU, a tiny
model runs on the CPU emulator: its kernels are on track CPU, and track GPU stays empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.cli import measuring, options

if TYPE_CHECKING:
    from rich.console import Console

    from mini_engine.sim.trace import TraceEvent

    Timelines = Mapping[str, Sequence[TraceEvent]]

TRANSFORMERS = "transformers"  # the engine of mode HF eager
HF_EAGER = "HF eager"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    add("--read", type=Path, metavar="FILE", help="sum up this trace instead")
    words = "sim: predict. cuda: predict and measure, side by side (default: sim)"
    add("--backend", default="sim", choices=("sim", "cuda"), help=words)
    words = "a mode to trace; give it again for more (default: NONE, PIECEWISE and FULL)"
    add("--mode", action="append", choices=[*options.MODES, HF_EAGER], help=words)
    options.add_shape(parser)
    options.add_spec(parser)
    parser.set_defaults(shape=None, spec=None)  # which depend on --backend
    add("--batch", type=number, default=1, metavar="N", help="requests (default: 1)")
    words = "of each request, this step's token included (default: 512; emulated: 40)"
    add("--context", type=number, metavar="TOKENS", help=words)
    words = "with --backend cuda: the plain model, and not the kernels, five a layer"
    add("--plain", action="store_true", help=words)
    measuring.add_device(parser)
    words = "where to write the timelines: .json (default: out/trace.json)"
    add("-o", "--out", type=options.json_out, default="out/trace.json", metavar="FILE", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine.sim.trace import read_trace, write_trace

    if args.read:
        summary = _summary(read_trace(args.read))
        if not summary:
            raise ValueError(f'{args.read}: no event with a duration ("ph": "X") to sum up')
        return {"file": str(args.read), "timelines": summary}
    modes = args.mode or ["NONE", "PIECEWISE", "FULL"]
    if args.backend == "cuda":
        timelines, about = _side_by_side(args, modes, console)
    else:
        timelines, about = _predicted(args, modes)
    write_trace(args.out, timelines)
    return {"file": str(args.out), "timelines": _summary(timelines), **about}


def show(result: dict[str, Any], console: Console) -> None:
    from mini_engine.cli.terminal import table

    rows, remarks = [], {}
    for name, row in result["timelines"].items():
        short, _, remark = name.partition(" (")
        remarks[remark.removesuffix(")")] = (short.split() or [name])[0]
        times = (f"{row[what]:,.1f}" for what in ("length_us", "cpu_us", "gpu_us"))
        rows.append((short, f"{row['events']:,}", *times, f"{row['utilisation']:.0%}"))
    heads = ("<timeline", "events", "length µs", "CPU at work µs", "GPU at work µs", "GPU busy")
    console.print(table(heads, rows))
    for remark, whose in remarks.items():
        if remark:
            console.print(f"{whose}: {remark}")
    if "measured_on" in result:
        console.print(
            f"{result['shape']}. Measured on: {result['measured_on']}, slowed down by the "
            f"profiler. Predicted: the same ops on {options.on(result)}."
        )
    elif "engine" in result:
        console.print(f"{result['shape']}, predicted on {options.on(result)}.")
    console.print(f"{result['file']}: open it at https://ui.perfetto.dev or chrome://tracing")


# ---------------------------------------------------------------- parts


def _predicted(args: argparse.Namespace, modes: Sequence[str]) -> tuple[Timelines, dict[str, Any]]:
    """A step of a full-size model in each mode, on the simulated device."""
    from mini_engine.sim.predict import predict
    from mini_engine.step.capacity import check_batch
    from mini_engine.step.cards import load_spec

    if args.plain:
        raise ValueError("--plain: a prediction runs no model; add --backend cuda")
    if args.device != "auto":
        raise ValueError(f"--device {args.device}: a prediction runs nowhere; add --backend cuda")
    context = args.context or 512
    shape, card = measuring.shape_of(args.shape or "qwen3-0.6b"), args.spec or "h200"
    spec = load_spec(card, args.host, args.engine)
    check_batch(shape, spec, args.batch, context)
    # the ops of transformers are issued by its own Python
    specs = {HF_EAGER: load_spec(card, args.host or spec.host, args.engine or TRANSFORMERS)}
    timelines = {
        mode: predict(
            shape, specs.get(mode, spec), mode, batch=args.batch, context=context
        ).timeline
        for mode in modes
    }
    told = f"{shape.name}, batch {args.batch}, context {context:,}"
    return timelines, {"shape": told, **options.told(spec)}


def _side_by_side(
    args: argparse.Namespace, modes: Sequence[str], console: Console
) -> tuple[Timelines, dict[str, Any]]:
    """For each mode, what the profiler saw below what the simulator predicts for the same ops."""
    if HF_EAGER in modes:
        raise ValueError(
            f"--mode {HF_EAGER!r} is not of this engine: leave out --backend cuda, or time it with "
            "bench --arms hf-eager"
        )
    backend = measuring.backend_of(args.device, "trace --backend cuda", console)
    import torch

    from mini_engine.bench.evidence import gpu_name
    from mini_engine.bench.profile import process_name, profile_step
    from mini_engine.bench.spec_fit import base_name
    from mini_engine.bench.variants import OURS, PLAIN
    from mini_engine.cuda.generate import Kernels, why_plain
    from mini_engine.cuda.weights import no_room
    from mini_engine.sim.predict import op_timeline

    gpu = gpu_name(backend.device.type)
    known = "laptop-cpu" if backend.emulated else base_name(gpu)
    if args.engine:
        raise ValueError(f"--engine {args.engine}: with --backend cuda it is this engine's own")
    word = args.shape or ("tiny" if backend.emulated else "qwen3-0.6b")
    context = args.context or (40 if backend.emulated else 512)
    config = measuring.shape_of(word)
    kernels: Kernels = 0 if args.plain else 5
    if kernels and (reason := why_plain(config, backend, kernels)):
        console.print(f"{reason}: the plain model runs")
        kernels = 0
    spec = measuring.specs_for(args.spec or known or "h200", args.host)(OURS if kernels else PLAIN)
    if reason := no_room(config, backend, "fp32" if backend.emulated else "bf16"):
        raise ValueError(reason)
    dtype = torch.float32 if backend.emulated else torch.bfloat16
    weights = measuring.weights_of(word, config, backend, dtype)
    timelines: dict[str, Sequence[TraceEvent]] = {}
    for mode in modes:
        console.print(f"{config.name} {mode}: running under the profiler")
        step = profile_step(
            backend, weights, mode, batch=args.batch, context=context, kernels=kernels
        )
        timelines[f"predicted {mode}"] = op_timeline(step.ops, spec, step.launched, args.batch)
        timelines[process_name(mode, emulated=backend.emulated)] = step.timeline
    about = {
        "shape": f"{config.name}, batch {args.batch}, context {context:,}",
        "measured_on": gpu,
        "emulated": backend.emulated,
        **options.told(spec),
    }
    return timelines, about


def _summary(timelines: Timelines) -> dict[str, dict[str, float]]:
    from mini_engine.sim.trace import CPU, GPU, busy_us

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
