"""What a person types (`Parser`) and sees: `Screen`, `table` for every table, `lanes` of a step."""

import argparse
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from mini_engine.cli.ending import visible
from mini_engine.files import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse's; errors are ValueErrors, which name the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for before, word in zip(["a word", *args], args, strict=False):
            if not word.strip() or re.fullmatch(r"--[\w-]+=\s*", word):
                self.error(f"{before} {word!r} is empty")
        found, left = super().parse_known_args(args, namespace)
        if left:
            near = did_you_mean(left[0].partition("=")[0], self._option_string_actions)
            self.error(f"unknown: {' '.join(left)}{near or '; --help lists the options'}")
        return found, left


Args = argparse.Namespace  # of a command: what was asked
Found = dict[str, Any]  # what `run` found
Columns = Mapping[str, str | Callable[[Any], object]]
THEME = Theme({"cpu": "yellow", "gpu": "blue"})  # as in the figures


class Screen(Console):
    """rich's console, which breaks lines on a terminal and nowhere in a file, and takes nothing in
    a text for markup, for an emoji or for an order to the terminal."""

    def __init__(self, **how: Any) -> None:
        plain: Found = {"highlight": False, "markup": False, "emoji": False, "theme": THEME}
        super().__init__(**plain | how)
        self.soft_wrap = not self.is_terminal

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError: rich calls this where it has caught it

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)


class Format(string.Formatter):
    """`str.format`; "ms" and "s" for a time in µs in two digits, "two" for any; None is "–"."""

    def format_field(self, value: Any, spec: str) -> str:
        if value is None:
            return "–"
        units = {"ms": 1e3, "s": 1e6, "two": 1.0}
        return two_digits(value / units[spec]) if spec in units else f"{value:{spec}}"


form = Format().format


def two_digits(value: float) -> str:
    """As many digits as a prediction is good for: 0.98, 1.5, 17, 230."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:#.2g}"


def table(heads: Sequence[str] | Columns, rows: Iterable[Any], **how: Any) -> Table:
    """A table of rows of words; or of any objects, where each head has a `Format` or a function. A
    head that begins with "<" stands left, the others right and unbroken. `how`: `bold`, the rows
    that stand out, from 0; and what `rich.table.Table` takes."""
    marked = set(how.pop("bold", ()))
    found = Table(title_justify="left", **{"box": SIMPLE_HEAD, **how})
    for head in heads:
        justify: Any = "left" if head.startswith("<") else "right"
        found.add_column(head.removeprefix("<"), justify=justify, no_wrap=justify == "right")
    for i, row in enumerate(rows):
        if isinstance(heads, Mapping):
            row = [form(f, row) if isinstance(f, str) else f(row) for f in heads.values()]
        found.add_row(*map(str, row), style="bold" if i in marked else None)
    return found


def lanes(name: str, itl_us: float, cpu_us: float, busy: float, longest_us: float) -> Text:
    """A step on two lanes of characters: the CPU at work, and the GPU, `busy` for that share."""
    wide = max(1, round(50 * itl_us / longest_us))
    gpu = "".join("·█"[int((i + 1) * busy) > int(i * busy)] for i in range(wide))
    cpu = "█" * max(1, round(wide * min(cpu_us / itl_us, 1)))
    return Text.assemble(
        f"   {name:<10} CPU ", (cpu, "cpu"), f" {two_digits(itl_us / 1e3)} ms\n",
        " " * 14 + "GPU ", (gpu, "gpu"), f" busy {busy:.0%}\n")  # fmt: skip
