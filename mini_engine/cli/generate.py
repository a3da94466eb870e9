"""Write text with a checkpoint.

  python -m mini_engine generate --prompt "Return the" --mode FULL
  python -m mini_engine generate --backend cuda --model Qwen/Qwen3-0.6B --prompt "Once"

Any Hugging Face folder of a Qwen2.5, Qwen3 or Llama model works with --model; without it, the small
checkpoint that ships with the course writes (it has read the docstrings of Python's standard
library). One prompt streams; several run side by side.

Without --temperature the likeliest token is taken. With it tokens are drawn, and the same --seed
gives the same text, whatever the mode and whoever runs beside it; the second prompt has the seed
after it, and so on. --min-p, --top-k and --top-p drop unlikely tokens, in this order.

--backend sim   numpy on the simulated GPU, in float32 and a row at a time, so that every mode gives
                the same bits: slow for a model of 0.6 billion parameters, which takes 3.4 GB of
                this machine's memory for five prompts (it says so before it loads)
--backend cuda  PyTorch (install it first): on a GPU in bf16 with captured graphs, on a CPU in
                float32 with emulated ones; takes hub ids too; says so where it has to do with less;
                reads AWQ and GPTQ checkpoints of 4 bits, and quantises others with --quant

With --backend cuda a batch in which everyone decodes is a graph of Triton kernels, five a layer;
with --plain it is PyTorch's own ops. On a CPU the PyTorch reference of each kernel runs in its
place; with TRITON_INTERPRET=1 the kernels do, slowly: MINI_ENGINE_SM_COUNT=1 makes their programs
fewer, --mode NONE spares the warm-up, and few tokens are soon there.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from mini_engine.cli import options
from mini_engine.engine.generation import SHIPPED
from mini_engine.engine.sampling import SamplingParams
from mini_engine.sim import generate as sim
from mini_engine.step.cards import load_spec

USELESS = {  # options that the other backend has a use for
    "sim": ("quant", "kernels", "steps_per_replay"),
    "cuda": ("spec", "host", "engine"),
}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "spec", "mode", "sizes")
    parser.set_defaults(spec=None)  # to know whether it was given with --backend cuda
    add = parser.add_argument
    add("--model", default=str(SHIPPED), help="checkpoint folder, or a hub id (default: our own)")
    add("--backend", default="sim", choices=("sim", "cuda"), help="(default: sim)")
    words = "to write for each prompt (default: 48)"
    add("--max-new-tokens", type=options.positive, default=48, metavar="N", help=words)
    words = "fp8: a byte a number (e4m3, a scale a head); auto: as the weights (default)"
    add("--kv-dtype", default="auto", choices=("auto", "fp8"), help=words)

    real = parser.add_argument_group("with --backend cuda")
    add, either = real.add_argument, real.add_mutually_exclusive_group()
    words = "quantise the layers' weights as they are read"
    add("--quant", choices=("int8", "int4"), help=words)
    words = "PyTorch's own ops and none of our kernels, to compare with"
    either.add_argument("--plain", dest="kernels", action="store_const", const=0, help=words)
    words = "Triton kernels a layer: 9, one for each op, or the same fused into 5 (default)"
    either.add_argument("--kernels", type=int, choices=(5, 9), help=words)
    words = "decode steps in one graph, each fed by the one before. The CPU launches once in K "
    words += "tokens, which then come K at a time, and a new request waits for all K (default: 1)"
    add("--steps-per-replay", type=options.positive, metavar="K", help=words)

    add = parser.add_argument_group("drawing tokens").add_argument
    words = "0.8, say; 0 takes the likeliest (default)"
    add("--temperature", type=options.between(0, 1e6), metavar="T", help=words)
    add("--top-k", type=options.counted, metavar="K", help="only the K likeliest (default: 0, all)")
    words = "only the likeliest that hold P (default: 1, all)"
    add("--top-p", type=options.share, metavar="P", help=words)
    words = "only those P times as likely as the likeliest"
    add("--min-p", type=options.share, metavar="P", help=words)
    add("--seed", type=options.whole, metavar="N", help="of the first prompt (default: 0)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    given = {name: value for name, value in vars(args).items() if value is not None}
    for name in {*USELESS[args.backend]} & {*given}:
        option = "--plain" if given[name] == 0 else f"--{name.replace('_', '-')} {given[name]}"
        other = "sim" if args.backend == "cuda" else "cuda"
        raise ValueError(f"{option} needs --backend {other}, and this is {args.backend}")
    drawn = {name: given[name] for name in SAMPLING if name in given}
    if drawn and "temperature" not in drawn:
        option = "--" + next(iter(drawn)).replace("_", "-")
        raise ValueError(f"{option} without --temperature does nothing: add --temperature 0.8, say")
    texts, notes, about = args.prompt or list(options.PROMPTS), list[str](), dict[str, str]()
    write: Any  # of either wing
    if args.backend == "cuda":
        from mini_engine.cuda import generate as cuda

        tokenizer, kernels = cuda.open_tokenizer(args.model), given.get("kernels", 5)
        write = partial(cuda.generate, args.model, quant=args.quant, kernels=kernels,
                        steps_per_replay=args.steps_per_replay or 1)  # fmt: skip
    else:
        checkpoint = sim.open_checkpoint(args.model)
        spec = load_spec(args.spec or options.CARD, args.host, args.engine)
        tokenizer, write = checkpoint.tokenizer, partial(sim.generate, checkpoint, spec)
        about = {"model": checkpoint.config.name, **options.on_spec(spec)}
    streamed, stream, before = len(texts) == 1 and not args.json, tokenizer.stream(), [texts[0]]

    def on_token(_index: int, token: int) -> None:
        """Prints the prompt with the first token, and then each token as it comes."""
        print((before.pop() if before else "") + stream.push(token), end="", flush=True)

    def tell(note: str) -> None:
        """Prints a note, and keeps it for the result."""
        notes.append(note)
        console.print(note)

    done = write(
        texts, args.mode, max_new_tokens=args.max_new_tokens, capture_sizes=args.capture_sizes,
        kv_dtype=args.kv_dtype, sampling=SamplingParams(**drawn),
        on_token=on_token if streamed else None, tell=tell,
    )  # fmt: skip
    if streamed:
        print(stream.finish(), flush=True)
    ran = {name: value for name, value in vars(done).items() if name != "completions"}
    prompts = [
        {"prompt": prompt, "text": text, "tokens": one.tokens, "finish_reason": one.finish_reason}
        for prompt, text, one in zip(texts, done.texts, done.completions, strict=True)
    ]
    return {**ran, **about, "streamed": streamed, "prompts": prompts, "notes": notes}


def show(r: argparse.Namespace, console: Console) -> None:
    if not r.streamed:
        for row in r.prompts:
            console.print(Text.assemble((row["prompt"], "bold"), row["text"]), "")
    if r.backend == "sim":
        what = (
            f", {r.counters.launches:,} launches for {r.counters.kernels:,} kernels, "
            f"{r.simulated_us / 1e3:.1f} ms, simulated, on {options.on(r)}"
        )
    else:
        layers = f"{r.kernels_per_layer} kernels a layer" + ", PDL" * r.pdl
        what = (
            f" on {r.device}, {layers if r.kernels_per_layer else 'plain layers'}, "
            f"{r.report.graphs} graphs captured, {r.steps_per_replay} steps a replay"
        )
    kept = {"quant": r.quant, "kv_dtype": r.kv_dtype}
    what += "".join(f", {name} {how}" for name, how in kept.items() if how not in (None, "auto"))
    tokens = sum(len(row["tokens"]) for row in r.prompts)
    console.print(f"[dim]{r.model}, {r.mode}: {tokens} tokens{what}[/dim]")
