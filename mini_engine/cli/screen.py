"""Where commands print: rich's console, whose reader may stop reading."""

from __future__ import annotations

from rich.console import Console


class Screen(Console):
    """A console that lets a BrokenPipeError pass: whoever reads has seen enough."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError: rich calls this where it has caught it
