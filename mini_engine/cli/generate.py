"""Write text with a checkpoint.

  python -m mini_engine generate --prompt "Return the" --mode FULL
  python -m mini_engine generate --backend cuda --model Qwen/Qwen3-0.6B --prompt "Once"

Any Hugging Face folder of a Qwen2.5, Qwen3 or Llama model works with --model; without it, the small
checkpoint that ships with the course writes (it has read the docstrings of Python's standard
library). One prompt streams; several run side by side.

Without --temperature the likeliest token is taken. With it tokens are drawn, and the same --seed
gives the same text, whatever the mode and whoever runs beside it; the second prompt has the seed
after it, and so on. --min-p, --top-k and --top-p drop unlikely tokens, in this order:
  python -m mini_engine generate --temperature 0.8 --top-p 0.95 --seed 1 --prompt "Return the"

--backend sim   numpy on the simulated GPU, in float32 and a row at a time, so that every mode gives
                the same bits: slow for a model of 0.6 billion parameters, which takes 3.4 GB of
                this machine's memory for five prompts (it says so before it loads)
--backend cuda  PyTorch (install it first): on a GPU in bf16 with captured graphs, on a CPU in
                float32 with emulated ones; takes hub ids too; says so where it has to do with less;
                reads AWQ and GPTQ checkpoints of 4 bits, and quantises others with --quant

With --backend cuda a batch in which everyone decodes is a graph of Triton kernels, five a layer;
with --plain it is PyTorch's own ops. On a CPU the PyTorch reference of each kernel runs in its
place. With TRITON_INTERPRET=1 the kernels do, in Triton's interpreter, one program at a time: a
minute a token of the small checkpoint, and 15 seconds with MINI_ENGINE_SM_COUNT=1, which makes the
programs fewer and larger. Ask for few tokens, and for --mode NONE, which spares the warm-up.

  python -m mini_engine generate --backend cuda --prompt "Once" --steps-per-replay 4
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.text import Text

from mini_engine.cli import generating, options, prompts
from mini_engine.engine.generation import SHIPPED
from mini_engine.engine.sampling import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompts.add_arguments(parser)
    parser.add_argument("--model", default=str(SHIPPED), help="checkpoint folder, or a hub id")
    parser.add_argument("--backend", default="sim", choices=("sim", "cuda"), help="(default: sim)")
    options.add_mode(parser, help="how steps are launched (default: FULL_AND_PIECEWISE)")
    words = "to write for each prompt (default: 48)"
    add = parser.add_argument
    add("--max-new-tokens", type=options.positive, default=48, metavar="N", help=words)
    parser.add_argument(
        "--capture-sizes", type=options.whole_numbers, metavar="1,2,4", help="the ladder"
    )
    add_path(parser)
    memory = parser.add_argument_group("KV cache")
    memory.add_argument(
        "--kv-dtype",
        default="auto",
        choices=("auto", "fp8"),
        help="fp8: a byte a number (e4m3, a scale a head); auto: as the weights (default)",
    )
    options.add_spec(parser)
    group = parser.add_argument_group("fewer bytes (--backend cuda)")
    group.add_argument(
        "--quant", choices=("int8", "int4"), help="quantise the layers' weights as they are read"
    )
    add_sampling(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The fields of `SamplingParams`; `sampling_of` reads them."""
    group = parser.add_argument_group("drawing tokens")
    add = group.add_argument
    add("--temperature", type=float, metavar="T", help="0.8, say; 0 takes the likeliest (default)")
    add("--top-k", type=options.whole, metavar="K", help="only the K likeliest (default: 0, all)")
    add("--top-p", type=float, metavar="P", help="only the likeliest that hold P (default: 1, all)")
    add("--min-p", type=float, metavar="P", help="only those P times as likely as the likeliest")
    add("--seed", type=options.whole, metavar="N", help="of the first prompt (default: 0)")


def sampling_of(args: argparse.Namespace) -> SamplingParams:
    """Raises ValueError for a number out of range, and for one without --temperature."""
    names = [field.name for field in fields(SamplingParams)]
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if given and "temperature" not in given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise ValueError(f"{option} without --temperature does nothing: add --temperature 0.8, say")
    return SamplingParams(**given)


def add_path(parser: argparse.ArgumentParser) -> None:
    """How the CUDA wing runs its decode steps."""
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument(
        "--plain",
        dest="kernels",
        action="store_const",
        const=0,
        help="with --backend cuda: PyTorch's own ops and none of our kernels, to compare with",
    )
    layers.add_argument(
        "--kernels",
        type=int,
        choices=(5, 9),
        help="with --backend cuda, Triton kernels a layer: 9, one for each op (those of labs 11 "
        "and 12), or the same fused into 5 (default)",
    )
    parser.add_argument(
        "--steps-per-replay",
        type=options.positive,
        default=1,
        metavar="K",
        help="with --backend cuda: decode steps in one graph, each fed by the one before. The CPU "
        "launches once and reads back once in K tokens, which then come K at a time, and a new "
        "request waits for all K (default: 1)",
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    texts = prompts.read(args)
    stream = len(texts) == 1 and not args.json
    in_torch = args.backend == "cuda"
    if args.quant and not in_torch:
        raise ValueError(
            f"--quant {args.quant} on --backend {args.backend}: the simulated GPU computes in "
            "float32; use --backend cuda"
        )
    if in_torch:
        check_no_card(args)
    write = generating.in_torch if in_torch else generating.on_sim
    result = write(args, texts, sampling_of(args), stream, console)
    formats = {"quant": args.quant, "kv_dtype": args.kv_dtype}
    return {"backend": args.backend, "streamed": stream, **formats, **result}


def check_no_card(args: argparse.Namespace) -> None:
    """Raises ValueError for a card, a host or an engine, which --backend cuda has no use for."""
    for name, usual in (("spec", options.CARD), ("engine", None), ("host", None)):
        given = getattr(args, name)
        if given is not None and given.lower() != usual:
            raise ValueError(
                f"--{name} is of the simulated GPU, and --backend cuda runs on this machine's: "
                "leave it out"
            )


def show(result: dict[str, Any], console: Console) -> None:
    if not result["streamed"]:
        for row in result["prompts"]:
            console.print(Text.assemble((row["prompt"], "bold"), row["text"]), "")
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    what = f"{result['model']}, {result['mode']}: {tokens} tokens"
    if result["quant"]:
        what += f", weights in {result['quant']}"
    if result["kv_dtype"] != "auto":
        what += f", KV cache in {result['kv_dtype']}"
    if result["backend"] == "sim":
        what += (
            f", {result['launches']:,} launches for {result['kernels']:,} kernels, "
            f"{result['simulated_ms']:.1f} ms, simulated, on {options.on(result)}"
        )
    else:
        layers = f"{result['kernels_per_layer']} kernels a layer" + ", PDL" * result["pdl"]
        what += (
            f" on {result['device']}, {layers if result['kernels_per_layer'] else 'plain layers'}, "
            f"{result['graphs']} graphs captured"
        )
        if result["steps_per_replay"] > 1:
            what += f", {result['steps_per_replay']} steps a replay"
    console.print(f"[dim]{what}[/dim]", soft_wrap=True)
