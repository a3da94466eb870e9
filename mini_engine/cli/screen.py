"""Where commands print: a console that is safe from names and from a reader who stops reading."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.errors import MarkupError
from rich.text import Text

# What looks like markup, and is none of ours: a card may be named "[x]", a file "[/t].jsonl".
_NOT_OURS = re.compile(r"(?<!\\)\[(?!(?:/|/?(?:bold|dim|green|red|yellow))\])(?=[a-z#/@][^[]*?\])")
_ESCAPES = {0x1B: "\\x1b", 0x9B: "\\x9b"}  # they would tell the terminal what to do


class Screen(Console):
    """A console that lets a BrokenPipeError pass, whose reader has seen enough, and that takes
    nothing for markup, for an emoji or for an order to the terminal but what the project wrote."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError: rich calls this where it has caught it

    def render_str(self, text: str, **how: Any) -> Text:
        """As rich does, but other tags than ours are text."""
        text, how["emoji"] = text.translate(_ESCAPES), False
        if how.get("markup") is False:
            return super().render_str(text, **how)
        try:
            return super().render_str(_NOT_OURS.sub(r"\\[", text), **how)
        except MarkupError:  # a name that ends one of ours
            return super().render_str(text, **{**how, "markup": False})
