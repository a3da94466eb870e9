"""The main job: one decode step run eagerly, piecewise and as one graph; see where the time went.

  python -m mini_engine demo
  python -m mini_engine demo --prompt "Return the" --prompt "Raise"

1. A small trained checkpoint writes your prompts on a simulated GPU under NONE, PIECEWISE, FULL and
   FULL_AND_PIECEWISE. The four must agree token for token, or the command fails.
2. A decode step of a full-size model on one card and one host is predicted for several engines:
   transformers, vLLM (or --engine) eagerly, piecewise and as one graph, and this engine with its
   own kernels. Each time has its interval, and the nearest pair that somebody has measured, eager
   and with graphs, stands beside them.
3. Pictures and a trace go to --out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.cli import CheckFailed, options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mini_engine.model.config import ModelConfig
    from mini_engine.sim.generate import Generation
    from mini_engine.sim.predict import Prediction
    from mini_engine.step.cards import DeviceSpec

DRAWN = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "one graph"}
SIMULATED = "fused9"  # the op list of the decoder in numpy
CONTEXT = 512
OURS = "launch-bound"  # the row of this engine: five kernels a layer, in one graph
HOW = {"eager": "eager", "piecewise": "pieces", "full": "one graph"}
LABELS = {"HF eager": "transformers", OURS: "this engine¹"}
HEADS = ("<", "<\nas", "ker-\nnels", "laun-\nches", "CPU\nms", "GPU\nms", "ITL\nms", "80%\nwithin",
         "GPU\nbusy", "cap-\nture s", "pays\nafter")  # fmt: skip
NEXT = {
    "crossover": "up to which batch does a graph pay?",
    "ladder --batch 33": "why does my batch of 33 run at 40?",
    "serve": "a trace of requests: TTFT, ITL, padding",
    "--help": "all commands",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_prompts(parser)
    options.add_shape(parser)
    options.add_spec(parser)
    parser.add_argument("--batch", type=options.positive, default=1, help="of the predicted step")
    parser.add_argument(
        "--out", type=options.out_folder, default="out", help="folder for the files (default: out)"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from mini_engine.engine.generation import SHIPPED
    from mini_engine.sim.generate import generate, open_checkpoint
    from mini_engine.sim.predict import HF_EAGER, predict
    from mini_engine.step.capacity import check_batch
    from mini_engine.step.cards import load_spec

    texts, checkpoint = options.prompts_of(args), open_checkpoint(SHIPPED)
    shape, spec = options.shape_and_spec(args)
    check_batch(shape, spec, args.batch, CONTEXT)
    host = args.host or spec.host
    transformers, own = (load_spec(args.spec, host, name) for name in ("transformers", OURS))
    with console.status("writing") as status:
        written: list[Generation] = []
        for mode in options.MODES:
            status.update(f"writing under {mode}")
            written.append(generate(checkpoint, spec, texts, mode, max_new_tokens=48))
        check_agreement(texts, written)
        predictions: list[Prediction] = []
        for mode in (HF_EAGER, *DRAWN):
            status.update(f"predicting {shape.name}, {mode}")
            on = transformers if mode == HF_EAGER else spec
            step = predict(shape, on, mode, batch=args.batch, context=CONTEXT)
            predictions.append(step)
        eager = predictions[1]
        rows = [row_of(p, eager, transformers if p.mode == HF_EAGER else spec) for p in predictions]
        rows.append(own_row(shape, own, args.batch))
        status.update("drawing")
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
        **options.told(spec),
        "batch": args.batch,
        "context": CONTEXT,
        "ops": spec.ops,
        "predictions": rows,
        "measured": nearest(shape, spec, args.batch),
        "files": files,
    }


def draw(
    out: Path, shape: ModelConfig, spec: DeviceSpec, batch: int, predictions: Sequence[Prediction]
) -> dict[str, str]:
    """Write the pictures and the trace into `out`. Returns what each file shows, by path."""
    from mini_engine import plots
    from mini_engine.dispatch.default_ladder import default_capture_sizes
    from mini_engine.dispatch.ladder import CaptureLadder
    from mini_engine.sim.predict import HF_EAGER, LIMITS
    from mini_engine.sim.trace import write_trace
    from mini_engine.step.capacity import check_batch
    from mini_engine.step.curves import itl_curve

    out.mkdir(parents=True, exist_ok=True)
    steps = {p.mode: p.timeline for p in predictions}
    plots.timeline(
        {name: steps[mode] for mode, name in DRAWN.items()},
        out / "timeline.png",
        caption=f"{plots.PREDICTED}: a decode step of {shape.name} on {spec.name}, batch {batch}, "
        f"{CONTEXT} tokens of context, {spec.engine} on the host {spec.host}.",
    )
    top = LIMITS.max_num_seqs
    ladder = CaptureLadder(default_capture_sizes(top, LIMITS.max_num_batched_tokens))
    top = min(top, check_batch(shape, spec, batch, CONTEXT))
    curve = itl_curve(shape, spec, ladder, style=spec.ops, context=CONTEXT, max_batch=top)
    plots.itl_curve(curve, out / "crossover.png")
    traced = {name: steps[mode] for mode, name in {HF_EAGER: HF_EAGER, **DRAWN}.items()}
    write_trace(out / "trace.json", traced)
    return {
        str(out / "timeline.png"): "CPU lane and GPU lane, eager above graph",
        str(out / "crossover.png"): "ITL against batch: where the gain of a graph ends",
        str(out / "trace.json"): "the same steps, for https://ui.perfetto.dev",
    }


def check_agreement(texts: Sequence[str], written: Sequence[Generation]) -> None:
    """Raise `CheckFailed`, with prompt and token, unless all modes wrote the same."""
    reference = written[0]
    for other in written[1:]:
        for i, prompt in enumerate(texts):
            ours, theirs = reference.completions[i].tokens, other.completions[i].tokens
            if ours != theirs:
                at = next(k for k in range(len(ours) + 1) if ours[:k] != theirs[:k]) - 1
                raise CheckFailed(
                    f"{reference.mode} and {other.mode} disagree on prompt {i + 1} ({prompt!r}) "
                    f"from token {at + 1} on: a graph read or wrote the wrong memory"
                )


# ---------------------------------------------------------------- rows


def own_row(shape: ModelConfig, spec: DeviceSpec, batch: int) -> dict[str, Any]:
    """This engine's step: its own list of kernels, in one graph."""
    from mini_engine.step.kernels import StepShape, step_ops
    from mini_engine.step.run import step_time

    ops = step_ops(shape, StepShape.decode(batch, CONTEXT), spec.ops)
    step = step_time(ops, spec, "full", batch)
    return {
        "mode": OURS,
        "launched": "full",
        "kernels": step.kernels,
        "launches": step.launches,
        "cpu_us": step.cpu_us,
        "gpu_us": step.gpu_busy_us,
        **options.interval(spec, step.itl_us, "FULL"),
        "gpu_utilisation": step.utilisation,
        "graphs": 0,
        "pays_after_replays": None,
    }


def row_of(p: Prediction, eager: Prediction, spec: DeviceSpec) -> dict[str, Any]:
    """A step that the simulated device ran."""
    after = p.break_even(eager)
    mode = p.mode if p.mode in DRAWN else "NONE"  # HF eager
    return {
        "mode": p.mode,
        "launched": {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}[mode],
        "kernels": p.work.kernels,
        "launches": p.work.launches,
        "cpu_us": p.work.cpu_us,
        "gpu_us": p.work.gpu_us,
        **options.interval(spec, p.itl_us, mode),
        "gpu_utilisation": p.utilisation,
        "graphs": p.capture.graphs,
        "capture_us": p.capture.time_us,
        "graph_bytes": p.capture.bytes,
        "pays_after_replays": int(after) if p.capture.graphs and after < float("inf") else None,
    }


def nearest(shape: ModelConfig, spec: DeviceSpec, batch: int) -> dict[str, Any] | None:
    """The measured pair, eager and one graph, that is most like this step; None where none is."""
    from mini_engine.validate.validate import nearest_pair

    found = nearest_pair(shape, spec, batch)
    if found is None:
        return None
    slow, fast = found.slow.point, found.fast.point
    return {
        "eager": slow.cls,
        "graph": fast.cls,
        "shape": slow.model,
        "spec": slow.card,
        "batch": slow.batch,
        "eager_us": slow.itl_ms * 1e3,
        "graph_us": fast.itl_ms * 1e3,
        "times_as_fast": found.measured,
        "predicted_times_as_fast": found.predicted,
        "source": slow.source,
    }


# ---------------------------------------------------------------- for people


def show(result: dict[str, Any], console: Console) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def say(text: str = "") -> None:
        console.print(text, soft_wrap=True)

    say(f"\n[bold]1. {result['checkpoint']} writes[/bold] (greedy, in numpy, on a simulated GPU)\n")
    for row in result["prompts"]:
        text = Text(row["prompt"], "bold").append(
            " ".join(("x" + row["text"]).split())[1:], "not bold"
        )
        console.print(Padding(text, (0, 0, 0, 3)))
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    *first, last = result["modes"]
    say(f"\n   {', '.join(first)} and {last} wrote the same {tokens} tokens.\n")
    say(
        f"[bold]2. {result['shape']} on one {result['spec']}, predicted[/bold]: a decode step of "
        f"batch {result['batch']}, {result['context']} tokens"
    )
    console.print(as_table(result["predictions"], result["engine"]))
    say(finding(result["predictions"]))
    if result["measured"]:
        say(beside(result["measured"]))
    say(f"   Host: {result['host']}, whose CPU makes the eager times. 80% within: of what others")
    say("   measured, and the fit had not seen, 80% lay so near. Capture: vLLM's ladder;")
    say("   it pays for itself after that many steps.")
    if result["ops"] != SIMULATED:
        say(f"   The simulated device runs nine kernels a layer, {result['engine']} others.")
    say("   ¹ Five kernels a layer in one graph; not yet measured.\n")
    say("[bold]3. Look[/bold]")
    for path, what in result["files"].items():
        say(f"   {path:<18} {what}")
    say("\n[bold]Next[/bold]: .venv/bin/python -m mini_engine ...")
    for command, why in NEXT.items():
        say(f"   {command:<18} {why}")


def as_table(rows: Sequence[dict[str, Any]], engine: str) -> Table:
    """Fits 80 columns."""
    from rich.box import SIMPLE

    from mini_engine.cli.terminal import table

    def cells(row: dict[str, Any]) -> Sequence[object]:
        after = row["pays_after_replays"]
        return (
            LABELS.get(row["mode"], engine),
            HOW[row["launched"]],
            f"{row['kernels']:,}",
            f"{row['launches']:,}",
            *(f"{row[name] / 1e3:.1f}" for name in ("cpu_us", "gpu_us", "itl_us")),
            f"{row['low_us'] / 1e3:.1f}–{row['high_us'] / 1e3:.1f}",
            f"{row['gpu_utilisation']:.0%}",
            f"{row['capture_us'] / 1e6:.1f}" if row["graphs"] else "–",
            f"{after:,}" if after else "–",
        )

    return table(HEADS, map(cells, rows), box=SIMPLE, padding=0)


def finding(rows: Sequence[dict[str, Any]]) -> str:
    """What one graph changes, in a line."""
    by_mode = {row["mode"]: row for row in rows}
    eager, full = by_mode["NONE"], by_mode["FULL"]
    return (
        f"   One graph: {full['launches']} launches for {eager['launches']}, the same "
        f"{full['gpu_us'] / 1e3:.1f} ms of kernels, {eager['itl_us'] / full['itl_us']:.1f} "
        "times as fast."
    )


def beside(pair: dict[str, Any]) -> str:
    """The measured pair, its source in a line of its own."""
    graph = pair["graph"].partition(" ")[2]  # of the same engine
    return (
        f"   Measured nearby: {pair['eager']} {pair['eager_us'] / 1e3:.2f} ms, {graph} "
        f"{pair['graph_us'] / 1e3:.2f} ms, {pair['times_as_fast']:.1f} times as fast\n"
        f"   (predicted {pair['predicted_times_as_fast']:.1f}): {pair['shape']} on one "
        f"{pair['spec']}, batch {pair['batch']},\n   {pair['source']}"
    )
