"""Write text with a checkpoint.

  python -m mini_engine generate --prompt "Return the" --mode FULL
  python -m mini_engine generate --backend cuda --model Qwen/Qwen3-0.6B --prompt "Once"

Any Hugging Face folder of a Qwen2.5, Qwen3 or Llama model works with --model; without it, the small
checkpoint that ships with the course writes (it has read the docstrings of Python's standard
library). One prompt streams; several run side by side.

--backend sim   numpy on the simulated GPU, in float32 and a row at a time, so that every mode gives
                the same bits: slow for a model of 0.5 billion parameters
--backend cuda  PyTorch (install it first): on a GPU in bf16 with captured graphs, on a CPU in
                float32 without graphs; takes hub ids too; says so where it has to do with less;
                reads AWQ and GPTQ checkpoints of 4 bits, and quantises others with --quant
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from mini_engine.cli import options, prompts
from mini_engine.engine.engine import Completion
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.predict.hardware import load_spec
from mini_engine.sim.generate import generate, open_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    prompts.add_arguments(parser)
    parser.add_argument("--model", default=str(SHIPPED), help="checkpoint folder, or a hub id")
    parser.add_argument("--backend", default="sim", choices=("sim", "cuda"))
    options.add_mode(parser, help="how steps are launched (default: FULL_AND_PIECEWISE)")
    parser.add_argument("--max-new-tokens", type=options.positive, default=48, metavar="N")
    parser.add_argument(
        "--capture-sizes", type=options.whole_numbers, metavar="1,2,4", help="the ladder"
    )
    options.add_spec(parser)
    _add_quant(parser)


def _add_quant(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fewer bytes (--backend cuda)")
    group.add_argument(
        "--quant", choices=("int8", "int4"), help="quantise the layers' weights as they are read"
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
    result = _torch(args, texts, stream, console) if in_torch else _sim(args, texts, stream)
    return {"backend": args.backend, "streamed": stream, **result}


def show(result: dict[str, Any], console: Console) -> None:
    if not result["streamed"]:
        for row in result["prompts"]:
            console.print(Text.assemble((row["prompt"], "bold"), row["text"]), "")
    tokens = sum(len(row["tokens"]) for row in result["prompts"])
    what = f"{result['model']}, {result['mode']}: {tokens} tokens"
    if result["backend"] == "sim":
        what += (
            f", {result['launches']:,} launches for {result['kernels']:,} kernels, "
            f"{result['simulated_ms']:.1f} ms, simulated, on {options.on(result)}"
        )
    else:
        what += f" on {result['device']}, {result['graphs']} graphs captured"
    console.print(f"[dim]{what}[/dim]", soft_wrap=True)


class _Printer:
    """Prints a prompt with its first token, and then each token as it comes."""

    def __init__(self, prompt: str, tokenizer: Tokenizer) -> None:
        self._before, self._stream = prompt, tokenizer.stream()

    def on_token(self, _index: int, token: int) -> None:
        print(self._before + self._stream.push(token), end="", flush=True)
        self._before = ""

    def finish(self) -> None:
        print(self._stream.finish(), flush=True)


def _sim(args: argparse.Namespace, texts: Sequence[str], stream: bool) -> dict[str, Any]:
    checkpoint = open_checkpoint(args.model)
    printer = _Printer(texts[0], checkpoint.tokenizer)
    spec = load_spec(args.spec, args.host, args.engine)
    done = generate(
        checkpoint,
        spec,
        texts,
        args.mode,
        max_new_tokens=args.max_new_tokens,
        capture_sizes=args.capture_sizes,
        on_token=printer.on_token if stream else None,
    )
    if stream:
        printer.finish()
    return {
        "model": checkpoint.config.name,
        "mode": args.mode,
        **options.told(spec),
        "prompts": _rows(texts, done.texts, done.completions),
        "launches": done.counters.launches,
        "kernels": done.counters.kernels,
        "simulated_ms": done.simulated_us / 1000,
    }


def _torch(
    args: argparse.Namespace, texts: Sequence[str], stream: bool, console: Console
) -> dict[str, Any]:
    try:
        from mini_engine.cuda.generate import generate as torch_generate
        from mini_engine.cuda.generate import open_tokenizer
    except ImportError as error:
        raise ValueError(
            f"--backend cuda needs PyTorch ({error}): pip install 'torch>=2.11,<2.14'"
        ) from None
    printer, notes = _Printer(texts[0], open_tokenizer(args.model)), list[str]()

    def tell(note: str) -> None:
        notes.append(note)
        console.print(note, soft_wrap=True, markup=False)

    done = torch_generate(
        args.model,
        texts,
        args.mode,
        max_new_tokens=args.max_new_tokens,
        capture_sizes=args.capture_sizes,
        quant=args.quant,
        on_token=printer.on_token if stream else None,
        tell=tell,
    )
    if stream:
        printer.finish()
    return {
        "model": done.model,
        "mode": done.mode,
        "device": done.device,
        "prompts": _rows(texts, done.texts, done.completions),
        "notes": notes,
        "graphs": done.report.graphs,
        "capture_ms": done.report.time_us / 1000,
    }


def _rows(
    prompts: Sequence[str], texts: Sequence[str], completions: Sequence[Completion]
) -> list[dict[str, Any]]:
    return [
        {
            "prompt": prompt,
            "text": text,
            "tokens": list(completion.tokens),
            "finish_reason": completion.finish_reason,
        }
        for prompt, text, completion in zip(prompts, texts, completions, strict=True)
    ]
