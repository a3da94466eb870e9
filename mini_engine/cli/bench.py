"""Time real decode steps on this machine's GPU, variant by variant, and test the simulator on them.

  python -m mini_engine bench --quick               # four minutes: batch 1 and 8 of one shape
  python -m mini_engine bench --resume --minutes 8  # a part of it all; the next call goes on
  python -m mini_engine bench --plot FILE.json      # table and pictures again, nothing measured

The variants: transformers eager; transformers with StaticCache and torch.compile; our plain model
eager, in pieces, as one graph, eight steps in one graph; our Triton kernels in one graph, nine or
five a layer, with programmatic dependent launch (pdl), eight steps a replay (k8); torch.compile of
our plain model. The arms of a benchmark are the variants that it times.

A variant passes a gate before it is timed: measured against float32, its logits may be no worse
than plain bf16's, up to a margin for chance. A variant of ours that fails is not timed; a baseline
that fails is marked, and nothing is compared with it. Then the variant takes turns with the anchor,
always the same one, in several fresh processes (--processes); only dependent decode steps are
timed. The table gives its median with an interval over laps and processes, the kernels and launches
that the profiler counts, its share of a copy's bandwidth, and the simulator's prediction. That is
made for the engine that the variant stands for: transformers, plain PyTorch, torch.compile or this
engine; a card and a host that `calibrate` wrote (--spec, --host) predict best. The null variant is
the anchor against itself, and shows the noise. "(no graph)" stands behind a variant that claims a
CUDA graph and launched its kernels one by one, as torch.compile may without an error.

Beside the JSON file: a table (.md), and three pictures: ITL and throughput against batch down to
the physical floor (-itl.png), eager against graph with the crossover, measured and predicted
(-crossover.png), what each idea takes off a step (-waterfall.png). At the end it says of each bar
that the project has set itself whether it is reached, missed, partly measured (and what is missing,
with the command that measures it), or not measured.

Without options it takes hours: four shapes at batch 1, 8, 64 and 256, every variant but the trials,
three processes. Weights are random in the true shape unless --shape is a checkpoint folder. Each
row is written as soon as it is known; --resume measures what is still missing. Without a GPU, a
tiny model runs on the CPU emulator: file and pictures say so, and nothing reads them as evidence.
With --against, other engines run on the same checkpoint, each in a process of its own. Their rows
have a table of their own: times between tokens, as a caller sees them, beside this engine's.
The file names the commit. Where the code was copied without .git, the variable LAUNCH_BOUND_COMMIT
names it; without that it is "unknown".
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mini_engine.bench.bar_judges import MAX_CONTEXT, SHAPES
from mini_engine.bench.bar_points import bench_line
from mini_engine.bench.bars import BATCHES, judged
from mini_engine.bench.evidence import (
    Measurement,
    new_measurement,
    read_measurement,
    write_measurement,
)
from mini_engine.bench.intervals import MAX_PROCESSES
from mini_engine.cli import bench_against, measuring, options
from mini_engine.records.rows import MEASURED, Row, by_point

if TYPE_CHECKING:
    from mini_engine.bench.bench import SpecFor
    from mini_engine.cuda.graphs.backend import GraphBackend

LIBRARIES = ("cublas", "cublaslt")  # of bench/blas.py, which needs torch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quick", action="store_true", help="one shape, batch 1 and 8, four minutes at most"
    )
    parser.add_argument(
        "--shape",
        type=_words,
        metavar="NAME,...",
        help=f"shapes, tiny, or checkpoint folders (default: {','.join(SHAPES)}; emulated: tiny)",
    )
    parser.add_argument("--batch", type=options.whole_numbers, metavar="1,8", help="batches")
    parser.add_argument("--context", type=options.whole_numbers, metavar="512", help="contexts")
    parser.add_argument(
        "--arms",
        type=_words,
        metavar="NAME,...",
        help="variants to time, in this order (an unknown name lists them)",
    )
    parser.add_argument(
        "--against", type=_words, metavar="NAME,...", help=bench_against.help_words()
    )
    parser.add_argument("--rounds", type=options.positive, metavar="N", help="laps, an even number")
    parser.add_argument("--steps", type=options.positive, metavar="N", help="decode steps a lap")
    parser.add_argument(
        "--processes",
        type=options.positive,
        metavar="N",
        help="fresh processes that measure the same (default: 3; 1 with --quick or emulated)",
    )
    parser.add_argument(
        "--minutes",
        type=options.number,
        metavar="N",
        help="start no variant after so many: with --resume, the next call goes on (default: no "
        "limit; with --quick a little over three)",
    )
    parser.add_argument("--process", type=options.positive, help=argparse.SUPPRESS)
    parser.add_argument(
        "--blas",
        choices=LIBRARIES,
        help="the library of PyTorch's matrix products, in all arms (default: PyTorch's choice); "
        "side by side in one run: --arms ours-graph-cublas,ours-graph-cublaslt",
    )
    parser.add_argument("--spec", help="predict with this card (default: by the GPU's name)")
    parser.add_argument("--host", help="and this host (default: the usual server)")
    measuring.add_device(parser)
    parser.add_argument("--resume", action="store_true", help="keep what the file has measured")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="JSON",
        help="measure nothing: make the table and pictures of this file again, of --shape and "
        "--context if given, beside it or where -o says",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=options.json_out,
        metavar="JSON",
        help="measurements; the table (.md) and the pictures (.png) go beside it",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine.cli.bench_report import check_any_ran, plotted, report

    if args.plot:
        return plotted(args)
    if args.against == [bench_against.LIST]:
        return {"engines": bench_against.listed()}
    out = _measure(args, console)
    return {"out": str(out)} if args.process else check_any_ran(report(_judged(out)))


def _measure(args: argparse.Namespace, console: Console) -> Path:
    """The file, with everything in it that was asked for."""
    backend = measuring.backend_of(args.device, "bench", None if args.process else console)
    from mini_engine.bench import blas
    from mini_engine.bench.bench import check_names
    from mini_engine.bench.spec_fit import base_name
    from mini_engine.cli import bench_file

    _fill_in(args, backend)
    deadline = time.monotonic() + 60 * args.minutes if args.minutes else None
    if args.blas:
        blas.prefer(backend, args.blas)
    line = measuring.command_line(bench_file.as_typed(args.typed))
    measurement = new_measurement("bench", backend.device.type, line, {})
    known = "laptop-cpu" if backend.emulated else base_name(measurement.gpu)
    spec_for = measuring.specs_for(args.spec or known or "h200", args.host)
    out: Path = args.out or measuring.measurement_path("bench", known or "gpu", backend.emulated)
    check_names(args.arms)
    for word in args.shape:
        bench_file.config_of(word)  # raises before anything is measured
    if args.against:
        bench_against.check(args)
    if args.processes > 1 and not args.process and args.arms:
        bench_file.in_fresh_processes(args, out)
    else:
        _arms(args, backend, spec_for, measurement, out, console)
    if args.against and not args.process:
        for one, number in bench_against.measure(args, out, backend.emulated, deadline):
            point = f"{one.shape} batch {one.batch} context {one.context:,}"
            line = f"{number}{point}: {bench_against.told(one)}"
            console.print(line, soft_wrap=True, markup=False)
    return out


def _arms(
    args: argparse.Namespace,
    backend: GraphBackend,
    spec_for: SpecFor,
    measurement: Measurement,
    out: Path,
    console: Console,
) -> None:
    """Time the arms in this process."""
    from mini_engine.cli import bench_file

    before = f"process {args.process} of {args.processes}, " if args.process else ""
    for row, number in bench_file.measure(args, backend, spec_for, measurement, out):
        point = f"{row.shape} batch {row.batch} context {row.context:,}"
        console.print(f"{before}{number}: {point}: {_told(row)}", soft_wrap=True)


def _judged(out: Path) -> Path:
    """The bars, written into the file."""
    measurement = read_measurement(out)
    found = [result.as_dict() for result in judged(measurement, bench_line(out))]
    write_measurement(out, replace(measurement, figures={**measurement.figures, "bars": found}))
    return out


def show(result: dict[str, Any], console: Console) -> None:
    if "engines" in result:
        bench_against.show_list(result["engines"], console)
    if "rows" not in result:  # one process of several: the one that started it shows the rows
        return
    if result["emulated"]:
        console.print("[bold]Emulated on a CPU: no evidence about any GPU.[/bold]")
    points = by_point(map(Row.from_json, result["rows"]))
    for (shape, batch, context), rows in points.items():
        console.print(f"[bold]{shape}[/bold], batch {batch}, context {context:,}")
        table = Table()
        for column in ("variant", "ITL µs", "× anchor", "% of copy", "predicted µs", "gate"):
            table.add_column(column, justify="left" if column == "variant" else "right")
        for row in rows:
            table.add_row(*_cells(row))
        console.print(table)
    if result["others"]:
        bench_against.show(result["others"], console)
    console.print("[bold]What the project has set itself, on one H200[/bold]")
    for bar in result["bars"]:
        console.print(f"{bar['status']:>15}  {bar['says']} ({bar['why']})", soft_wrap=True)
    console.print(f"measurements: {result['out']}, with everything in a table: {result['table']}")
    for picture in result["pictures"]:
        console.print(f"picture: {picture}")
    for name, why in result["not_drawn"].items():
        console.print(f"no {name}: {why}", soft_wrap=True)


# ---------------------------------------------------------------- parts


def _fill_in(args: argparse.Namespace, backend: GraphBackend) -> None:
    """Defaults that depend on the device and on --quick."""
    from mini_engine.bench.variants import BLAS_ARMS, VARIANTS
    from mini_engine.cli import bench_file

    emulated = backend.emulated
    small = args.quick or emulated
    slow = {"compile-max-autotune", "compile-default"} if args.quick else set()
    usual = [name for name in VARIANTS if name not in (*slow, *BLAS_ARMS)]
    words = args.arms or ([] if args.against else usual)
    args.shape = args.shape or (["tiny"] if emulated else list(SHAPES[:1] if small else SHAPES))
    args.batch = args.batch or ([1, 2] if emulated else [1, 8] if small else list(BATCHES))
    args.context = args.context or [40 if emulated else MAX_CONTEXT]
    args.arms = list(dict.fromkeys(words))
    args.rounds = args.rounds or (2 if emulated else 8 if small else 20)
    args.steps = args.steps or (4 if emulated else 32)
    args.processes = args.processes or (1 if small else 3)
    if args.minutes is None and args.quick:
        args.minutes = bench_file.QUICK_MINUTES
    if args.minutes is not None and args.minutes <= 0:
        raise ValueError(f"--minutes {args.minutes:g}: expected more than 0")
    if min(args.batch + args.context) < 1:
        raise ValueError("--batch and --context: expected numbers of 1 or more")
    if args.rounds % 2:
        raise ValueError(f"--rounds {args.rounds}: expected an even number, to balance the order")
    if args.processes > MAX_PROCESSES:
        raise ValueError(f"--processes {args.processes}: expected 1 to {MAX_PROCESSES}")


def _cells(row: Row) -> list[str]:
    if row.status != MEASURED:
        return [row.variant, row.status]
    return [
        f"{row.variant} (no graph)" if row.no_graph else row.variant,
        f"{row.itl_us:,.1f}",
        f"{row.times_the_anchor.median:.3f}",
        f"{row.percent_of_copy:.1f}",
        f"{row.predicted_us:,.1f}",
        "FAILED" if row.failed_gate else "passed",
    ]


def _told(row: Row) -> str:
    if row.status != MEASURED:
        return f"{row.variant} {row.status}: {row.reason}"
    graph = f"; it {row.told_no_graph}" if row.no_graph else ""
    return f"{row.variant} {row.itl_us:,.1f} µs a step{graph}"


def _words(word: str) -> list[str]:
    """`a,b` as a list, for `type=`."""
    if found := [part.strip() for part in word.split(",") if part.strip()]:
        return found
    raise argparse.ArgumentTypeError(f"expected names with commas between them, not {word!r}")
