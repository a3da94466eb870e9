"""JSON that somebody else wrote: parsed, or refused in one line that names the file.

In:  a path, or text with a name for it. Out: what the JSON says, or a `ValueError`.

Any room may read a file of its own by this, so it knows of none.
"""

from __future__ import annotations

import json
from pathlib import Path

MAX_BYTES = 64 * 2**20  # the index of a model with 10^5 tensors has some 10 MB


def read_json(path: Path, max_bytes: int = MAX_BYTES, *, repeats: bool = False) -> object:
    """Parse a UTF-8 file.

    Raises ValueError, naming the file, if it is not JSON, not UTF-8, nested too deeply, or larger
    than `max_bytes` (no more is read, so a device that never ends is refused too), and OSError if
    it cannot be opened. A field that stands twice in an object is refused by its name, for only
    one of them would count; `repeats` lets the last one count.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(
            f"{path}: larger than {max_bytes:,} bytes, the most that is read of such a file"
        )
    return parse_json(content, str(path), repeats=repeats)


def read_json_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, object]:
    """The same for a file that holds one object, {...}."""
    parsed = read_json(path, max_bytes)
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: expected a JSON object {{...}}, found {type(parsed).__name__}")
    return parsed


def parse_json(content: str | bytes, where: str, *, repeats: bool = False) -> object:
    """Parse text, or UTF-8 bytes. `where` begins the message of each ValueError."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return json.loads(text, object_pairs_hook=None if repeats else each_once)
    except RecursionError:
        raise ValueError(f"{where}: not JSON that can be read: nested too deeply") from None
    except Repeated as error:
        raise ValueError(f"{where}: {error}") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise ValueError(f"{where}: not JSON: {error}") from None


class Repeated(ValueError):
    """A field that stands more than once in a JSON object."""


def each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The fields of an object, for `object_pairs_hook=`. Raises Repeated."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise Repeated(f"{name!r:.60} stands twice in an object: leave out one of them")
    return found
