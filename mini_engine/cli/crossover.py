"""ITL against batch, eager and with graphs: where does the gain of a CUDA graph end?

  python -m mini_engine crossover --shape qwen3-0.6b --spec h200 --host server --engine vllm

An eager step is a race: the CPU issues one kernel after another, the GPU runs them. While the batch
is small the GPU waits for every launch, and ITL is the number of kernels times what the engine's
Python takes to issue one: more requests cost little. At the crossover all kernels take as long as
all their launches. Below it a graph, which is launched once, saves what the GPU would have waited;
above it only the wider gaps between single launches, and what the engine does between two steps.
No step can beat the floor, the time to read weights and KV.

How fast the host is decides where the crossover lies: on a desktop of 2025 (--host desktop-2025)
the same kernels are issued sooner, and the GPU catches up at a smaller batch. Try also --engine
transformers, which launches many more kernels a step, a slower card (--spec l4), weights in few
bits (--quant int4), with which the GPU is done sooner, or the file that calibrate --host wrote.

Batches run at the next rung of the ladder, padded; above its top they run eagerly. All times are
predicted. In brackets stands how far off measurements by others were, and for the crossover, where
it would be if eager steps took so much less or more.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import Columns, table
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.step.capacity import check_batch
from mini_engine.step.curves import crossover_batch, itl_curve
from mini_engine.step.storage import stored_as

MODES = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}
COLUMNS: Columns = {
    "batch": "{0.batch:,}",
    "rung": lambda p: "eager" if p.rung is None else f"{p.rung:,}",
    "eager\nITL ms": lambda p: options.two_digits(p.eager.itl_us / 1e3),
    "piecewise\nITL ms": lambda p: options.two_digits(p.piecewise.itl_us / 1e3),
    "full\nITL ms": lambda p: options.two_digits(p.full.itl_us / 1e3),
    "full\nfaster": "× {0.speedup:.2f}",
    "floor\nms": lambda p: options.two_digits(p.floor_us / 1e3),
    "busy\neager": "{0.eager.utilisation:.0%}",
    "busy\nfull": "{0.full.utilisation:.0%}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "shape", "spec", "stored", "context")
    most = "the table ends here, or with the last that fits (default: 256)"
    how: dict[str, Any] = {"default": 256, "metavar": "N", "help": most}
    parser.add_argument("--max-batch", type=options.step_tokens, **how)
    options.add_picture(parser, "out/crossover.png")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine import plots

    shape, spec = options.shape_and_spec(args)
    stored = stored_as(shape, args.quant, args.kv_dtype)
    seqs, tokens = spec.batch_defaults
    sizes = default_capture_sizes(max(seqs, args.max_batch), tokens)
    decode_sizes = [size for size in sizes if size <= seqs]  # those have a whole graph
    room = check_batch(shape, spec, 1, args.context, stored, decode_sizes)
    curve = itl_curve(
        shape, spec, CaptureLadder(sizes),
        context=args.context, max_batch=min(args.max_batch, room), stored=stored,
    )  # fmt: skip
    if out := options.picture_of(args):
        plots.itl_curve(curve, out)
    first, last = curve.points[0], curve.points[-1].batch
    shown = {1 << i for i in range(last.bit_length())} | {last, min(curve.crossover, last)}
    # where the crossover would be if issuing a kernel took as much less and more as eager steps
    # were missed by
    ends = spec.interval(spec.cpu_op_us, "NONE") or ()
    hosts = (replace(spec, cpu_op_us=us) for us in ends)
    return {
        "shape": shape.name,
        **options.told(spec),
        "style": spec.ops,
        "quant": stored.quant,
        "kv_dtype": stored.kv_dtype,
        "capture_sizes": sizes,
        "max_batch": room,
        "fits": args.max_batch <= room,
        "crossover_batch": curve.crossover,
        "crossover_interval": [crossover_batch(shape, on, args.context, stored) for on in hosts],
        "batch_1": {
            mode: options.interval(spec, getattr(first, name).itl_us, mode, 1, first.floor_us)
            for mode, name in MODES.items()
        },
        "finding": curve.finding(),
        "out": out,
        "points": [curve.point(batch) for batch in sorted(shown)],
    }


def show(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{result['shape']}[/bold] on {options.on(result)}, op list {result['style']}, "
        f"weights {result['quant']}, cache {result['kv_dtype']}, {result['context']:,} tokens of "
        "context each: predicted\n"
    )
    points, crossover, room = result["points"], result["crossover_batch"], result["max_batch"]
    bold = [i for i, point in enumerate(points) if point.batch == crossover]
    console.print(table(COLUMNS, points, bold=bold))
    console.print("busy: the share of the step in which the GPU runs a kernel\n")
    if not result["fits"]:
        console.print(
            f"Batches above {room:,} are left out: at {result['context']:,} tokens each they do "
            f"not fit the {result['spec']} (see capacity)."
        )
    low, high = result["crossover_interval"]
    beyond = ": so many requests do not fit" if crossover > room else ""
    console.print(f"{result['finding']}.")
    console.print(f"The crossover is at batch {crossover:,} ({low:,} to {high:,}){beyond}.")
    modes = ", ".join(f"{mode} {options.ms(itl)}" for mode, itl in result["batch_1"].items())
    console.print(f"Batch 1: {modes}.\n{options.WITHIN}\nPicture: {result['out']}")
