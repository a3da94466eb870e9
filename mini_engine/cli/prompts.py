"""Where prompts come from: the command line, a file, standard input, or the built-in ones.

In: `--prompt` and `--prompts`. Out: a list of prompts, none of them empty.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

BUILT_IN = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--prompt` and `--prompts`."""
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; give it again for more"
    )
    parser.add_argument(
        "--prompts", metavar="FILE", help="a file with a prompt on each line; - is standard input"
    )


def read(args: argparse.Namespace) -> list[str]:
    """The prompts given, or the built-in ones when there are none.

    Raises `ValueError` for an empty prompt and for a file without prompts.
    """
    prompts: list[str] = list(args.prompt or [])
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise ValueError(f"--prompt number {number} is empty: give it some text")
    if args.prompts:
        piped = args.prompts == "-"
        name = "standard input" if piped else args.prompts
        try:
            text = sys.stdin.read() if piped else Path(args.prompts).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8 text ({error})") from None
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            raise ValueError(f"{name}: no prompt in it; expected one on each line")
        prompts += lines
    return prompts or list(BUILT_IN)
