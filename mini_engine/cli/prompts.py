"""Where prompts come from: the command line, a file, standard input, or the built-in ones.

In: `--prompt` and `--prompts`. Out: a list of prompts, none of them empty.
"""

from __future__ import annotations

import argparse
import sys

BUILT_IN = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
MAX_BYTES = 4 * 2**20  # of a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--prompt` and `--prompts`."""
    add, words = parser.add_argument, "a prompt; give it again for more"
    add("--prompt", action="append", metavar="TEXT", help=words)
    words = "a file with a prompt on each line; - is standard input"
    add("--prompts", metavar="FILE", help=words)


def read(args: argparse.Namespace) -> list[str]:
    """The prompts given, or the built-in ones where none are.

    Raises ValueError for a file without prompts, one larger than `MAX_BYTES`, or one that is not
    UTF-8, and OSError where it cannot be read.
    """
    prompts = list(args.prompt or [])
    if args.prompts:
        name = "standard input" if args.prompts == "-" else args.prompts
        if args.prompts == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(args.prompts, "rb") as file:
                content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"{name}: larger than {MAX_BYTES:,} bytes, the most that is read")
        try:
            lines = [line for line in content.decode("utf-8").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8 text ({error})") from None
        if not lines:
            raise ValueError(f"{name}: no prompt in it; expected one on each line")
        prompts += lines
    return prompts or list(BUILT_IN)
