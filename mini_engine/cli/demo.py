"""The main job: one decode step run eagerly, piecewise and as one graph; see where the time went.

  python -m mini_engine demo
  python -m mini_engine demo --prompt "Return the" --prompt "Raise"
  some-command | python -m mini_engine demo --prompts -

1. A small trained checkpoint writes your prompts on a simulated GPU under NONE, PIECEWISE, FULL and
   FULL_AND_PIECEWISE. The four must agree token for token, or the command fails.
2. The same engine, with a full-size model, is costed instead of computed: what one decode step
   takes in each mode, what a small service sees, and what capturing costs.
3. Pictures and a trace go to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mini_engine.cli import CheckFailed, options, prompts
from mini_engine.curves import crossover_curve
from mini_engine.plots import plot_crossover, plot_timeline
from mini_engine.sim.generate import SHIPPED, Generation, generate, open_checkpoint
from mini_engine.sim.predict import HF_EAGER, Prediction, Service, predict
from mini_engine.trace import write_trace

HELP = "the main job: same text in every mode, where the time goes, pictures and a trace"
MODES = options.MODES
DRAWN = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "one graph"}
CONTEXT = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompts.add_arguments(parser)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint that writes")
    parser.add_argument("--max-new-tokens", type=options.positive, default=48, metavar="N")
    options.add_shape(parser)
    options.add_spec(parser)
    parser.add_argument("--batch", type=options.positive, default=1, help="of the predicted step")
    parser.add_argument(
        "--host-us",
        type=float,
        metavar="US",
        help="CPU time of the engine between two steps (default: the spec's)",
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    texts = prompts.read(args)
    checkpoint = open_checkpoint(args.model)
    shape, spec = options.shape_of(args.shape), options.spec_of(args.spec)
    if args.host_us is not None:
        spec = replace(spec, host_step_us=args.host_us)
    service = Service()
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=2 * len(MODES) + 2)

        def next_step(what: str) -> None:
            progress.update(task, advance=1, description=what)

        written: list[Generation] = []
        for mode in MODES:
            next_step(f"writing under {mode}")
            written.append(
                generate(checkpoint, spec, texts, mode, max_new_tokens=args.max_new_tokens)
            )
        check_agreement(texts, written)
        predictions: list[Prediction] = []
        for mode in (HF_EAGER, *MODES):
            next_step(f"predicting {shape.name}, {mode}")
            predictions.append(
                predict(shape, spec, mode, batch=args.batch, context=CONTEXT, service=service)
            )
        next_step("drawing")
        files = _draw(args.out, shape.name, args, predictions, spec)
    return {
        "checkpoint": checkpoint.config.name,
        "prompts": [
            {"prompt": prompt, "text": text, "tokens": list(completion.tokens)}
            for prompt, text, completion in zip(
                texts, written[0].texts, written[0].completions, strict=True
            )
        ],
        "modes": [generation.mode for generation in written],
        "modes_agree": True,
        "shape": shape.name,
        "spec": spec.name,
        "batch": args.batch,
        "context": CONTEXT,
        "service": str(service),
        "predictions": [_row(p, predictions[1]) for p in predictions],
        "files": files,
    }


def check_agreement(texts: Sequence[str], written: Sequence[Generation]) -> None:
    """Raise `CheckFailed`, naming the prompt and the token, unless all modes wrote the same."""
    reference = written[0]
    for other in written[1:]:
        for i, prompt in enumerate(texts):
            ours, theirs = reference.completions[i].tokens, other.completions[i].tokens
            if ours != theirs:
                at = next(
                    (k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                    min(len(ours), len(theirs)),
                )
                raise CheckFailed(
                    f"{reference.mode} and {other.mode} disagree on prompt {i + 1} ({prompt!r}) "
                    f"from token {at + 1} on: a graph read or wrote the wrong memory"
                )


def show(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"\n[bold]1. {result['checkpoint']} writes[/bold] (greedy, numpy, simulated GPU)\n"
    )
    for row in result["prompts"]:
        words = " ".join((row["prompt"] + "\0" + row["text"]).split())
        prompt, text = words.split("\0") if "\0" in words else (words, "")
        console.print(Text.assemble("   ", (prompt, "bold"), text), soft_wrap=False)
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    *first, last = result["modes"]
    console.print(
        f"\n   {', '.join(first)} and {last} wrote the same {tokens} tokens, one by one.\n"
    )
    console.print(
        f"[bold]2. {result['shape']} on one {result['spec']}, predicted[/bold]: "
        f"a decode step of batch {result['batch']} with {result['context']} tokens of context"
    )
    console.print(_table(result["predictions"]))
    console.print(f"   ITL: {result['service']}. Capture: vLLM's default ladder.")
    console.print(f"   {_finding(result['predictions'])}\n")
    console.print("[bold]3. Look[/bold]")
    for path, what in result["files"].items():
        console.print(f"   {path:<20} {what}")
    console.print(
        "\n[bold]Next[/bold]: python -m mini_engine crossover --help   when does the gain end?\n"
        "      python -m mini_engine ladder --batch 33    why does my batch of 33 run at 40?\n"
        "      python -m mini_engine --help               the other commands"
    )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    table.add_column("mode")
    for head in (
        "kernels", "launches", "CPU µs", "GPU µs", "ITL p50\nms", "ITL p99\nms", "GPU\nbusy",
        "capture\nms", "graphs\nMB", "pays\nafter",
    ):  # fmt: skip
        table.add_column(head, justify="right")
    for row in rows:
        after = row["pays_after_replays"]
        table.add_row(
            row["mode"],
            f"{row['kernels']:,}",
            f"{row['launches']:,}",
            f"{row['cpu_us']:,.0f}",
            f"{row['gpu_us']:,.0f}",
            f"{row['itl_p50_ms']:.2f}",
            f"{row['itl_p99_ms']:.2f}",
            f"{row['gpu_utilisation']:.0%}",
            f"{row['capture_ms']:,.0f}" if row["graphs"] else "–",
            f"{row['graph_mb']:,.0f}" if row["graphs"] else "–",
            f"{after:,} steps" if after else "–",
        )
    return table


def _finding(rows: Sequence[dict[str, Any]]) -> str:
    by_mode = {row["mode"]: row for row in rows}
    eager, full = by_mode["NONE"], by_mode["FULL"]
    saved = 1 - full["itl_us"] / eager["itl_us"]
    return (
        f"One graph: {full['launches']} launches for {eager['launches']}, the same "
        f"{full['gpu_us']:,.0f} µs of kernels, {saved:.0%} off the step."
    )


def _row(p: Prediction, eager: Prediction) -> dict[str, Any]:
    after = p.break_even(eager)
    return {
        "mode": p.mode,
        "kernels": p.kernels,
        "launches": p.launches,
        "cpu_us": p.cpu_us,
        "gpu_us": p.gpu_us,
        "itl_us": p.itl_us,
        "itl_p50_ms": p.itl_p50_us / 1000,
        "itl_p99_ms": p.itl_p99_us / 1000,
        "gpu_utilisation": p.utilisation,
        "graphs": p.graphs,
        "capture_ms": p.capture_us / 1000,
        "graph_mb": p.graph_bytes / 1e6,
        "pays_after_replays": int(after) if p.graphs and after < float("inf") else None,
    }
