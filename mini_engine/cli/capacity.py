"""What fits on a card: weights, graphs, activations, KV cache, and the least time of one step.

  python -m mini_engine capacity --gpu rtx4070 --model qwen3-1.7b --context 10000 --quant int4

Decoding one token reads all weights and all keys and values so far. So two sums tell most of what a
card can do: bytes that must be held, against its memory, and bytes that must be read, against its
bandwidth. The second is the floor of ITL: no engine, graph or kernel can be faster.

The example says, in words: on an RTX 4070 (12 GB) the layers of Qwen3-1.7B in int4, with embedding
and head left in bf16, take 1.3 GiB. A token's keys and values take 112 KiB, so 10,000 tokens take
1.1 GiB, about as much as the weights. Next to CUDA's own share, activations, and the graphs of the
35 decode sizes that vLLM would capture, 9 such requests fit at once, or one of 92,102 tokens (the
model itself was made for 40,960). One step of one request cannot take less than 5.0 ms.

Does the 5.5 GB file fit an 8 GB card at 8k context? A GGUF file goes by its mix (--quant q4_k_m) or
by its size:

  python -m mini_engine capacity --spec rtx4060 --shape qwen3-8b --file-gb 5.5 --context 8192

What would a cache without pages cost, where every request gets a row of --context columns, and all
of a batch wait for the longest answer?

  python -m mini_engine capacity --batch 8 --trace

No spec for your card? Say what it has: --vram-gb 12 --bandwidth-gb-s 504. What the driver takes is
then that of a known card. Sums, not measurements: engines differ in what they keep. Neither the
host nor the engine changes them; the last line says what a step of that engine, as one graph, is
predicted to take beside its floor. With weights in few bits such predictions are too short, by a
fifth in the middle (`validate`): widening small numbers is taken to be free.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import options
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace
from mini_engine.step.capacity import GIB, CapacityReport, capacity, check_context, floor_ms
from mini_engine.step.hardware import DeviceSpec, load_spec, spec_names
from mini_engine.step.masked_rows import masked_columns
from mini_engine.step.oplists import StepShape, step_ops
from mini_engine.step.step_cost import step_time
from mini_engine.step.storage import Stored, stored_as

DEFAULT_GPU = "h200"
MOST_REQUESTS = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    cards = f"{', '.join(spec_names())}, or a JSON file (default: {DEFAULT_GPU})"
    add("--gpu", "--spec", metavar="NAME", help=cards)
    options.add_engine(parser)
    add("--vram-gb", type=float, metavar="GB", help="memory, instead of --gpu")
    add("--bandwidth-gb-s", type=float, metavar="N", help="of that memory, for the floor")
    shapes = f"{', '.join(SHAPES)}, or a checkpoint folder (default: qwen3-0.6b)"
    add("--model", "--shape", default="qwen3-0.6b", help=shapes)
    tokens = "of every request (default: 4096)"
    add("--context", type=number, default=4096, metavar="TOKENS", help=tokens)
    add("--batch", type=number, default=1, metavar="N", help="requests")
    options.add_stored(parser, "bf16")
    add("--file-gb", type=float, metavar="GB", help="of the weights, instead of --quant: 1e9 bytes")
    graphs = "full graphs are held for vLLM's decode sizes up to this (default: 256)"
    without = (
        "also what these requests cost a cache without pages, --context columns a row; without "
    )
    without += "FILE, those that `serve` replays"
    add("--trace", type=Path, nargs="?", const=SHIPPED_TRACE, metavar="FILE", help=without)
    add("--max-num-seqs", type=number, default=256, metavar="N", help=graphs)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    check_card(args)
    config = options.shape_of(args.model)
    check_context(config, args.context)
    if args.batch > MOST_REQUESTS:
        raise ValueError(f"--batch {args.batch!s:.20}: expected {MOST_REQUESTS:,} at most")
    file_bytes = round((args.file_gb or 0) * 1e9)
    stored = stored_as(config, args.quant, args.kv_dtype, file_bytes)
    # of the sizes of vLLM's default settings, those of decode batches have a full graph
    sizes = default_capture_sizes(args.max_num_seqs, 8192)
    sizes = [size for size in sizes if size <= args.max_num_seqs]
    spec = None
    if not args.vram_gb:
        spec = load_spec(args.gpu or DEFAULT_GPU, args.host, args.engine)

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
    on_paper_ms = report.floor_ms
    if args.bandwidth_gb_s:
        on_paper_ms = floor_ms(stored.read + report.kv_bytes, args.bandwidth_gb_s)
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
        "floor_ms": on_paper_ms,
        "copy_floor_ms": report.copy_floor_ms,
        "without_pages": (
            _without_pages(args, report.kv_bytes_per_token, at) if args.trace else None
        ),
        "predicted": (_predicted(args, config, spec, stored) if spec and report.fits else None),
    }


def show(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"[bold]{result['model']}[/bold] on {result['gpu']}: weights {result['quant']}, "
        f"cache {result['kv_dtype']}, batch {result['batch']:,}, context {result['context']:,}, "
        f"{result['full_graphs']} full graphs"
    )
    table = Table()
    table.add_column("item")
    table.add_column("GiB", justify="right")
    table.add_column("what it is")
    for row in result["rows"]:
        style = "bold" if row["item"] == "left" else None
        table.add_row(row["item"], f"{row['bytes'] / GIB:,.3f}", row["note"], style=style)
    console.print(table)
    if not result["fits"]:
        console.print("[bold]It does not fit.[/bold] No step is predicted.")
    longest = f"longest context of one request: {result['max_context']:,} tokens"
    if result["max_context"] > result["model_context"]:
        longest += f" of memory; the model was made for {result['model_context']:,}"
    console.print(longest)
    console.print(f"largest batch at {result['context']:,} tokens: {result['max_batch']:,}")
    console.print(_floor(result))
    if rows := result["without_pages"]:
        console.print(_told(rows, result), soft_wrap=True)
    if itl := result["predicted"]:
        console.print(
            f"one graph of {result['engine']} on the host {result['host']}, predicted: "
            f"{options.ms(itl)}. {options.WITHIN}"
        )


# ---------------------------------------------------------------- parts


def check_card(args: argparse.Namespace) -> None:
    """Raises ValueError unless a card is given by name or by its figures, not by both, and the
    weights by a format or by the size of their file."""
    if args.gpu and (args.vram_gb is not None or args.bandwidth_gb_s is not None):
        raise ValueError("--gpu names a card with all its figures: leave out --vram-gb and others")
    for option in ("host", "engine"):
        if args.vram_gb is not None and getattr(args, option):
            raise ValueError(
                f"--{option} is for the predicted step, and of a card of --vram-gb none is "
                "predicted: leave it out, or name a card by --gpu"
            )
    if args.bandwidth_gb_s is not None and args.vram_gb is None:
        raise ValueError(
            "--bandwidth-gb-s describes the card of --vram-gb: give that too, or --gpu"
        )
    if args.file_gb is not None and args.quant != "bf16":
        raise ValueError(
            f"--file-gb says how large the weights are: leave out --quant {args.quant}"
        )
    for name in ("vram_gb", "bandwidth_gb_s", "file_gb"):
        given = getattr(args, name)
        if given is not None and not 0 < given <= 1e9:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {given:g}: expected more than 0 and at most 1e9")


def _predicted(
    args: argparse.Namespace, config: ModelConfig, spec: DeviceSpec, stored: Stored
) -> dict[str, float]:
    """ITL of one full graph."""
    ops = step_ops(config, StepShape.decode(args.batch, args.context), spec.ops, stored)
    return options.interval(spec, step_time(ops, spec, "full", args.batch).itl_us, "FULL")


def _without_pages(
    args: argparse.Namespace, per_token: int, at: Callable[[int], CapacityReport]
) -> dict[str, Any]:
    """What the decode steps of the requests of --trace read of a cache of (--batch, --context)."""
    every = read_trace(args.trace).requests
    requests = tokens = 0
    for request in every.lengths:
        if sum(request) <= args.context:
            requests, tokens = requests + 1, tokens + sum(request)
    if not requests:
        raise ValueError(
            f"{args.trace}: none of {len(every)} requests fits --context {args.context}: raise it"
        )
    held = (request for request in every.lengths if sum(request) <= args.context)
    read = masked_columns(held, args.batch, args.context)
    mean = -(-tokens // requests)
    return {
        "trace": str(args.trace),
        "requests": requests,
        "too_long": len(every) - requests,
        "needed_bytes": read.needed * per_token,
        "beyond_bytes": read.beyond * per_token,
        "ended_bytes": read.ended * per_token,
        "mean_context": mean,
        "max_batch_with_pages": at(mean).max_batch,
    }


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
    if result["floor_ms"] is None:
        return "floor of ITL: unknown; give --bandwidth-gb-s"
    told = f"floor of ITL: {result['floor_ms']:.3f} ms at the bandwidth on paper"
    if result["copy_floor_ms"] is not None:
        told += f", {result['copy_floor_ms']:.3f} ms at what a copy reaches"
    return told
