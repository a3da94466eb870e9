"""Names that were meant otherwise.

    did_you_mean("h20", ["h100", "h200"])     # "; did you mean h200?"

In:  a word, and those that are known. Out: the end of an error's line, "" where nothing is near.
"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest, whatever its case, as the end of an error's line."""
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
