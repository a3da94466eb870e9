"""argparse's parser with errors that suggest: `Parser`.

In:  as argparse. Out: as argparse, but bad words raise ValueError, without the usage, and say which
     option, command or choice they are nearest to.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from mini_engine.files import did_you_mean


class Once(argparse._StoreAction):
    """An option that is given once: where others may be given again for more, one expects it of
    this one too. argparse would let the last of two count, without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        given = parser.given if isinstance(parser, Parser) else set()
        if self.dest in given and before != values and self.is_checked(values):
            both = " and ".join(
                ",".join(map(str, value)) if isinstance(value, list) else str(value)
                for value in (before, values)
            )
            raise argparse.ArgumentError(self, f"given twice, {both}: give one")
        given.add(self.dest)
        super().__call__(parser, namespace, values, option_string)

    def is_checked(self, _values: object) -> bool:
        return True


class _ListOnce(Once):
    """The same for a list with commas; of another option the last counts, as everywhere."""

    def is_checked(self, values: object) -> bool:
        return isinstance(values, list)


class Parser(argparse.ArgumentParser):
    """argparse's parser, with suggestions, whose errors are raised and not printed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given: set[str] = set()  # options, while words are parsed
        for name in (None, "store"):
            self.register("action", name, _ListOnce)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse does, but a full disk is an error there too."""
        if message and file is not None:
            file.write(message)

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; raises ValueError for an option that this parser does not know."""
        self.given.clear()
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
