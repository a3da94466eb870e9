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
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mini_engine import plots
from mini_engine.cli import CheckFailed, options, prompts
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.predict.curves import itl_curve
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.records.trace import write_trace
from mini_engine.sim.generate import Generation, generate, open_checkpoint
from mini_engine.sim.predict import HF_EAGER, LIMITS, Prediction, Service, predict

DRAWN = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "one graph"}
LABELS = {HF_EAGER: "HF eager¹", "FULL_AND_PIECEWISE": "FULL_AND_\nPIECEWISE"}
HEADS = {
    "ker-": "nels",
    "laun-": "ches",
    "CPU": "µs",
    "GPU": "µs",
    "ITL p50": "ms",
    "p99": "ms",
    "GPU ": "busy",
    "capture": "ms",
    "graphs": "MB",
    "pays": "after",
}
CONTEXT = 512
NEXT = {
    "crossover": "up to which batch does a graph pay?",
    "ladder --batch 33": "why does my batch of 33 run at 40?",
    "serve": "a trace of requests: TTFT, ITL, padding",
    "--help": "all commands",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompts.add_arguments(parser)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint that writes")
    parser.add_argument("--max-new-tokens", type=options.positive, default=48, metavar="N")
    options.add_shape(parser)
    options.add_spec(parser)
    parser.add_argument("--batch", type=options.positive, default=1, help="of the predicted step")
    options.add_host_us(parser)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    texts = prompts.read(args)
    checkpoint = open_checkpoint(args.model)
    shape, spec = options.shape_and_spec(args)
    service = Service()
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=2 * len(options.MODES) + 2)

        def next_step(what: str) -> None:
            progress.update(task, advance=1, description=what)

        written: list[Generation] = []
        for mode in options.MODES:
            next_step(f"writing under {mode}")
            tokens = args.max_new_tokens
            written.append(generate(checkpoint, spec, texts, mode, max_new_tokens=tokens))
        check_agreement(texts, written)
        predictions: list[Prediction] = []
        for mode in (HF_EAGER, *options.MODES):
            next_step(f"predicting {shape.name}, {mode}")
            step = predict(shape, spec, mode, batch=args.batch, context=CONTEXT, service=service)
            predictions.append(step)
        next_step("drawing")
        files = draw(args.out, shape, spec, args.batch, predictions)
    first = written[0]
    return {
        "checkpoint": checkpoint.config.name,
        "prompts": [
            {"prompt": prompt, "text": text, "tokens": list(done.tokens)}
            for prompt, text, done in zip(texts, first.texts, first.completions, strict=True)
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


def draw(
    out: Path, shape: ModelConfig, spec: DeviceSpec, batch: int, predictions: Sequence[Prediction]
) -> dict[str, str]:
    """Write the pictures and the trace into `out`. Returns what each file shows, by path."""
    out.mkdir(parents=True, exist_ok=True)
    steps = {p.mode: p.timeline for p in predictions}
    plots.timeline(
        {name: steps[mode] for mode, name in DRAWN.items()},
        out / "timeline.png",
        caption=f"{plots.PREDICTED}: a decode step of {shape.name} on {spec.name}, batch {batch}, "
        f"{CONTEXT} tokens of context, 9 kernels a layer.",
    )
    top = LIMITS.max_num_seqs
    ladder = CaptureLadder(default_capture_sizes(top, LIMITS.max_num_batched_tokens))
    curve = itl_curve(shape, spec, ladder, style="fused9", context=CONTEXT, max_batch=top)
    plots.itl_curve(curve, out / "crossover.png")
    traced = {name: steps[mode] for mode, name in {HF_EAGER: HF_EAGER, **DRAWN}.items()}
    write_trace(out / "trace.json", traced)
    return {
        str(out / "timeline.png"): "CPU lane and GPU lane, eager above graph",
        str(out / "crossover.png"): "ITL against batch: where the gain of a graph ends",
        str(out / "trace.json"): "the same step for https://ui.perfetto.dev or chrome://tracing",
    }


def check_agreement(texts: Sequence[str], written: Sequence[Generation]) -> None:
    """Raise `CheckFailed`, with prompt and token, unless all modes wrote the same."""
    reference = written[0]
    for other in written[1:]:
        for i, prompt in enumerate(texts):
            ours, theirs = reference.completions[i].tokens, other.completions[i].tokens
            if ours != theirs:
                same = [a == b for a, b in zip(ours, theirs, strict=False)]
                at = [*same, False].index(False)
                raise CheckFailed(
                    f"{reference.mode} and {other.mode} disagree on prompt {i + 1} ({prompt!r}) "
                    f"from token {at + 1} on: a graph read or wrote the wrong memory"
                )


def show(result: dict[str, Any], console: Console) -> None:
    def say(text: str | Text = "") -> None:
        console.print(text, soft_wrap=True)

    say(f"\n[bold]1. {result['checkpoint']} writes[/bold] (greedy, in numpy, on a simulated GPU)\n")
    for row in result["prompts"]:
        text = Text(row["prompt"], "bold").append(
            " ".join(("x" + row["text"]).split())[1:], "not bold"
        )
        console.print(Padding(text, (0, 0, 0, 3)))
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    *first, last = result["modes"]
    say(f"\n   {', '.join(first)} and {last} wrote the same {tokens} tokens, one by one.\n")
    say(
        f"[bold]2. {result['shape']} on one {result['spec']}, predicted[/bold]: "
        f"a decode step of batch {result['batch']}, {result['context']} tokens of context"
    )
    console.print(_table(result["predictions"]))
    say("   ¹ Hugging Face transformers, 56 ops a layer; the others have 9 kernels a layer.")
    say(f"   {_finding(result['predictions'])}")
    say(f"   ITL p50 and p99: {result['service']}.")
    say("   Capture: vLLM's default ladder; it pays for itself after that many steps.\n")
    say("[bold]3. Look[/bold]")
    for path, what in result["files"].items():
        say(f"   {path:<18} {what}")
    say("\n[bold]Next[/bold]")
    for command, why in NEXT.items():
        say(f"   .venv/bin/python -m mini_engine {command:<18} {why}")


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """Fits 80 columns."""
    table = Table(box=SIMPLE, padding=0)
    table.add_column("", no_wrap=True)
    for head, unit in HEADS.items():
        table.add_column(f"{head}\n{unit}", justify="right", no_wrap=True)
    for row in rows:
        after = row["pays_after_replays"]
        table.add_row(
            LABELS.get(row["mode"], row["mode"]),
            f"{row['kernels']:,}",
            f"{row['launches']:,}",
            f"{row['cpu_us']:,.0f}",
            f"{row['gpu_us']:,.0f}",
            f"{row['itl_p50_ms']:.2f}",
            f"{row['itl_p99_ms']:.2f}",
            f"{row['gpu_utilisation']:.0%}",
            f"{row['capture_ms']:,.0f}" if row["graphs"] else "–",
            f"{row['graph_mb']:,.0f}" if row["graphs"] else "–",
            f"{after:,}" if after else "–",
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
