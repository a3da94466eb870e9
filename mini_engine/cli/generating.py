"""What `generate` does with each of its two backends, and what one sees while it does.

In:  the parsed options, prompts, and how tokens are drawn. Out: the fields of the result that hang
on the backend. Text of one prompt goes to standard output as it comes; notes and progress go to
the console, which is standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console

from mini_engine.cli import options
from mini_engine.engine.engine import Completion
from mini_engine.engine.sampling import SamplingParams
from mini_engine.model.tokenizer import Tokenizer
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.step.hardware import load_spec


class Printer:
    """Prints a prompt with its first token, and then each token as it comes."""

    def __init__(self, prompt: str, tokenizer: Tokenizer) -> None:
        self._before, self._stream = prompt, tokenizer.stream()

    def on_token(self, _index: int, token: int) -> None:
        print(self._before + self._stream.push(token), end="", flush=True)
        self._before = ""

    def finish(self) -> None:
        print(self._stream.finish(), flush=True)


class Notes:
    """Prints each note, and keeps it for the result."""

    def __init__(self, console: Console) -> None:
        self._console, self.lines = console, list[str]()

    def tell(self, note: str) -> None:
        self.lines.append(note)
        self._console.print(note, soft_wrap=True, markup=False)


class Watch:
    """Shows how far a large model is: on a terminal in one line that changes, elsewhere in a line
    for each thing that begins.

    `until_tokens`: the tokens themselves are printed as they come, so nothing is shown of them.
    """

    def __init__(self, console: Console, *, until_tokens: bool) -> None:
        self._console, self._until_tokens, self._last = console, until_tokens, ""
        self._status = console.status("") if console.is_terminal else None
        self._shown = False

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def see(self, what: str, done: int, total: int) -> None:
        """`done` of `total` are done of this."""
        if what.endswith("tokens") and done and self._until_tokens:
            self._stop()
        elif self._status:
            self._status.update(f"{what}: {done} of {total}")
            if not self._shown:
                self._status.start()
                self._shown = True
        elif what != self._last:
            self._console.print(f"{what}: {total}", soft_wrap=True, markup=False)
        self._last = what

    def _stop(self) -> None:
        if self._status and self._shown:
            self._status.stop()
            self._shown = False


def on_sim(
    args: argparse.Namespace,
    texts: Sequence[str],
    sampling: SamplingParams,
    stream: bool,
    console: Console,
) -> dict[str, Any]:
    """With `--backend sim`."""
    for word, given in (
        ("--plain", args.kernels == 0),
        ("--kernels", args.kernels),
        ("--steps-per-replay", args.steps_per_replay > 1),
    ):
        if given:
            raise ValueError(f"{word} is for the real engine: add --backend cuda")
    checkpoint = open_checkpoint(args.model)
    printer, notes = Printer(texts[0], checkpoint.tokenizer), Notes(console)
    spec = load_spec(args.spec, args.host, args.engine)
    with Watch(console, until_tokens=stream) as watch:
        done = generate(
            checkpoint,
            spec,
            texts,
            args.mode,
            max_new_tokens=args.max_new_tokens,
            capture_sizes=args.capture_sizes,
            kv_dtype=args.kv_dtype,
            sampling=sampling,
            on_token=printer.on_token if stream else None,
            tell=notes.tell,
            progress=watch.see,
        )
    if stream:
        printer.finish()
    return {
        "model": checkpoint.config.name,
        "mode": done.mode,
        **options.told(spec),
        "prompts": _rows(texts, done.texts, done.completions),
        "launches": done.counters.launches,
        "notes": notes.lines,
        "kernels": done.counters.kernels,
        "simulated_ms": done.simulated_us / 1000,
    }


def in_torch(
    args: argparse.Namespace,
    texts: Sequence[str],
    sampling: SamplingParams,
    stream: bool,
    console: Console,
) -> dict[str, Any]:
    """With `--backend cuda`."""
    try:
        from mini_engine.cuda.generate import generate as torch_generate
        from mini_engine.cuda.generate import open_tokenizer
    except ImportError as error:
        raise ValueError(
            f"--backend cuda needs PyTorch ({error}): pip install 'torch>=2.11,<2.14'"
        ) from None
    printer, notes = Printer(texts[0], open_tokenizer(args.model)), Notes(console)
    done = torch_generate(
        args.model,
        texts,
        args.mode,
        max_new_tokens=args.max_new_tokens,
        capture_sizes=args.capture_sizes,
        quant=args.quant,
        kernels=5 if args.kernels is None else args.kernels,
        steps_per_replay=args.steps_per_replay,
        kv_dtype=args.kv_dtype,
        sampling=sampling,
        on_token=printer.on_token if stream else None,
        tell=notes.tell,
    )
    if stream:
        printer.finish()
    return {
        "model": done.model,
        "mode": done.mode,
        "device": done.device,
        "kernels_per_layer": done.kernels_per_layer,
        "pdl": done.pdl,
        "steps_per_replay": done.steps_per_replay,
        "prompts": _rows(texts, done.texts, done.completions),
        "notes": notes.lines,
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
