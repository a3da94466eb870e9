"""Which batch sizes does vLLM 0.33 capture, and what does a batch between two of them waste?

  python -m mini_engine ladder --max-num-seqs 256 --max-num-batched-tokens 8192 --batch 33

A graph replays only the shapes it was captured with. So an engine captures a ladder of sizes at
start-up and pads every batch up to the next rung. Rungs cost start-up time and memory, gaps between
them cost padding. The ladder here is the one that vLLM 0.33 makes of the same settings.

The example says, in words: with up to 256 requests and 8,192 tokens a step, vLLM captures 51 sizes:
1, 2, 4, then every 8 up to 256, then every 16 up to 512. In mode FULL_AND_PIECEWISE each size is
captured in pieces, one more than the model has layers, for steps with prompts in them, and those up
to 256 once more whole, for steps that only decode. A batch of 33 runs at 40: 32 and 40 have graphs,
33 has none, and 7 of the 40 rows are computed and thrown away.

With the batch sizes that a server really ran, it also finds the ladder that would have padded
least, and draws how padding falls as rungs are added. `serve --json` writes such a file, in which
"steps_by_rows" maps the rows of a batch to the steps that had so many:

  python -m mini_engine ladder --histogram serve.json

Capture time and memory are predicted for --shape and --spec; none of it is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from mini_engine.dispatch.dispatcher import GraphDispatcher

SHOWN = (1, 2, 4, 8, 12, 16, 24, 32, 48)  # rungs of the best ladders that the table lists
MOST_STEPS = 10**12  # of one entry of a histogram


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from mini_engine.dispatch.default_ladder import PERFORMANCE_MODES

    add, number = parser.add_argument, options.positive
    options.add_limits(parser)
    words = "speculative tokens a request"
    add("--spec-tokens", type=options.counted, default=0, metavar="N", help=words)
    options.add_mode(parser)
    sizes = "use these instead, in any order; those above a step's tokens are left out"
    add("--capture-sizes", type=options.whole_numbers, metavar="1,2,4", help=sizes)
    add("--max-capture-size", type=number, metavar="N", help="another ceiling")
    settings = "vLLM's setting of that name (default: balanced)"
    add("--performance-mode", default="balanced", choices=PERFORMANCE_MODES, help=settings)
    add("--batch", type=number, metavar="N", help="explain this decode batch")
    histogram = "JSON: the steps that a server ran at each number of rows"
    add("--histogram", type=Path, metavar="FILE", help=histogram)
    options.add_shape(parser)
    options.add_spec(parser)
    options.add_picture(parser, "out/ladder.png")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine import plots
    from mini_engine.dispatch.default_ladder import default_capture_sizes
    from mini_engine.dispatch.dispatcher import GraphDispatcher
    from mini_engine.dispatch.ladder import CaptureLadder, LadderPoint
    from mini_engine.serving.ladder_cost import LadderCosts
    from mini_engine.step.storage import stored_as

    shape, spec = options.shape_and_spec(args)
    histogram = read_histogram(args.histogram) if args.histogram else None
    if histogram and (args.spec_tokens or args.mode == "NONE"):
        raise ValueError(
            "--histogram counts the rows that a ladder pads: leave out --spec-tokens, whose rungs "
            "hold whole requests, and --mode NONE, which has no rungs"
        )
    query_len = 1 + args.spec_tokens
    sizes = default_capture_sizes(
        args.max_num_seqs,
        args.max_num_batched_tokens,
        max_capture_size=args.max_capture_size,
        capture_sizes=args.capture_sizes,
        num_speculative_tokens=args.spec_tokens,
        mode=args.mode,
        performance_mode=args.performance_mode,
    )
    costs = LadderCosts(shape, spec, args.mode, args.max_num_seqs, decode_query_len=query_len)
    held = costs.of(sizes)
    result: dict[str, Any] = {
        "mode": args.mode,
        "max_num_seqs": args.max_num_seqs,
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "capture_sizes": sizes,
        "shape": shape.name,
        **options.told(spec),
        "layers": shape.num_layers,
        "piecewise_rungs": held.piecewise_rungs,
        "piecewise_graphs": held.piecewise_graphs,
        "full_graphs": held.full_graphs,
        "graphs": held.graphs,
        "capture_us": held.capture_us,
        "memory_bytes": held.memory_bytes,
        "fits": held.memory_bytes + stored_as(shape).held + spec.reserved_bytes <= spec.vram_bytes,
    }
    if args.batch:
        dispatcher = GraphDispatcher(args.mode, sizes, args.max_num_seqs, query_len)
        result["batch"] = explain_batch(dispatcher, args.batch)
    if not sizes:
        return result
    ladder, result["picture"] = CaptureLadder(sizes), str(args.out)
    about = f"{args.mode}, max_num_seqs {args.max_num_seqs}, {shape.name} on {spec.name}"
    if not histogram:
        rows = args.batch * query_len if args.batch else None
        mark = rows if rows and rows <= ladder.top else None
        plots.waste_by_batch(ladder, args.out, caption=f"Ladder of vLLM 0.33: {about}", mark=mark)
        return result
    own, points = costs.point(ladder, histogram), costs.curve(histogram, len(ladder), ladder.top)
    steps = sum(histogram.values())
    caption = f"{plots.PREDICTED}: {about}; {steps:,} steps of the histogram given"
    name = "the ladder given" if args.capture_sizes else "vLLM's ladder"
    plots.ladder_curve(points, args.out, caption=caption, reference=(name, own))

    def as_json(point: LadderPoint) -> dict[str, Any]:
        return {
            "rungs": len(point.ladder),
            "capture_sizes": list(point.ladder),
            "wasted_fraction": point.waste.wasted_fraction,
            "padded_rows": point.waste.padded_rows,
            "eager_steps": point.waste.eager_steps,
            "capture_us": point.capture_us,
            "memory_bytes": point.memory_bytes,
        }

    curve = [as_json(point) for point in points]
    return result | {"histogram": {"steps": steps, "this_ladder": as_json(own), "curve": curve}}


def explain_batch(dispatcher: GraphDispatcher, batch: int) -> dict[str, str]:
    """Why a decode batch runs at its rung, and how the dispatcher runs it.

    Raises ValueError above max_num_seqs: no step has so many requests.
    """
    if batch > dispatcher.max_num_seqs:
        raise ValueError(
            f"batch {batch} > max_num_seqs {dispatcher.max_num_seqs}: no step has so many "
            "requests; raise --max-num-seqs"
        )
    from mini_engine.dispatch.ladder import CaptureLadder
    from mini_engine.dispatch.modes import CUDAGraphMode

    query_len = dispatcher.decode_query_len
    rows = batch * query_len
    ladder = CaptureLadder(dispatcher.sizes) if dispatcher.sizes else None
    told = ladder.explain(rows) if ladder else "Without graphs every batch runs eagerly, unpadded."
    if query_len > 1:
        told = f"{batch} requests of {query_len} tokens are a batch of {rows} rows. {told}"
    decode, mixed = dispatcher.dispatch(batch, rows, query_len), dispatcher.dispatch(batch, rows)
    full, rung = CUDAGraphMode.FULL, ladder.rung(rows) if ladder else None
    if decode.mode is full and decode.num_tokens != rung:
        told += f" Full graphs hold whole requests: here the next has {decode.num_tokens} rows."
    elif rung and dispatcher.mode.decode_mode() is full and decode.mode is not full:
        told += (
            f" No full graph holds {batch} requests within max_num_seqs "
            f"{dispatcher.max_num_seqs}: capture {rows} itself to have one."
        )
    return {
        "explanation": told,
        "decode": f"{decode.mode}, {decode.num_tokens} rows",
        "mixed": f"{mixed.mode}, {mixed.num_tokens} rows",
    }


def read_histogram(path: Path) -> dict[int, int]:
    """Rows in a batch -> steps that had them: "steps_by_rows" of a JSON file. Raises ValueError,
    naming the bad entry."""
    from mini_engine.files import read_object

    held = read_object(path).get("steps_by_rows")
    if not held or not isinstance(held, dict):
        raise ValueError(f'{path}: steps_by_rows is {held!r:.40}, expected {{"33": 100, ...}}')
    histogram = {}
    for rows, steps in held.items():
        at = int(rows) if rows.isdecimal() and len(rows) <= 12 else 0
        if not at or type(steps) is not int or not 1 <= steps <= MOST_STEPS:
            raise ValueError(
                f"{path}: steps_by_rows: {rows:.20}: {steps!s:.20}, expected whole numbers above 0"
            )
        histogram[at] = steps
    return histogram


# ---------------------------------------------------------------- for people


def show(result: dict[str, Any], console: Console) -> None:
    sizes = result["capture_sizes"]
    console.print(
        f"[bold]vLLM 0.33[/bold], {result['mode']}, max_num_seqs {result['max_num_seqs']:,}, "
        f"max_num_batched_tokens {result['max_num_batched_tokens']:,}: "
        f"[bold]{len(sizes)} capture sizes[/bold]"
    )
    console.print(f"   {in_runs(sizes)}\n" if sizes else "   no graphs: every step is eager\n")
    console.print(f"{result['shape']}, {result['layers']} layers, on {options.on(result)}:")
    if result["piecewise_rungs"]:
        rungs, graphs = result["piecewise_rungs"], result["piecewise_graphs"]
        pieces = result["layers"] + 1
        console.print(f"   PIECEWISE  {rungs} sizes × {pieces} pieces = {graphs:,} graphs")
    if result["full_graphs"]:
        console.print(f"   FULL       {result['full_graphs']} graphs")
    console.print(
        f"   together   {result['graphs']:,} graphs: {result['capture_us'] / 1e6:.2f} s to capture "
        f"and {result['memory_bytes'] / 2**20:,.0f} MiB, predicted\n"
    )
    if not result["fits"]:
        console.print(f"[bold]With the weights they do not fit the {result['spec']}.[/bold]\n")
    if batch := result.get("batch"):
        console.print(f"[bold]{batch['explanation']}[/bold]")
        console.print(f"   when all decode: {batch['decode']}")
        console.print(f"   with a prompt among them: {batch['mixed']}\n")
    if histogram := result.get("histogram"):
        _show_histogram(histogram, console)
    if "picture" in result:
        console.print(f"Picture: {result['picture']}")


def _show_histogram(histogram: dict[str, Any], console: Console) -> None:
    from mini_engine.cli.terminal import table

    own, curve = histogram["this_ladder"], histogram["curve"]
    as_good = next((p for p in curve if p["wasted_fraction"] <= own["wasted_fraction"]), None)
    ladders = [p for p in curve if p["rungs"] in SHOWN or p in (as_good, curve[-1])]
    named = [("best of", point) for point in ladders] + [("this", own)]
    rows = [
        (
            f"{name} {point['rungs']}",
            f"{point['wasted_fraction']:.1%}",
            f"{point['padded_rows']:,}",
            f"{point['eager_steps']:,}",
            f"{point['capture_us'] / 1e3:,.0f}",
            f"{point['memory_bytes'] / 2**20:,.0f}",
        )
        for name, point in named
    ]
    heads = ("rungs", "padding", "padded rows", "eager steps", "capture ms", "graphs MiB")
    bold = [i for i, (_, point) in enumerate(named) if point in (own, as_good)]
    console.print(table(heads, rows, title=f"{histogram['steps']:,} steps", bold=bold))
    best = as_good or curve[-1]
    console.print(f"Best {best['rungs']} rungs: {in_runs(best['capture_sizes'])}")
    if as_good:
        console.print(f"They pad no more than the {own['rungs']} rungs of this ladder.")


def in_runs(sizes: Sequence[int]) -> str:
    """1, 2, 4, 8 … 256 (every 8), 272 … 512 (every 16)."""
    words: list[str] = []
    at = 0
    while at < len(sizes):
        end = at + 1
        while end + 1 < len(sizes) and sizes[end + 1] - sizes[end] == sizes[at + 1] - sizes[at]:
            end += 1
        if end - at >= 3:
            step = sizes[at + 1] - sizes[at]
            words.append(f"{sizes[at]} … {sizes[end]}" + (f" (every {step})" if step > 1 else ""))
            at = end + 1
        else:
            words.append(str(sizes[at]))
            at += 1
    return ", ".join(words)
