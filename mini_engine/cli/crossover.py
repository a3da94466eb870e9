"""ITL against batch, eager and with graphs: where does the gain of a CUDA graph end?

  python -m mini_engine crossover --shape qwen3-0.6b --spec h200 --host server --engine vllm

An eager step is a race: the CPU issues one kernel after another, the GPU runs them. While the batch
is small the GPU waits for every launch, and ITL is the number of kernels times what the engine's
Python takes to issue one: more requests cost little. At the crossover all kernels take as long as
all their launches. Below it a graph, which is launched once, saves what the GPU would have waited;
above it only the wider gaps between single launches, and what the engine does between two steps.
No step can beat the floor, the time to read weights and KV.

The example says, in words: vLLM on the usual server issues a kernel in 40 µs, so that the 257
kernels of a step with 1,024 tokens of context take eager 10.8 ms for 1 request and 11.0 ms for 8,
and the H200 is busy for a tenth of it. One graph takes 1.4 ms for 1 request, 7.5 times as fast,
and is still 1.8 times as fast for 256. The GPU would catch up with the CPU at 274 requests. How
fast the host is decides that: issued on a desktop of 2025 (--host desktop-2025), the same kernels
have the crossover at 107. Try also --engine transformers (1,591 kernels a step), a slower card
(--spec l4), --style fused5, or the file that calibrate --host has written.

With weights in few bits (--quant int4, --kv-dtype fp8) the GPU is done sooner, so eager steps are
launch-bound up to a larger batch, and a graph is worth more.

Batches run at the next rung of the ladder, padded; above its top they run eagerly. The table ends
with the largest batch that fits the card, as `capacity` counts it. All times are
predicted from the figures of the card, the host and the engine, none is measured here. In brackets
stands how far off measurements by others were, and for the crossover, where it would be if eager
steps took so much less or more.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine import plots
from mini_engine.cli import capture_sizes, options
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import ModelConfig
from mini_engine.step.capacity import largest_batch
from mini_engine.step.curves import ItlCurve, ItlPoint, itl_curve
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.payoff import crossover_batch
from mini_engine.step.step_cost import around
from mini_engine.step.storage import Stored, stored_as

TOKENS = 8192  # of a step: no size above it is captured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_shape(parser)
    options.add_spec(parser)
    options.add_style(parser)
    add, number = parser.add_argument, options.positive
    tokens = "of every request (default: 1024)"
    add("--context", type=number, default=1024, metavar="TOKENS", help=tokens)
    most = "the table ends here, or with the last that fits (default: 256)"
    add("--max-batch", type=number, default=256, metavar="N", help=most)
    sizes = "capture sizes, in any order (default: vLLM 0.33's for --max-num-seqs 256)"
    add("--ladder", type=options.whole_numbers, metavar="1,2,4", help=sizes)
    options.add_stored(parser)
    options.add_host_us(parser)
    options.add_picture(parser, "out/crossover.png")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    shape, spec = options.shape_and_spec(args)
    stored = stored_as(shape, args.quant, args.kv_dtype)
    # of a server with vLLM's defaults
    sizes = capture_sizes.ladder_of(args.ladder, max(256, args.max_batch), TOKENS)
    held = [size for size in sizes if args.ladder or size <= 256]  # as whole graphs, by default
    room = largest_batch(shape, spec, stored, held, args.context)
    with console.status("computing"):
        curve = itl_curve(
            shape, spec, CaptureLadder(sizes),
            style=args.style or spec.ops, context=args.context,
            max_batch=min(args.max_batch, room), stored=stored,
        )  # fmt: skip
        plots.itl_curve(curve, args.out)
    return {
        "shape": shape.name,
        **options.told(spec),
        "style": args.style or spec.ops,
        "context": args.context,
        "quant": stored.quant,
        "kv_dtype": stored.kv_dtype,
        "engine_us": sum(around(spec, 1)),
        "predicted": True,
        "capture_sizes": sizes,
        "left_out_sizes": capture_sizes.left_out(args.ladder, sizes, None),
        "max_batch": room,
        "fits": args.max_batch <= room,
        "crossover_batch": curve.crossover,
        "crossover_fits": curve.crossover <= room,
        "crossover_interval": _crossover_interval(shape, spec, curve, stored),
        "batch_1": {
            mode: options.interval(spec, getattr(curve.points[0], field).itl_us, mode)
            for mode, field in (("NONE", "eager"), ("PIECEWISE", "piecewise"), ("FULL", "full"))
        },
        "finding": curve.finding(),
        "rows": [_row(curve.point(batch)) for batch in _shown(curve)],
        "picture": str(args.out),
    }


def show(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{result['shape']}[/bold] on {options.on(result)}, op list {result['style']}, "
        f"weights {result['quant']}, cache {result['kv_dtype']}, {result['context']:,} tokens of "
        "context each: predicted\n"
    )
    table = Table()
    for head in (
        "batch", "rung", "eager\nITL ms", "piecewise\nITL ms", "full\nITL ms", "full\nfaster",
        "floor\nms", "busy\neager", "busy\nfull",
    ):  # fmt: skip
        table.add_column(head, justify="right")
    for row in result["rows"]:
        crossed = row["batch"] == result["crossover_batch"]
        table.add_row(
            f"{row['batch']:,}",
            "eager" if row["rung"] is None else f"{row['rung']:,}",
            f"{row['eager_ms']:.3f}",
            f"{row['piecewise_ms']:.3f}",
            f"{row['full_ms']:.3f}",
            f"× {row['speedup']:.2f}",
            f"{row['floor_ms']:.3f}",
            f"{row['eager_utilisation']:.0%}",
            f"{row['full_utilisation']:.0%}",
            style="bold" if crossed else None,
        )
    console.print(table)
    console.print("busy: the share of the step in which the GPU runs a kernel\n")
    if not result["fits"]:
        console.print(
            f"Batches above {result['max_batch']:,} are left out: at {result['context']:,} tokens "
            f"each they do not fit the {result['spec']} (see capacity)."
        )
    if left_out := result["left_out_sizes"]:
        console.print(capture_sizes.told(left_out, TOKENS))
    console.print(f"{result['finding']}.")
    low, high = result["crossover_interval"]
    crossed = f"at batch {result['crossover_batch']:,} ({low:,} to {high:,})"
    if result["crossover_fits"]:
        console.print(f"The crossover is {crossed}.")
    else:
        console.print(f"The crossover would be {crossed}: so many requests do not fit.")
    told = ((mode, options.ms(itl)) for mode, itl in result["batch_1"].items())
    console.print(f"Batch 1: {', '.join(f'{mode} {ms}' for mode, ms in told)}.")
    console.print(options.WITHIN)
    console.print(f"Picture: {result['picture']}")


# ---------------------------------------------------------------- parts


def _crossover_interval(
    shape: ModelConfig, spec: DeviceSpec, curve: ItlCurve, stored: Stored
) -> tuple[int, int]:
    """With issuing a kernel as much quicker and slower as eager steps were missed by."""
    quick, slow = (
        crossover_batch(shape, replace(spec, cpu_op_us=us), curve.style, curve.context, stored)
        for us in spec.interval(spec.cpu_op_us, "NONE")
    )
    return quick, slow


def _shown(curve: ItlCurve) -> list[int]:
    """The batches of the table: powers of two, the crossover, the last one."""
    last = curve.points[-1].batch
    powers = [1 << i for i in range(last.bit_length())]
    return sorted({*powers, last, min(curve.crossover, last)})


def _row(point: ItlPoint) -> dict[str, Any]:
    return {
        "batch": point.batch,
        "rung": point.rung,
        "eager_ms": point.eager.itl_us / 1e3,
        "piecewise_ms": point.piecewise.itl_us / 1e3,
        "full_ms": point.full.itl_us / 1e3,
        "speedup": point.speedup,
        "floor_ms": point.floor_us / 1e3,
        "eager_utilisation": point.eager.utilisation,
        "piecewise_utilisation": point.piecewise.utilisation,
        "full_utilisation": point.full.utilisation,
    }
