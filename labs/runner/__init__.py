"""The runner of the labs: what `./lab COMMAND` does.

The room `cut` knows what a lab is; `checks` runs its tests in a process of their own; `mistakes`
knows the misconceptions and makes small mistakes. The files beside them are the commands, the
learner's files (`workspace`) and what is printed.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Done(NamedTuple):
    """What a command leaves: its result as JSON would show it, and the exit code."""

    result: Any = None
    code: int = 0


def command(*words: str | int) -> str:
    """`./lab WORDS`: a command as one types it in the checkout."""
    return " ".join(["./lab", *map(str, words)])
