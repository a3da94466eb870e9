"""Where prompts come from: the command line, a file, standard input, or the built-in ones.

In: `--prompt` and `--prompts`. Out: a list of prompts, none of them empty.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mini_engine.cli.words import Once

BUILT_IN = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
MAX_BYTES, MAX_PROMPTS = 4 * 2**20, 10_000  # of a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--prompt` and `--prompts`."""
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; give it again for more"
    )
    parser.add_argument(
        "--prompts",
        action=Once,
        metavar="FILE",
        help="a file with a prompt on each line; - is standard input",
    )


def read(args: argparse.Namespace) -> list[str]:
    """The prompts given, or the built-in ones when there are none.

    Raises `ValueError` for an empty prompt, for a file without prompts, for one larger than
    `MAX_BYTES` or with more than `MAX_PROMPTS`, and for bytes that are not UTF-8.
    """
    prompts = [_typed(word) for word in args.prompt or []]
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise ValueError(f"--prompt number {number} is empty: give it some text")
    if args.prompts:
        name = "standard input" if args.prompts == "-" else args.prompts
        lines = [line for line in _text_of(args.prompts, name).splitlines() if line.strip()]
        if not lines:
            raise ValueError(f"{name}: no prompt in it; expected one on each line")
        if len(lines) > MAX_PROMPTS:
            raise ValueError(f"{name}: {len(lines):,} prompts, expected {MAX_PROMPTS:,} at most")
        prompts += lines
    return prompts or list(BUILT_IN)


def _typed(word: str) -> str:
    """A word of the command line as UTF-8, whatever the locale: in one of ASCII, Python gives the
    bytes that it does not know as surrogates (PEP 383)."""
    if not any("\ud800" <= letter <= "\udfff" for letter in word):
        return word
    try:
        return os.fsencode(word).decode("utf-8")
    except UnicodeError:
        raise ValueError(f"--prompt {word!a}: not UTF-8 text") from None


def _text_of(file: str, name: str) -> str:
    """What stands in a file or, for -, on standard input. `name` is for errors."""
    if file == "-":
        if sys.stdin is None:
            raise ValueError("standard input is closed: give it prompts, or --prompts a file")
        content = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{name}: larger than {MAX_BYTES:,} bytes, the most that prompts may have")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text ({error})") from None
