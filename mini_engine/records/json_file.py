"""JSON that somebody else wrote: parsed, or refused in one line that names the file.

In:  a path, or text with a name for it. Out: what the JSON says, or a `ValueError`.

Any room may read a file of its own by this, so it knows of none.
"""

from __future__ import annotations

import json
from pathlib import Path

MAX_BYTES = 64 * 2**20  # the index of a model with 10^5 tensors has some 10 MB


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> object:
    """Parse a UTF-8 file.

    Raises ValueError, naming the file, if it is not JSON, not UTF-8, nested too deeply, or larger
    than `max_bytes` (no more is read, so a device that never ends is refused too), and OSError if
    it cannot be opened.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(
            f"{path}: larger than {max_bytes:,} bytes, the most that is read of such a file"
        )
    return parse_json(content, str(path))


def read_json_object(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, object]:
    """The same for a file that holds one object, {...}."""
    parsed = read_json(path, max_bytes)
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: expected a JSON object {{...}}, found {type(parsed).__name__}")
    return parsed


def parse_json(content: str | bytes, where: str) -> object:
    """Parse text, or UTF-8 bytes. `where` begins the message of each ValueError."""
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"{where}: not JSON that can be read: nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise ValueError(f"{where}: not JSON: {error}") from None
