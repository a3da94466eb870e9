"""What fits on a card: weights, graphs, activations, KV cache, and the least time of one step.

  python -m mini_engine capacity --gpu rtx4070 --model qwen3-1.7b --context 10000 --quant int4

Decoding one token reads all weights and all keys and values so far. So two sums tell most of what a
card can do: bytes that must be held, against its memory, and bytes that must be read, against its
bandwidth. The second is the floor of ITL: no engine, graph or kernel can be faster.

The example asks for an RTX 4070 (12 GB) and Qwen3-1.7B with the matrices of its layers in int4 and
embedding and head left in bf16. The table sets weights and cache beside CUDA's own share,
activations, and the graphs of the decode sizes that vLLM would capture. Below it stand the longest
context, the largest batch, and the least time of a step.

Does the 5.5 GB file fit an 8 GB card at 8k context? A GGUF file goes by its mix (--quant q4_k_m) or
by its size:

  python -m mini_engine capacity --spec rtx4060 --shape qwen3-8b --file-gb 5.5 --context 8192

What would a cache without pages cost, where every request gets a row of --context columns, and all
of a batch wait for the longest answer?

  python -m mini_engine capacity --batch 8 --trace

No spec for your card? Say how much memory it has: --vram-gb 12. What the driver takes is then that
of a known card. Sums, not measurements: engines differ in what they keep. Neither the host nor the
engine changes them; the last line says what a step of that engine, as one graph, is predicted to
take beside its floor. With weights in few bits such predictions are too short (see
`validate`): widening small numbers is taken to be free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from mini_engine.step.capacity import CapacityReport

SHIPPED = Path("the shipped trace")  # where --trace names none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    options.add_shape(parser)
    options.add_spec(parser)
    add("--vram-gb", type=options.gigabytes, metavar="GB", help="memory, of a card without a name")
    tokens = "of every request (default: 4096)"
    add("--context", type=number, default=4096, metavar="TOKENS", help=tokens)
    add("--batch", type=options.between(1, 10**9, int), default=1, metavar="N", help="requests")
    options.add_stored(parser, "bf16")
    size = "of the weights, instead of --quant: 1e9 bytes"
    add("--file-gb", type=options.gigabytes, metavar="GB", help=size)
    graphs = "full graphs are held for vLLM's decode sizes up to this (default: 256)"
    without = "also what these requests cost a cache without pages, --context columns a row; "
    without += "without FILE, those that `serve` replays"
    add("--trace", type=Path, nargs="?", const=SHIPPED, metavar="FILE", help=without)
    add("--max-num-seqs", type=options.step_tokens, default=256, metavar="N", help=graphs)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine.dispatch.default_ladder import default_capture_sizes
    from mini_engine.step.capacity import capacity, check_context
    from mini_engine.step.cards import load_spec
    from mini_engine.step.kernels import StepShape, step_ops
    from mini_engine.step.run import step_time
    from mini_engine.step.storage import stored_as

    if args.file_gb and args.quant != "bf16":
        raise ValueError(
            f"--file-gb says how large the weights are: leave out --quant {args.quant}"
        )
    config = options.shape_of(args.shape)
    check_context(config, args.context)
    file_bytes = round((args.file_gb or 0) * 1e9)
    stored = stored_as(config, args.quant, args.kv_dtype, file_bytes)
    # of the sizes of vLLM's default settings, those of decode batches have a full graph
    sizes = default_capture_sizes(args.max_num_seqs, 8192)
    sizes = [size for size in sizes if size <= args.max_num_seqs]
    spec = None if args.vram_gb else load_spec(args.spec, args.host, args.engine)

    def at(context: int) -> CapacityReport:
        return capacity(
            config,
            spec or args.vram_gb,
            context=context,
            batch=args.batch,
            quant=args.quant,
            kv_dtype=args.kv_dtype,
            capture_sizes=sizes,
            weights_file=file_bytes,
        )

    report = at(args.context)
    on_paper_ms, copy_ms, predicted = report.floor_ms, report.copy_floor_ms, None
    if spec and report.fits:  # one full graph
        ops = step_ops(config, StepShape.decode(args.batch, args.context), spec.ops, stored)
        itl_us = step_time(ops, spec, "full", args.batch).itl_us
        predicted = options.interval(spec, itl_us, "FULL")
    return {
        "gpu": spec.name if spec else f"a card of {args.vram_gb:g} GB",
        "host": spec.host if spec else None,
        "engine": spec.engine if spec else None,
        "model": config.name,
        "quant": stored.quant,
        "kv_dtype": args.kv_dtype,
        "context": args.context,
        "batch": args.batch,
        "full_graphs": len(sizes),
        "rows": [
            {"item": item, "bytes": count, "note": note} for item, count, note in report.rows()
        ],
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "fits": report.fits,
        "left_bytes": report.left_bytes,
        "max_context": report.max_context,
        "model_context": report.model_context,
        "max_batch": report.max_batch,
        "floor_us": None if on_paper_ms is None else on_paper_ms * 1e3,
        "copy_floor_us": None if copy_ms is None else copy_ms * 1e3,
        "without_pages": _without_pages(args, at) if args.trace else None,
        "predicted": predicted,
    }


def _without_pages(args: argparse.Namespace, at: Callable[[int], CapacityReport]) -> dict[str, Any]:
    """What the decode steps of the requests of --trace read of a cache of (--batch, --context)."""
    from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace
    from mini_engine.step.masked_rows import masked_columns

    trace = SHIPPED_TRACE if args.trace == SHIPPED else args.trace
    every = [(request.prompt_tokens, request.output_tokens) for request in read_trace(trace)]
    held = [lengths for lengths in every if sum(lengths) <= args.context]
    if not held:
        raise ValueError(
            f"{trace}: none of {len(every)} requests fits --context {args.context}: raise it"
        )
    read = masked_columns(iter(held), args.batch, args.context)
    mean = -(-sum(map(sum, held)) // len(held))
    per_token = at(mean).kv_bytes_per_token
    return {
        "trace": str(trace),
        "requests": len(held),
        "too_long": len(every) - len(held),
        "needed_bytes": read.needed * per_token,
        "beyond_bytes": read.beyond * per_token,
        "ended_bytes": read.ended * per_token,
        "mean_context": mean,
        "max_batch_with_pages": at(mean).max_batch,
    }


# ---------------------------------------------------------------- for people


def show(result: dict[str, Any], console: Console) -> None:
    from mini_engine.cli.terminal import table

    console.print(
        f"[bold]{result['model']}[/bold] on {result['gpu']}: weights {result['quant']}, "
        f"cache {result['kv_dtype']}, batch {result['batch']:,}, context {result['context']:,}, "
        f"{result['full_graphs']} full graphs"
    )
    rows = [(row["item"], f"{row['bytes'] / 2**30:,.3f}", row["note"]) for row in result["rows"]]
    left = [i for i, (item, *_) in enumerate(rows) if item == "left"]
    console.print(table(("<item", "GiB", "<what it is"), rows, bold=left))
    if not result["fits"]:
        console.print("[bold]It does not fit.[/bold] No step is predicted.")
    longest = f"longest context of one request: {result['max_context']:,} tokens"
    if result["max_context"] > result["model_context"]:
        longest += f" of memory; the model was made for {result['model_context']:,}"
    console.print(longest)
    console.print(f"largest batch at {result['context']:,} tokens: {result['max_batch']:,}")
    console.print(_floor(result))
    if without := result["without_pages"]:
        console.print(_told(without, result), soft_wrap=True)
    if itl := result["predicted"]:
        console.print(
            f"one graph of {result['engine']} on the host {result['host']}, predicted: "
            f"{options.ms(itl)}. {options.WITHIN}"
        )


def _told(rows: dict[str, Any], result: dict[str, Any]) -> str:
    """The same for people."""
    parts = [rows[f"{part}_bytes"] for part in ("needed", "beyond", "ended")]
    needed, beyond, ended = (f"{100 * part / max(1, sum(parts)):.0f}%" for part in parts)
    read = sum(parts) / 1e9
    size = f"{read / 1e3:,.1f} TB" if read >= 1e3 else f"{read:,.1f} GB"
    told = (
        f"without pages, {rows['requests']:,} requests of {Path(rows['trace']).name} in batches of "
        f"{result['batch']:,}: {size} of keys and values are read, {needed} "
        f"of them for a text, {beyond} behind one, {ended} in rows that have ended"
    )
    if rows["too_long"]:
        told += f"; {rows['too_long']:,} do not fit {result['context']:,} columns"
    return told + (
        f"\nwith pages, at their {rows['mean_context']:,} tokens on average, the largest batch is "
        f"{rows['max_batch_with_pages']:,}"
    )


def _floor(result: dict[str, Any]) -> str:
    if result["floor_us"] is None:
        return "floor of ITL: unknown, for a card without a name"
    told = f"floor of ITL: {result['floor_us'] / 1e3:.3f} ms at the bandwidth on paper"
    if result["copy_floor_us"] is not None:
        told += f", {result['copy_floor_us'] / 1e3:.3f} ms at what a copy reaches"
    return told
