"""Write text with a checkpoint.

  python -m mini_engine generate --prompt "Return the" --mode FULL
  python -m mini_engine generate --backend cuda --model Qwen/Qwen3-0.6B --prompt "Once"

Any Hugging Face folder of a Qwen2.5, Qwen3 (dense or of experts) or Llama model works with --model.
One prompt streams; several run side by side. With --temperature tokens are drawn, and the same
--seed gives the same text, whatever the mode and whoever runs beside it. Drafts (--speculate)
change no text: they only make fewer steps of it.

--backend sim   numpy on the simulated GPU, in float32 and a row at a time, so that every mode gives
                the same bits: slow, and 3.4 GB of memory, for a model of 0.6 billion parameters
--backend cuda  PyTorch (install it first): on a GPU in bf16, with captured graphs of Triton
                kernels; on a CPU in float32, with emulated graphs of each kernel's reference, or
                with TRITON_INTERPRET=1 the kernels. torchrun shares the model (tensor parallel)
"""

from functools import partial
from typing import Any

from rich.text import Text

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Found, Screen
from mini_engine.engine.generation import PLAIN, SHIPPED
from mini_engine.engine.sampling import SamplingParams
from mini_engine.sim import generate as sim
from mini_engine.step.cards import load_spec

ONLY_FOR = {"cuda": ("kernels", "steps_per_replay"), "sim": ("spec", "host", "engine")}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
SHARED, DEFAULTS = "prompt spec mode sizes", {"spec": None}
OPTIONS: options.Rows = {
    "--model NAME": (str, SHIPPED, "checkpoint folder, or a hub id (default: our own)"),
    "--backend": (("sim", "cuda"), "sim", "what runs"),
    "--max-new-tokens N": (options.positive, 48, "to write for each prompt"),
    "--kernels": (("9", "5", "0"), None, "cuda: Triton kernels a layer; 0: PyTorch's (default: 5)"),
    "--steps-per-replay K": (options.positive, None, "cuda: steps in one graph (default: 1)"),
    "--speculate WHO:K": (options.speculation, PLAIN, "K tokens drafted and checked in each step: "
                          "ngram:3, or draft:FOLDER:3 by another checkpoint (default: none)"),
    "--temperature T": (options.between(0, 1e6), None, "0.8, say (default: 0; 1 with those below)"),
    "--top-k K": (options.counted, None, "only the K likeliest (default: 0, all)"),
    "--top-p P": (options.share, None, "only the likeliest that hold P (default: 1, all)"),
    "--min-p P": (options.share, None, "only those P times as likely as the likeliest"),
    "--seed N": (options.whole, None, "of the first prompt (default: 0)")}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    given = {name: value for name, value in vars(args).items() if value is not None}
    other = "cuda" if args.backend == "sim" else "sim"
    for name in {*ONLY_FOR[other]} & {*given}:
        option = f"--{name.replace('_', '-')} {given[name]}"
        raise ValueError(f"{option} needs --backend {other}, and this is {args.backend}")
    drawn = {name: given[name] for name in SAMPLING if name in given}
    drawn |= {"temperature": drawn.get("temperature", 1.0)} if drawn else {}
    texts, notes, about = args.prompt or list(options.PROMPTS), list[str](), dict[str, str]()
    write: Any  # of either wing
    if args.backend == "cuda":
        from mini_engine.cuda import generate as cuda

        tokenizer = cuda.open_tokenizer(args.model)
        kernels: Any = int(args.kernels or 5)
        write = partial(cuda.generate, args.model, kernels=kernels,
                        steps_per_replay=args.steps_per_replay or 1)  # fmt: skip
    else:
        checkpoint = sim.open_checkpoint(args.model)
        spec = load_spec(args.spec or options.CARD, args.host, args.engine)
        tokenizer, write = checkpoint.tokenizer, partial(sim.generate, checkpoint, spec)
        about = {"spec": spec.name, "host": spec.host, "engine": spec.engine,
                 "model": checkpoint.config.name}  # fmt: skip
    streamed, stream, before = len(texts) == 1 and not args.json, tokenizer.stream(), [texts[0]]

    def on_token(_index: int, token: int) -> None:
        """Prints the prompt with the first token, and then each token as it comes."""
        print((before.pop() if before else "") + stream.push(token), end="", flush=True)

    done = write(
        texts, args.mode, max_new_tokens=args.max_new_tokens, capture_sizes=args.capture_sizes,
        sampling=SamplingParams(**drawn), speculation=args.speculate,
        on_token=on_token if streamed else None, tell=notes.append if args.json else console.print,
    )  # fmt: skip
    if streamed:
        print(stream.finish(), flush=True)
    ran = {name: value for name, value in vars(done).items() if name != "completions"}
    prompts = [
        {"prompt": prompt, "text": text, "tokens": one.tokens, "finish_reason": one.finish_reason}
        for prompt, text, one in zip(texts, done.texts, done.completions, strict=True)
    ]
    return {**ran, **about, "streamed": streamed, "prompts": prompts, "notes": notes}


def show(r: Args, console: Screen) -> None:
    if not r.streamed:
        for row in r.prompts:
            console.print(Text.assemble((row["prompt"], "bold"), row["text"]), "")
    if r.backend == "sim":
        what = (f", {r.counters.launches:,} launches for {r.counters.kernels:,} kernels, "
                f"{r.simulated_us / 1e3:.1f} ms, simulated, on {options.on(r)}")  # fmt: skip
    else:
        layers = f"{r.kernels_per_layer} kernels a layer" + ", PDL" * r.pdl
        what = (f" on {r.device}, {layers if r.kernels_per_layer else 'plain layers'}, "
                f"{r.report.graphs} graphs captured, {r.steps_per_replay} steps a replay"
                )  # fmt: skip
    if r.drafts.asked:
        what += f", {r.drafts.hit:,} of {r.drafts.asked:,} drafts right"
    tokens = sum(len(row["tokens"]) for row in r.prompts)
    console.print(f"{r.model}, {r.mode}: {tokens} tokens{what}", style="dim")
