"""Typed fields of a JSON object.

In:  the dictionary parsed from a JSON file.
Out: typed values, or ValueError("hidden_size is 'big', expected an integer"). The caller, who knows
     the file, puts its name in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class Fields:
    """A JSON object. A null field counts as absent, as in Hugging Face's files.

    `absent` is the value of an absent field; without it, absence is an error.
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
        return self._read(name, absent, "an integer", int)

    def number(self, name: str, absent: float | None = None) -> float:
        return float(self._read(name, absent, "a number", int, float))

    def boolean(self, name: str, absent: bool | None = None) -> bool:
        return self._read(name, absent, "true or false", bool)

    def text(self, name: str, absent: str | None = None) -> str:
        return self._read(name, absent, "a string", str)

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

    def _read(self, name: str, absent: T | None, expected: str, *types: type[T]) -> T:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        # JSON true is a Python int, but no number.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{name} is {value!r}, expected {expected}")
        return value
