"""The main job: one decode step run eagerly, piecewise and as one graph; see where the time went.

  python -m mini_engine demo
  python -m mini_engine demo --prompt "Return the" --prompt "Raise"

1. A small trained checkpoint writes your prompts on a simulated GPU under NONE, PIECEWISE, FULL and
   FULL_AND_PIECEWISE. The four must agree token for token, or the command fails.
2. A decode step of a full-size model on one card and one host is predicted for transformers, for
   vLLM (or --engine) eagerly, piecewise and as one graph, and for this engine's own kernels. Each
   time has its interval; the nearest pair that somebody has measured stands beside them.
3. A picture and a trace go to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mini_engine.cli import CheckFailed, options
from mini_engine.cli.terminal import Columns, table
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import ModelConfig
from mini_engine.serving.ladder_cost import CAPTURE_FACTOR
from mini_engine.sim.generate import Generation, generate, open_checkpoint
from mini_engine.sim.predict import HF_EAGER, Prediction, predict
from mini_engine.sim.trace import write_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import break_even_replays
from mini_engine.step.run import StepTime, step_time
from mini_engine.validate.points import nearest_pair

DRAWN = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "one graph"}
CONTEXT = 512
OURS = "launch-bound"  # the row of this engine: five kernels a layer, in one graph
COLUMNS: Columns = {
    "<": "{0[label]}",
    "<\nas": lambda row: row["launched"].replace("piecewise", "pieces"),
    "ker-\nnels": "{0[kernels]:,}", "laun-\nches": "{0[launches]:,}",
    "CPU\nms": lambda row: options.two_digits(row["cpu_us"] / 1e3),
    "GPU\nms": lambda row: options.two_digits(row["gpu_us"] / 1e3),
    "ITL\nms": lambda row: options.two_digits(row["itl_us"] / 1e3),
    "80%\nwithin": lambda row: options.ends(row["low_us"], row["high_us"], 1e-3, "–"),
    "GPU\nbusy": "{0[gpu_utilisation]:.0%}",
    "cap-\nture s": lambda row: options.two_digits(row["capture_us"] / 1e6)
    if "capture_us" in row else "–",
    "pays\nafter": lambda row: f"{row['pays_after_replays']:,}"
    if row.get("pays_after_replays") else "–",
}  # fmt: skip
FILES = {
    "timeline.png": "CPU lane and GPU lane, eager above graph",
    "trace.json": "the same steps, for https://ui.perfetto.dev",
}
NEXT = {
    "crossover": "up to which batch does a graph pay?",
    "ladder --batch 33": "why does my batch of 33 run at 40?",
    "serve": "a trace of requests: TTFT, ITL, padding",
    "--help": "all commands",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "shape", "spec", "batch")
    words = "folder for the files (default: out)"
    parser.add_argument("--out", type=options.out_folder, default="out", help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    texts, checkpoint = args.prompt or list(options.PROMPTS), open_checkpoint(SHIPPED)
    shape, spec = options.shape_and_spec(args)
    check_batch(shape, spec, args.batch, CONTEXT)
    host = args.host or spec.host
    transformers, own = (load_spec(args.spec, host, name) for name in ("transformers", OURS))
    specs = {HF_EAGER: transformers, **dict.fromkeys(DRAWN, spec), OURS: own}
    with console.status("writing") as status:
        written = [generate(checkpoint, spec, texts, mode) for mode in options.MODES]
        check_agreement(texts, written)
        status.update(f"predicting {shape.name}")
        steps = {
            mode: predict(shape, specs[mode], mode, batch=args.batch, context=CONTEXT)
            for mode in (HF_EAGER, *DRAWN)
        }
        ops = step_ops(shape, StepShape.decode(args.batch, CONTEXT), own.ops)
        every: dict[str, Prediction | StepTime] = {**steps}
        every[OURS] = step_time(ops, own, "full", args.batch)
        status.update("drawing")
        draw(args.out, shape, spec, args.batch, steps)
    return {
        "checkpoint": checkpoint.config.name,
        "prompts": texts,
        "texts": written[0].texts,
        "tokens": [done.tokens for done in written[0].completions],
        "modes": [generation.mode for generation in written],
        "shape": shape.name,
        **options.told(spec),
        "predictions": [
            _row(mode, every[mode], specs[mode], steps["NONE"], args.batch) for mode in every
        ],
        "measured": nearest_pair(shape, spec, args.batch),
    }


def _row(
    mode: str, step: Prediction | StepTime, spec: DeviceSpec, eager: Prediction, batch: int
) -> dict[str, Any]:
    """A predicted step, and what capturing its graphs costs, where the device captured some."""
    work = step if isinstance(step, StepTime) else step.work
    group = {HF_EAGER: "NONE", OURS: "FULL"}.get(mode, mode)
    row = {
        "mode": mode,
        "launched": DRAWN[group],
        "kernels": work.kernels,
        "launches": work.launches,
        "cpu_us": work.cpu_us,
        "gpu_us": step.utilisation * step.itl_us,
        "gpu_utilisation": step.utilisation,
        **options.interval(spec, step.itl_us, group, batch),
    }
    if isinstance(step, Prediction) and step.capture.graphs:
        capture_us = CAPTURE_FACTOR * step.capture.time_us
        after = break_even_replays(capture_us, eager.itl_us, step.itl_us)
        row |= {
            "graphs": step.capture.graphs,
            "capture_us": capture_us,
            "graph_bytes": step.capture.bytes,
            "pays_after_replays": int(after) if after < float("inf") else None,
        }
    return row


def draw(
    out: Path, shape: ModelConfig, spec: DeviceSpec, batch: int, steps: Mapping[str, Prediction]
) -> None:
    """Write `FILES` into `out`."""
    from mini_engine import plots

    out.mkdir(parents=True, exist_ok=True)
    timelines = {DRAWN.get(mode, mode): step.timeline for mode, step in steps.items()}
    write_trace(out / "trace.json", timelines)
    del timelines[HF_EAGER]  # too long to stand above the others
    caption = f"{plots.PREDICTED}: a decode step of {shape.name} on {spec.name}, batch {batch}, "
    caption += f"{CONTEXT} tokens of context, {spec.engine} on the host {spec.host}."
    plots.timeline(timelines, out / "timeline.png", caption=caption)


def check_agreement(texts: Sequence[str], written: Sequence[Generation]) -> None:
    """Raise `CheckFailed`, with the prompt, unless all modes wrote the same."""
    first = written[0]
    for other in written[1:]:
        for prompt, ours, theirs in zip(texts, first.completions, other.completions, strict=True):
            if ours.tokens != theirs.tokens:
                raise CheckFailed(
                    f"{first.mode} and {other.mode} disagree on the prompt {prompt!r}: a graph "
                    "read or wrote the wrong memory"
                )


# ---------------------------------------------------------------- for people


def show(result: dict[str, Any], console: Console) -> None:
    say = partial(console.print, soft_wrap=True)
    say(f"\n[bold]1. {result['checkpoint']} writes[/bold] (greedy, in numpy, on a simulated GPU)\n")
    for prompt, text in zip(result["prompts"], result["texts"], strict=True):
        text = " ".join(("x" + text).split())[1:]  # a space in front stays
        console.print(Padding(Text.assemble((prompt, "bold"), text), (0, 0, 0, 3)))
    tokens = sum(map(len, result["tokens"]))
    *modes, last = result["modes"]
    say(f"\n   {', '.join(modes)} and {last} wrote the same {tokens} tokens.\n")
    say(
        f"[bold]2. {result['shape']} on one {result['spec']}, predicted[/bold]: a decode step of "
        f"batch {result['batch']}, {CONTEXT} tokens"
    )
    rows = {row["mode"]: row for row in result["predictions"]}
    labels = {"HF eager": "transformers", OURS: "this engine¹"}
    told = [{**row, "label": labels.get(mode, result["engine"])} for mode, row in rows.items()]
    console.print(table(COLUMNS, told, box=SIMPLE, padding=0))  # fits 80 columns
    eager, full = rows["NONE"], rows["FULL"]
    say(
        f"   One graph: {full['launches']} launches for {eager['launches']}, the same "
        f"{full['gpu_us'] / 1e3:.1f} ms of kernels, {eager['itl_us'] / full['itl_us']:.1f} "
        "times as fast."
    )
    if result["measured"]:
        slow, fast = result["measured"].slow.point, result["measured"].fast.point
        say(
            f"   Measured nearby: {slow.cls} {slow.itl_ms:.2f} ms, {fast.cls.partition(' ')[2]} "
            f"{fast.itl_ms:.2f} ms, {result['measured'].measured:.1f} times as fast\n"
            f"   (the fit, which has seen it, says {result['measured'].predicted:.1f}): "
            f"{slow.model} on one {slow.card}, batch {slow.batch},\n   {slow.source}"
        )
    say(
        f"   Host: {result['host']}, whose CPU makes the eager times. 80% within: of what others\n"
        "   measured, and the fit had not seen, 80% lay so near. Capture: vLLM's ladder;\n"
        "   it pays for itself after that many steps."
    )
    say("   ¹ Five kernels a layer in one graph; not yet measured.\n")
    say("[bold]3. Look[/bold]")
    for name, what in FILES.items():
        say(f"   {result['out'] / name!s:<18} {what}")
    say("\n[bold]Next[/bold]: .venv/bin/python -m mini_engine ...")
    for command, why in NEXT.items():
        say(f"   {command:<18} {why}")
