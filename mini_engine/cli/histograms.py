"""A histogram of batch sizes, from the words of a command line.

In:  "33:100,5:20", or the path of a JSON file: {"33": 100, "5": 20}, or such an object under
     "steps_by_rows".
Out: rows in a batch -> steps that had them; `ValueError` that names the bad entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mini_engine.model.fields import read_json_object

KEY = "steps_by_rows"


def read_histogram(word: str) -> dict[int, int]:
    """Rows -> steps. Raises ValueError, naming the entry; OSError when a file cannot be read."""
    if ":" in word and not word.endswith(".json"):
        return _counts((part.partition(":")[::2] for part in word.split(",") if part.strip()), word)
    data = read_json_object(Path(word))
    held = data.get(KEY, data)
    if not isinstance(held, dict):
        raise ValueError(f"{word}: {KEY} is {held!r:.40}, expected an object of rows and steps")
    return _counts(held.items(), word)


def _counts(pairs: Iterable[tuple[object, object]], where: str) -> dict[int, int]:
    histogram: dict[int, int] = {}
    for rows, steps in pairs:
        try:
            at, count = int(str(rows)), int(str(steps))
        except ValueError:
            at = count = 0
        if at < 1 or count < 1:
            raise ValueError(f"{where}: entry {rows}:{steps}, expected rows:steps, both 1 or more")
        histogram[at] = histogram.get(at, 0) + count
    if not histogram:
        raise ValueError(f"{where}: no entries; give rows:steps, such as 33:100,5:20")
    return histogram
