"""Words that were meant otherwise: what they are near to, and a parser that says so.

    did_you_mean("--bach", ["--batch", "--json"])     # "; did you mean --batch?"

In:  a word, and those that are known. Out: the end of an error's line, "" where nothing is near.
`Parser` is argparse's, except that bad words raise `BadWords`, a ValueError that knows the usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, NoReturn


class BadWords(ValueError):
    """Words that the parser cannot take; `usage` says which it can."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """argparse's parser, with suggestions, whose errors are raised and not printed."""

    def error(self, message: str) -> NoReturn:
        raise BadWords(message, self.format_usage())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; raises BadWords for an option that this parser does not know."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            known = [word for action in self._actions for word in action.option_strings]
            near = did_you_mean(left[0].partition("=")[0], known)
            self.error(f"unknown: {' '.join(left)}{near or '; --help lists the options'}")
        return found, left

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r} (choose from {', '.join(known)})"
                f"{did_you_mean(str(value), known)}",
            )  # fmt: skip


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest, whatever its case, as the end of an error's line."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
