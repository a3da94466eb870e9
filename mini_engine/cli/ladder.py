"""Which batch sizes does vLLM 0.33 capture, and what does a batch between two of them waste?

  python -m mini_engine ladder --max-num-seqs 256 --max-num-batched-tokens 8192 --batch 33

A graph replays only the shapes it was captured with. So an engine captures a ladder of sizes at
start-up and pads every batch up to the next rung. Rungs cost start-up time and memory, gaps between
them cost padding. In mode FULL_AND_PIECEWISE each size is captured in pieces, one more than the
model has layers, for steps with prompts in them, and those up to --max-num-seqs once more whole,
for steps that only decode.

`serve` replays requests, and says which ladder of as many rungs would have padded them least.
Capture time and memory are predicted for --shape and --spec; none of it is measured.
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
from mini_engine.step.storage import stored_as


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, number = parser.add_argument, options.positive
    options.add(parser, "limits", "mode", "shape", "spec")
    words = "speculative tokens a request"
    add("--spec-tokens", type=options.counted, default=0, metavar="N", help=words)
    sizes = "use these instead, in any order; those above a step's tokens are left out"
    add("--capture-sizes", type=options.whole_numbers, metavar="1,2,4", help=sizes)
    add("--max-capture-size", type=number, metavar="N", help="another ceiling")
    add("--batch", type=number, metavar="N", help="explain this decode batch")
    options.add_picture(parser, "out/ladder.png")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine import plots

    shape, spec = options.shape_and_spec(args)
    query_len = 1 + args.spec_tokens
    sizes = default_capture_sizes(
        args.max_num_seqs, args.max_num_batched_tokens, mode=args.mode,
        max_capture_size=args.max_capture_size, capture_sizes=args.capture_sizes,
        num_speculative_tokens=args.spec_tokens,
    )  # fmt: skip
    options.name_dropped(args, args.capture_sizes, sizes, console)
    costs = LadderCosts(shape, spec, args.mode, args.max_num_seqs, decode_query_len=query_len)
    held = costs.of(sizes)
    result: dict[str, Any] = {
        "capture_sizes": sizes,
        "shape": shape.name,
        **options.told(spec),
        "layers": shape.num_layers,
        "costs": held,
        "fits": held.memory_bytes + stored_as(shape).held + spec.reserved_bytes <= spec.vram_bytes,
    }
    if args.batch:
        dispatcher = GraphDispatcher(args.mode, sizes, args.max_num_seqs, query_len)
        result["explained"] = explain_batch(dispatcher, args.batch)
    if not sizes:
        return result
    ladder, out = CaptureLadder(sizes), options.picture_of(args)
    if out:
        rows = (args.batch or 0) * query_len
        mark = rows if 1 <= rows <= ladder.top else None
        about = f"{args.mode}, max_num_seqs {args.max_num_seqs}, {shape.name} on {spec.name}"
        plots.waste_by_batch(ladder, out, caption=f"Ladder of vLLM 0.33: {about}", mark=mark)
    return result | {"out": out}


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
    return {
        "explanation": says,
        "decode": f"{decode.mode}, {decode.num_tokens} rows",
        "mixed": f"{mixed.mode}, {mixed.num_tokens} rows",
    }


def show(result: dict[str, Any], console: Console) -> None:
    sizes, costs = result["capture_sizes"], result["costs"]
    runs = in_runs(sizes) or "no graphs: every step is eager"
    console.print(
        f"[bold]vLLM 0.33[/bold], {result['mode']}, max_num_seqs {result['max_num_seqs']:,}, "
        f"max_num_batched_tokens {result['max_num_batched_tokens']:,}: "
        f"[bold]{len(sizes)} capture sizes[/bold]\n   {runs}\n\n"
        f"{result['shape']}, {result['layers']} layers, on {options.on(result)}:"
    )
    if rungs := costs.piecewise_rungs:
        pieces, graphs = result["layers"] + 1, costs.piecewise_graphs
        console.print(f"   PIECEWISE  {rungs} sizes × {pieces} pieces = {graphs:,} graphs")
    if costs.full_graphs:
        console.print(f"   FULL       {costs.full_graphs} graphs")
    console.print(
        f"   together   {costs.graphs:,} graphs: {costs.capture_us / 1e6:.2f} s to capture "
        f"and {costs.memory_bytes / 2**20:,.0f} MiB, predicted\n"
    )
    if not result["fits"]:
        console.print(f"[bold]With the weights they do not fit the {result['spec']}.[/bold]\n")
    if explained := result.get("explained"):
        console.print(
            f"[bold]{explained['explanation']}[/bold]\n   when all decode: {explained['decode']}\n"
            f"   with a prompt among them: {explained['mixed']}\n"
        )
    if sizes:
        console.print(f"Picture: {result['out']}")


def in_runs(sizes: Sequence[int]) -> str:
    """1, 2, 4, 8 … 256 (every 8), 272 … 512 (every 16)."""
    words, at = list[str](), 0
    while at < len(sizes):
        step, end = sizes[min(at + 1, len(sizes) - 1)] - sizes[at], at
        while end + 1 < len(sizes) and sizes[end + 1] - sizes[end] == step:
            end += 1
        if end - at >= 3:
            words.append(f"{sizes[at]} … {sizes[end]}" + (f" (every {step})" if step > 1 else ""))
        else:
            words.append(str(sizes[at]))
            end = at
        at = end + 1
    return ", ".join(words)
