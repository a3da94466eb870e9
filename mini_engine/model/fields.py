"""Typed fields of a JSON object.

In:  the dictionary parsed from a JSON file.
Out: typed values, or ValueError("hidden_size is 'big', expected an integer"). The caller, who knows
     the file, puts its name in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar

from mini_engine.files import in_short

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

    def spelling(self, one: str, other: str) -> str:
        """Which of two names of one thing is given, `other` if none is.

        ValueError where both are and say two things.
        """
        if self.given(one) and self.given(other) and self._values[one] != self._values[other]:
            refuse_two(one, self._values[one], other, self._values[other])
        return one if self.given(one) else other

    def value(self, name: str) -> object:
        if not self.given(name):
            raise ValueError(f"{name} is missing")
        return self._values[name]

    def integer(self, name: str, absent: int | None = None, most: int | None = None) -> int:
        """`most`: the largest value that is accepted."""
        value = self._read(name, absent, "an integer", int)
        if most is not None and value > most:
            raise ValueError(f"{name} is {in_short(value)}, expected at most {most:,}")
        return value

    def number(self, name: str, absent: float | None = None) -> float:
        value = self._read(name, absent, "a number", int, float)
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} is {in_short(value)}, too large for a float") from None

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
            raise ValueError(f"{name} is {in_short(value)}, expected an object {{...}}")
        return Fields(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """One integer or a list of them; () when the field is absent."""
        value = self._values.get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        for one in listed:
            if isinstance(one, bool) or not isinstance(one, int):
                raise ValueError(
                    f"{name} is {in_short(value)}, expected an integer or a list of them"
                )
        return tuple(listed)

    def _read(self, name: str, absent: T | None, expected: str, *types: type[T]) -> T:
        if absent is not None and not self.given(name):
            return absent
        value = self.value(name)
        # JSON true is a Python int, but no number.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{name} is {in_short(value)}, expected {expected}")
        return value


def refuse_two(one: str, value: object, other: str, another: object) -> NoReturn:
    """Raises ValueError for two fields that mean one thing and differ."""
    raise ValueError(
        f"{one} is {in_short(value)} and {other} is {in_short(another)}: both mean the same, so "
        "leave one out"
    )


def cut(text: str, most: int) -> str:
    """At most so many characters of a text, with dots where some are missing."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
