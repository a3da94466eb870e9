"""What fits on a card: weights, graphs, activations, KV cache, and the least time of one step.

  python -m mini_engine capacity --gpu rtx4070 --model qwen3-1.7b --context 10000 --quant int4

Decoding one token reads all weights and all keys and values so far. So two sums tell most of what a
card can do: bytes that must be held, against its memory, and bytes that must be read, against its
bandwidth. The second is the floor of ITL: no engine, graph or kernel can be faster.

Does a GGUF file fit an 8 GB card at 8k context? It goes by its mix (--quant q4_k_m) or its size:

  python -m mini_engine capacity --spec rtx4060 --shape qwen3-8b --file-gb 5.5 --context 8192

No spec for your card? Say how much memory it has: --vram-gb 12. What the driver takes is then that
of a known card. Sums, not measurements: engines differ in what they keep. The last line says what a
step of --engine on --host, as one graph, is predicted to take beside its floor. With weights in few
bits such predictions are too short (see `validate`): widening small numbers is taken to be free.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import table
from mini_engine.dispatch.default_ladder import batch_defaults, default_capture_sizes
from mini_engine.step.capacity import GIB, capacity, check_context
from mini_engine.step.cards import load_spec
from mini_engine.step.curves import step_floor_us
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from mini_engine.step.storage import stored_as


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    options.add(parser, "shape", "spec", "stored", "context", context=4096)
    parser.set_defaults(spec=None)  # to know whether it was given beside --vram-gb
    add("--vram-gb", type=options.gigabytes, metavar="GB", help="memory, of a card without a name")
    add("--batch", type=options.between(1, 10**9, int), default=1, metavar="N", help="requests")
    size = "of the weights, instead of --quant: 1e9 bytes"
    add("--file-gb", type=options.gigabytes, metavar="GB", help=size)
    graphs = "full graphs are held for vLLM's decode sizes up to this (default: vLLM's on the card)"
    add("--max-num-seqs", type=options.step_tokens, metavar="N", help=graphs)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.file_gb and args.quant:
        raise ValueError(
            f"--file-gb says how large the weights are: leave out --quant {args.quant}"
        )
    named = [f"--{name} {word}" for name in ("spec", "host", "engine")
             if (word := getattr(args, name))]  # fmt: skip
    if args.vram_gb and named:
        raise ValueError(f"--vram-gb is for a card without a name: leave out {', '.join(named)}")
    config = options.shape_of(args.shape)
    check_context(config, args.context)
    file_bytes = round((args.file_gb or 0) * 1e9)
    stored = stored_as(config, args.quant, args.kv_dtype, file_bytes)
    spec = None if args.vram_gb else load_spec(args.spec or options.CARD, args.host, args.engine)
    defaults = spec.batch_defaults if spec else batch_defaults("", args.vram_gb * GIB)
    args.max_num_seqs = args.max_num_seqs or defaults.max_num_seqs
    # of the sizes of vLLM's default settings, those of decode batches have a full graph
    sizes = default_capture_sizes(args.max_num_seqs, defaults.max_num_batched_tokens)
    sizes = [size for size in sizes if size <= args.max_num_seqs]

    report, predicted = capacity(
        config, spec or args.vram_gb, context=args.context, batch=args.batch,
        quant=args.quant or stored_as(config).quant, kv_dtype=stored.kv_dtype,
        capture_sizes=sizes, weights_file=file_bytes,
    ), None  # fmt: skip
    if spec and report.fits:  # one full graph
        ops = step_ops(config, StepShape.decode(args.batch, args.context), spec.ops, stored)
        itl_us = step_time(ops, spec, "full", args.batch).itl_us
        floor_us = step_floor_us(config, spec, args.batch, args.context, stored)
        predicted = options.interval(spec, itl_us, "FULL", args.batch, floor_us)
    return {
        "gpu": spec.name if spec else f"a card of {args.vram_gb:g} GB",
        "host": spec.host if spec else None,
        "engine": spec.engine if spec else None,
        "model": config.name,
        "quant": stored.quant,
        "kv_dtype": stored.kv_dtype,
        "full_graphs": len(sizes),
        "report": report,
        "predicted": predicted,
    }


def show(result: dict[str, Any], console: Console) -> None:
    report = result["report"]
    console.print(
        f"[bold]{result['model']}[/bold] on {result['gpu']}: weights {result['quant']}, "
        f"cache {result['kv_dtype']}, batch {report.batch:,}, context {report.context:,}, "
        f"{result['full_graphs']} full graphs"
    )
    rows = [(item, f"{size / 2**30:,.3f}", note) for item, size, note in report.rows()]
    console.print(table(("<item", "GiB", "<what it is"), rows, bold=[len(rows) - 1]))
    if not report.fits:
        console.print("[bold]It does not fit.[/bold] No step is predicted.")
    beyond, floor = "", "unknown, for a card without a name"
    if report.max_context > report.model_context:
        beyond = f" of memory; the model was made for {report.model_context:,}"
    if report.floor_ms is not None:
        floor = f"{report.floor_ms:.3f} ms at the bandwidth on paper, "
        floor += f"{report.copy_floor_ms:.3f} ms at what a copy reaches"
    console.print(
        f"longest context of one request: {report.max_context:,} tokens{beyond}\n"
        f"largest batch at {report.context:,} tokens: {report.max_batch:,}\nfloor of ITL: {floor}"
    )
    if itl := result["predicted"]:
        console.print(
            f"one graph of {result['engine']} on the host {result['host']}, predicted: "
            f"{options.ms(itl)}. {options.WITHIN}"
        )
