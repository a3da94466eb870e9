"""Which batch sizes does vLLM 0.33 capture, and what does a batch between two of them waste?

  python -m mini_engine ladder --max-num-seqs 256 --max-num-batched-tokens 8192 --batch 33

A graph replays only the shapes it was captured with. So an engine captures a ladder of sizes at
start-up and pads every batch up to the next rung. Rungs cost start-up time and memory, gaps between
them cost padding. In mode FULL_AND_PIECEWISE each size is captured in pieces, one more than the
model has layers, for steps with prompts in them, and those up to --max-num-seqs once more whole,
for steps that only decode.

`serve` replays requests, and says which ladder of as many rungs would have padded them least.
Capture time and memory are predicted for --shape and --spec; in brackets, as far above and below
such predictions as published start-ups were.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.serving.ladder_cost import LadderCosts

SHARED = "limits mode shape spec sizes"
OUT = "picture (default: out/ladder.png; with --json none)"
OPTIONS: options.Rows = {
    "--spec-tokens N": (options.counted, 0, "speculative tokens a request"),
    "--max-capture-size N": (options.positive, None, "another ceiling"),
    "--batch N": (options.positive, None, "explain this decode batch"),
    "-o --out FILE": (options.picture, None, OUT),
}


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine import plots

    out = args.out or (None if args.json else options.picture("out/ladder.png"))
    server, query_len = options.server(args), 1 + args.spec_tokens
    shape, spec = server.config, server.spec
    sizes = default_capture_sizes(
        args.max_num_seqs, args.max_num_batched_tokens, mode=args.mode,
        max_capture_size=args.max_capture_size, capture_sizes=args.capture_sizes,
        num_speculative_tokens=args.spec_tokens,
    )  # fmt: skip
    options.name_dropped(args, sizes, console)
    limits = args.mode, args.max_num_seqs
    costs = LadderCosts(shape, spec, *limits, decode_query_len=query_len).of(sizes)
    taken = costs.memory_bytes + server.stored.held + spec.reserved_bytes
    explained = None
    if args.batch:
        explained = explain_batch(
            GraphDispatcher(args.mode, sizes, limits[1], query_len), args.batch
        )
    if out and sizes:
        rows = (args.batch or 0) * query_len
        about = f"{args.mode}, max_num_seqs {limits[1]}, {shape.name} on {spec.name}"
        plots.waste_by_batch(
            CaptureLadder(sizes), out, caption=f"Ladder of vLLM 0.33: {about}",
            mark=rows if 1 <= rows <= sizes[-1] else None,
        )  # fmt: skip
    found = {"capture_sizes": sizes, "layers": shape.num_layers, "costs": costs, "out": out}
    return {**options.told(server), **found, "fits": taken <= spec.vram_bytes,
            "explained": explained}  # fmt: skip


def explain_batch(dispatcher: GraphDispatcher, batch: int) -> dict[str, str]:
    """Why a decode batch runs at its rung, and how the dispatcher runs it.

    Raises ValueError above max_num_seqs: no step has so many requests.
    """
    most, query_len = dispatcher.max_num_seqs, dispatcher.decode_query_len
    if batch > most:
        raise ValueError(f"--batch {batch}: no step has more than {most}: raise --max-num-seqs")
    rows, says = batch * query_len, "Without graphs every batch runs eagerly, unpadded."
    if dispatcher.sizes:
        says = CaptureLadder(dispatcher.sizes).explain(rows)
    if query_len > 1:
        says = f"{batch} requests of {query_len} tokens are a batch of {rows} rows. {says}"
    decode, mixed = dispatcher.dispatch(batch, rows, query_len), dispatcher.dispatch(batch, rows)
    full, top = CUDAGraphMode.FULL, max(dispatcher.sizes, default=0)
    if dispatcher.mode.decode_mode() is full and decode.mode is not full and rows <= top:
        says += f" No full graph holds {batch} requests within max_num_seqs {most}: "
        says += f"capture {rows} itself to have one."
    ways = {"decode": decode, "mixed": mixed}
    told = {name: f"{way.mode}, {way.num_tokens} rows" for name, way in ways.items()}
    return {"explanation": says, **told}


def show(r: argparse.Namespace, console: Console) -> None:
    sizes, costs = r.capture_sizes, r.costs
    console.print(
        f"[bold]vLLM 0.33[/bold], {r.mode}, max_num_seqs {r.max_num_seqs:,}, "
        f"max_num_batched_tokens {r.max_num_batched_tokens:,}: [bold]{len(sizes)} capture sizes"
        f"[/bold]\n   {in_runs(sizes) or 'no graphs: every step is eager'}\n\n"
        f"{r.shape}, {r.layers} layers, on {options.on(r)}:"
    )
    if rungs := costs.piecewise_rungs:
        graphs = f"{r.layers + 1} pieces = {costs.piecewise_graphs:,} graphs"
        console.print(f"   PIECEWISE  {rungs} sizes × {graphs}")
    if costs.full_graphs:
        console.print(f"   FULL       {costs.full_graphs} graphs")
    console.print(f"   together   {costs.graphs:,} graphs: {options.capture(costs)}, predicted\n")
    if not r.fits:
        console.print(f"[bold]With the weights they do not fit the {r.spec}.[/bold]\n")
    if r.explained:
        console.print(f"[bold]{r.explained['explanation']}[/bold]", soft_wrap=False)
        console.print(
            f"   when all decode: {r.explained['decode']}\n"
            f"   with a prompt among them: {r.explained['mixed']}\n"
        )
    if sizes:
        console.print(f"Picture: {r.out}")


def in_runs(sizes: Sequence[int]) -> str:
    """1, 2, 4, 8 … 256 (every 8), 272 … 512 (every 16)."""
    words, at = list[str](), 0
    while at < len(sizes):
        step = sizes[min(at + 1, len(sizes) - 1)] - sizes[at]
        end = at
        while end + 1 < len(sizes) and sizes[end + 1] - sizes[end] == step:
            end += 1
        end = end if end - at >= 3 else at  # shorter runs are told one by one
        every = f" … {sizes[end]}" + (f" (every {step})" if step > 1 else "")
        words.append(f"{sizes[at]}{every if end > at else ''}")
        at = end + 1
    return ", ".join(words)
