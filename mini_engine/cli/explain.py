"""Am I launch-bound? Where the time of your decode step goes, and what a CUDA graph would save.

  python -m mini_engine explain --shape qwen2.5-7b --spec l40s --batch 4 --context 1024 --itl 22
  python -m mini_engine explain --shape qwen3-0.6b --spec h100 --itl 8.7 --mode NONE

Give it the inter-token latency that you measured, in ms. It answers with three parts: the bytes
that must be read, as fast as the card reads; the beginnings and ends of kernels; and the time in
which the GPU waits for the CPU. A graph takes away the last part only. Say with --mode how the step
was launched, if you know (NONE is vLLM's --enforce-eager); otherwise the prediction that lies
nearest decides. From an eager step it also tells how fast your host is, and predicts the rest with
that.

Without --itl it explains what is predicted. All predictions come with the interval that held 80% of
the steps that others have measured.
"""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.cli.terminal import table
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.step.capacity import check_batch
from mini_engine.step.explain import explain
from mini_engine.step.run import WAYS
from mini_engine.step.storage import stored_as

LITTLE = 0.03  # a saving below this share of the step is not worth a capture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "shape", "spec", "stored", "batch", "context")
    add = parser.add_argument
    words = "the inter-token latency that you measured"
    add("--itl", type=options.between(1e-3, 1e6), metavar="MS", help=words)
    words = "how it was launched (default: as the nearest prediction)"
    add("--mode", choices=tuple(WAYS), help=words)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    shape, spec = options.shape_and_spec(args)
    stored = stored_as(shape, args.quant, args.kv_dtype)
    check_batch(shape, spec, args.batch, args.context, stored)
    found = explain(
        shape, spec, batch=args.batch, context=args.context, mode=args.mode, stored=stored,
        itl_us=args.itl * 1e3 if args.itl else None,
    )  # fmt: skip
    saved, least, most = found.saved()
    below = [n for n in default_capture_sizes(*spec.batch_defaults) if n < args.batch]
    listed = " ".join(map(str, [*below, args.batch]))
    return {
        "shape": shape.name,
        **options.told(spec),
        **vars(found),
        "looks_like": not args.mode,
        "saved": {"share": saved, "low": least, "high": most},
        "verdict": "launch-bound"
        if found.launch_bound
        else "GPU-bound"
        if most < LITTLE
        else "open",
        "options": "--enforce-eager" if most < LITTLE else f"--cudagraph-capture-sizes {listed}",
    }


def show(result: dict[str, Any], console: Console) -> None:
    itl, mode, measured = result["itl_us"], result["mode"], result["measured"]
    console.print(
        f"[bold]{result['shape']}[/bold] on {options.on(result)}, batch {result['batch']:,}, "
        f"context {result['context']:,}: "
        + (f"{itl / 1e3:g} ms" if measured else f"{options.two_digits(itl / 1e3)} ms")
        + f" in mode {mode}, {'measured' if measured else 'predicted'}"
    )
    parts = (
        ("bytes, as fast as the card reads", result["floor_us"]),
        ("beginnings and ends of kernels", result["kernels_us"]),
        ("the GPU waits for the CPU", result["cpu_us"]),
    )
    rows = [(words, options.two_digits(us / 1e3), f"{us / itl:.0%}") for words, us in parts]
    console.print(table(("<where it goes", "ms", "share"), rows))
    for name, way in result["ways"].items():
        console.print(f"{name:9} is predicted to take {options.ms(vars(way))}")
    guessed = measured and result["looks_like"]
    fits = [
        name
        for name, way in result["ways"].items()
        if way.low_us and way.low_us <= itl <= way.high_us
    ]
    if guessed and len(fits) > 1:
        console.print(
            f"{itl / 1e3:g} ms fits {' and '.join(fits)} alike: say with --mode how you launch. "
            f"Below, it is taken for {mode}."
        )
    elif guessed:
        console.print(f"The prediction of {mode} lies nearest to yours: --mode says it for sure.")
    if factor := result["host_factor"]:
        console.print(f"Your host takes {factor:.1f} times as long as {result['host']}.")
    saved = result["saved"]
    saves = f"{saved['share']:.0%} of it ({saved['low']:.0%} to {saved['high']:.0%})"
    console.print(
        {
            "launch-bound": f"Launch-bound: one graph of the step would save {saves}.",
            "GPU-bound": "GPU-bound: a graph saves nothing that one feels. Fewer bytes do, or a "
            "faster card.",
            "open": f"It may be launch-bound: one graph of the step would save {saves}.",
        }[result["verdict"]]
        if mode != "FULL"
        else "It runs as one graph: what is left is bytes, and kernels that are better or fewer."
    )
    console.print(f"For vllm serve: {result['options']}\n{options.WITHIN}")
