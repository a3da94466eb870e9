"""Time real decode steps on this machine's GPU, arm against arm, and hold the simulator to them.

  python -m mini_engine bench --quick

The arms: transformers eager; transformers with StaticCache and torch.compile; our plain model
eager, in pieces, as one graph, eight steps in one graph; torch.compile of our plain model. Before
an arm is timed it passes a gate: held against float32, its logits may be no worse than plain bf16.
Then it runs in turns with one and the same anchor arm, only dependent decode steps, and its median
stands in the table with its interval, the kernels and launches that the profiler counts, the share
of a copy's bandwidth that it reaches, and what the simulator predicts (--spec: a spec that
`calibrate` wrote predicts best). The null arm is the anchor against itself: what it shows is noise.

Weights are random in the true shape unless --shape is a checkpoint folder. Every row is written as
soon as it is known: --resume goes on with what is not yet measured. Without a GPU a tiny model runs
on the CPU emulator: the file says so, and nothing reads it as evidence.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mini_engine.cli import measuring, options
from mini_engine.config import ModelConfig, named_shape
from mini_engine.cuda.bench_table import ordered, point_of
from mini_engine.hardware import DeviceSpec, load_spec

if TYPE_CHECKING:
    from mini_engine.cuda.backend import GraphBackend
    from mini_engine.cuda.evidence import Measurement
    from mini_engine.cuda.weights import Weights

SHAPES = ["qwen3-0.6b", "qwen3-1.7b", "qwen2.5-1.5b", "llama-3.2-1b"]
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CONTEXTS = [128, 512, 2048, 8192]
QUICK_SECONDS = 200  # no arm starts after this, and none but max-autotune takes longer than 40


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
    parser.add_argument("--arms", type=_words, metavar="NAME,...", help="(default: all)")
    parser.add_argument("--rounds", type=options.positive, metavar="N", help="laps, an even number")
    parser.add_argument("--steps", type=options.positive, metavar="N", help="decode steps a lap")
    parser.add_argument("--spec", help="predict with this spec (default: by the GPU's name)")
    measuring.add_device(parser)
    parser.add_argument("--resume", action="store_true", help="keep what the file has measured")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="JSON", help="measurements; a table goes beside it as .md"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = measuring.backend_of(args.device, "bench")
    from mini_engine.cuda import bench, bench_table
    from mini_engine.cuda.evidence import new_measurement, without_paths
    from mini_engine.cuda.spec_fit import base_name

    _fill_in(args, backend.emulated)
    measurement = new_measurement(
        "bench", backend.device.type, measuring.command_line("bench", args), {}
    )
    known = "laptop-cpu" if backend.emulated else base_name(measurement.gpu)
    spec = load_spec(args.spec or known or "h200")
    out = args.out or measuring.measurement_path("bench", known or "gpu", backend.emulated)
    bench.check_names(args.arms)
    measurement = _header(measurement, args, backend, spec.name)
    rows: dict[tuple[str, int, int, str], dict[str, Any]] = {}
    if args.resume and out.exists():
        measurement, rows = _resumed(out, measurement)
    for row in _measured(args, backend, measurement.figures, spec, set(rows)):
        rows[bench.key_of(row)] = row
        measurement = _write(out, measurement, list(rows.values()))
        console.print(f"{row['shape']} batch {row['batch']} context {row['context']}: {_told(row)}")
    measurement = _write(out, measurement, list(rows.values()))
    table = bench_table.markdown(measurement)
    out.with_suffix(".md").write_text(without_paths(table), encoding="utf-8")
    return {"out": str(out), "emulated": backend.emulated, "rows": list(rows.values())}


def show(result: dict[str, Any], console: Console) -> None:
    if result["emulated"]:
        console.print("[bold]Emulated on a CPU: no evidence about any GPU.[/bold]")
    for (shape, batch, context), rows in itertools.groupby(ordered(result["rows"]), key=point_of):
        console.print(f"[bold]{shape}[/bold], batch {batch}, context {context:,}")
        table = Table()
        for column in ("arm", "ITL µs", "× anchor", "% of copy", "predicted µs", "gate"):
            table.add_column(column, justify="left" if column == "arm" else "right")
        for row in rows:
            table.add_row(*_cells(row))
        console.print(table)
    console.print(f"measurements: {result['out']}, with everything in a table beside it (.md)")


# ---------------------------------------------------------------- parts


def tiny_shape() -> ModelConfig:
    """What the emulator can run in seconds."""
    return replace(
        named_shape("qwen3-0.6b"), name="tiny", hidden_size=64, intermediate_size=96, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=256, max_position_embeddings=512,
        eos_token_ids=(),
    )  # fmt: skip


def _fill_in(args: argparse.Namespace, emulated: bool) -> None:
    """Defaults that hang on the device and on --quick, so that the written command names them."""
    small = args.quick or emulated
    from mini_engine.cuda.arms import ARMS

    slow = {"compile-max-autotune", "compile-default"} if args.quick else set()
    args.shape = args.shape or (["tiny"] if emulated else SHAPES[:1] if small else SHAPES)
    args.batch = args.batch or ([1, 2] if emulated else [1, 8] if small else BATCHES)
    args.context = args.context or ([40] if emulated else [512] if small else CONTEXTS)
    args.arms = args.arms or [name for name in ARMS if name not in slow]
    args.rounds = args.rounds or (2 if emulated else 8 if small else 20)
    args.steps = args.steps or (4 if emulated else 32)
    if min(args.batch + args.context) < 1:
        raise ValueError("--batch and --context: expected numbers of 1 or more")
    if args.rounds % 2:
        raise ValueError(f"--rounds {args.rounds}: expected an even number, to balance the order")


def _header(
    measurement: Measurement, args: argparse.Namespace, backend: GraphBackend, spec: str
) -> Measurement:
    """The measurement with what all rows share; the copy's bandwidth is measured now."""
    from mini_engine.cuda.arms import ANCHOR
    from mini_engine.cuda.calibrate import copy_bandwidth, sizes_for

    figures = {
        "copy_bandwidth_gb_s": copy_bandwidth(backend, sizes_for(backend, quick=True)),
        "spec": spec,
        "rounds": args.rounds,
        "steps": args.steps,
        "anchor": ANCHOR,
        "rows": [],
    }
    return replace(measurement, figures=figures)


def _resumed(
    out: Path, measurement: Measurement
) -> tuple[Measurement, dict[tuple[str, int, int, str], dict[str, Any]]]:
    """The file's own header and its measured rows. ValueError where they do not fit this run."""
    from mini_engine.cuda.bench import key_of
    from mini_engine.cuda.evidence import check_same_machine, read_measurement

    old = read_measurement(out)
    check_same_machine(out, old, measurement)
    for name in ("spec", "rounds", "steps", "anchor"):
        if old.figures.get(name) != measurement.figures[name]:
            raise ValueError(
                f"{out}: measured with {name} {old.figures.get(name)}, this is "
                f"{measurement.figures[name]}: write to another file, or leave out --resume"
            )
    done = [row for row in old.figures["rows"] if row["status"] == "measured"]
    return old, {key_of(row): row for row in done}


def _measured(
    args: argparse.Namespace,
    backend: GraphBackend,
    figures: Mapping[str, Any],
    spec: DeviceSpec,
    done: Set[tuple[str, int, int, str]],
) -> Iterator[dict[str, Any]]:
    """The rows that are not done, shape after shape; a shape's weights are made when needed."""
    from mini_engine.cuda.bench import Effort, Point, bench_point

    deadline = time.monotonic() + QUICK_SECONDS if args.quick else None
    effort = Effort(args.rounds, args.steps, deadline)
    for word in args.shape:
        config = tiny_shape() if word == "tiny" else options.shape_of(word)
        config, weights = replace(config, dtype="bfloat16"), None
        for batch, context in itertools.product(args.batch, args.context):
            point = Point(config.name, batch, context)
            todo = [name for name in args.arms if (config.name, batch, context, name) not in done]
            if todo:
                weights = weights or _weights(word, config, backend)
                copy_gb_s = figures["copy_bandwidth_gb_s"]["median"]
                yield from bench_point(backend, weights, point, todo, effort, spec, copy_gb_s)


def _weights(word: str, config: ModelConfig, backend: GraphBackend) -> Weights:
    import torch

    from mini_engine.cuda.weights import load_weights, random_weights

    if Path(word).is_dir():
        return load_weights(config, word, backend.device, torch.bfloat16)
    return random_weights(config, backend.device, torch.bfloat16, seed=0)


def _write(out: Path, measurement: Measurement, rows: list[dict[str, Any]]) -> Measurement:
    from mini_engine.cuda.evidence import write_measurement

    measurement = replace(measurement, figures={**measurement.figures, "rows": rows})
    write_measurement(out, measurement)
    return measurement


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "measured":
        return [row["arm"], "not run"]
    return [
        row["arm"],
        f"{row['itl_us']['median']:,.1f}",
        f"{row['times_the_anchor']['median']:.3f}",
        f"{row['percent_of_copy']:.1f}",
        f"{row['predicted_us']:,.1f}",
        "passed" if row["gate"]["passed"] else "failed",
    ]


def _told(row: dict[str, Any]) -> str:
    if row["status"] != "measured":
        return f"{row['arm']} not run: {row['reason']}"
    return f"{row['arm']} {row['itl_us']['median']:,.1f} µs a step"


def _words(word: str) -> list[str]:
    """`a,b` as a list, for `type=`."""
    return [part.strip() for part in word.split(",") if part.strip()]
