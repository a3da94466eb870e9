"""Text of any length for people: broken at words on a terminal, left as it is in a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding


def say(console: Console, text: str, hang: int = 0) -> None:
    """Print a text with markup. On a terminal its lines are broken at words, and stand as far in as
    the first one does, the later ones of a paragraph by `hang` columns more."""
    if not console.is_terminal:
        console.print(text)
        return
    if text.startswith("\n"):
        console.print()
    text = text.lstrip("\n")
    words = text.lstrip(" ")
    indent = len(text) - len(words)
    lines = console.render_str(words, markup=True).wrap(console, console.width - indent - hang)
    for place, line in enumerate(lines):
        line.rstrip()
        console.print(Padding(line, (0, 0, 0, indent + hang * bool(place)), expand=False))
