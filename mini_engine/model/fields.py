"""Fields of a JSON object, read with errors that name the field, what it holds and what it should.

In:  a JSON file, or the dictionary parsed from one.
Out: typed values; ValueError("hidden_size is 'big', expected an integer") where one cannot be had.

The caller of `Fields` knows the file and puts its name in front.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def read_json_object(path: Path) -> dict[str, object]:
    """Parse a UTF-8 file that holds one JSON object. ValueError names the file."""
    try:
        parsed = json.loads(path.read_text("utf-8"))
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: expected a JSON object {{...}}, found {type(parsed).__name__}")
    return parsed


class Fields:
    """A JSON object. A field that is null counts as absent, as in Hugging Face's files.

    Each reader takes the value to use when the field is absent; without one, absence is an error.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def given(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        return list(self._values)

    def value(self, name: str) -> object:
        if not self.given(name):
            raise ValueError(f"{name} is missing")
        return self._values[name]

    def integer(self, name: str, absent: int | None = None) -> int:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        # JSON true is a Python int; no size is true.
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}, expected an integer")
        return value

    def number(self, name: str, absent: float | None = None) -> float:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, expected a number")
        return float(value)

    def boolean(self, name: str, absent: bool | None = None) -> bool:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}, expected true or false")
        return value

    def text(self, name: str, absent: str | None = None) -> str:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} is {value!r}, expected a string")
        return value

    def object(self, name: str) -> Fields:
        """A nested object; an empty one when the field is absent."""
        value = self._values.get(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {value!r}, expected an object {{...}}")
        return Fields(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """One integer or a list of them; () when the field is absent."""
        value = self._values.get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        for one in listed:
            if isinstance(one, bool) or not isinstance(one, int):
                raise ValueError(f"{name} is {value!r}, expected an integer or a list of them")
        return tuple(listed)
