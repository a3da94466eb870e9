"""Write text with a checkpoint, on the simulated GPU.

  python -m mini_engine generate --prompt "Return the" --mode FULL

Any Hugging Face folder of a Qwen2.5, Qwen3 or Llama model works with --model; without it, the small
checkpoint that ships with the course writes (it has read the docstrings of Python's standard
library). The numpy decoder computes in float32, a row at a time, so that every mode gives the same
bits: a model of 0.5 billion parameters is slow here. One prompt streams; several run side by side.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mini_engine.cli import options, prompts
from mini_engine.generation import SHIPPED
from mini_engine.modes import CUDAGraphMode
from mini_engine.sim.generate import generate, open_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompts.add_arguments(parser)
    parser.add_argument("--model", type=Path, default=SHIPPED, help="checkpoint folder")
    parser.add_argument(
        "--mode",
        default="FULL_AND_PIECEWISE",
        choices=[mode.name for mode in CUDAGraphMode],
        help="how steps are launched (default: FULL_AND_PIECEWISE)",
    )
    parser.add_argument("--max-new-tokens", type=options.positive, default=48, metavar="N")
    parser.add_argument(
        "--capture-sizes", type=options.whole_numbers, metavar="1,2,4", help="the ladder"
    )
    options.add_spec(parser)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    texts = prompts.read(args)
    checkpoint = open_checkpoint(args.model)
    stream, tokenizer = len(texts) == 1 and not args.json, checkpoint.tokenizer.stream()
    shown = 0

    def on_token(_index: int, token: int) -> None:
        nonlocal shown
        if stream:
            print((texts[0] if not shown else "") + tokenizer.push(token), end="", flush=True)
        shown += 1

    done = generate(
        checkpoint,
        options.spec_of(args.spec),
        texts,
        args.mode,
        max_new_tokens=args.max_new_tokens,
        capture_sizes=args.capture_sizes,
        on_token=on_token,
    )
    if stream:
        print(tokenizer.finish(), flush=True)
    return {
        "model": checkpoint.config.name,
        "mode": args.mode,
        "spec": args.spec,
        "streamed": stream,
        "prompts": [
            {
                "prompt": prompt,
                "text": text,
                "tokens": list(completion.tokens),
                "finish_reason": completion.finish_reason,
            }
            for prompt, text, completion in zip(texts, done.texts, done.completions, strict=True)
        ],
        "launches": done.counters.launches,
        "kernels": done.counters.kernels,
        "simulated_ms": done.simulated_us / 1000,
    }


def show(result: dict[str, Any], console: Console) -> None:
    if not result["streamed"]:
        for row in result["prompts"]:
            console.print(Text.assemble((row["prompt"], "bold"), row["text"]), "")
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    console.print(
        f"[dim]{result['model']}, {result['mode']}: {tokens} tokens, "
        f"{result['launches']:,} launches for {result['kernels']:,} kernels, "
        f"{result['simulated_ms']:.1f} ms on a simulated {result['spec']}[/dim]",
        soft_wrap=True,
    )
