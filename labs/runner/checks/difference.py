"""The comparison that failed a test: what was got and what was expected, a line each.

In:  the exception and its frames, or what pytest's `assert` compared. Out: `Compared`, and the two
lines. Of arrays and long lists only the places are told in which they differ.
"""

from __future__ import annotations

import os
import types
from dataclasses import dataclass
from typing import Any

from labs.runner.checks.values import is_array, numbers, short

COMPARES = {  # functions that compare arrays: names of what was got and of what was expected
    "assert_allclose": ("actual", "desired"),
    "assert_array_equal": ("actual", "desired"),
    "assert_array_compare": ("x", "y"),
    "assert_equal": ("actual", "desired"),
    "assert_close": ("actual", "expected"),
}


@dataclass(frozen=True)
class Compared:
    """The comparison that failed last, as pytest handed it over."""

    op: str
    left: object
    right: object
    rtol: float = 1e-6
    atol: float = 1e-9

    def near(self, one: float, other: float) -> bool:
        """Are these two numbers equal, as far as the comparison asked?"""
        both_nan = one != one and other != other
        return both_nan or one == other or abs(one - other) <= self.atol + self.rtol * abs(other)

    def __str__(self) -> str:
        return f"{short(self.left)} {self.op} {short(self.right)}"


def sides_of(
    error: BaseException, frames: list[tuple[types.FrameType, int]], compared: Compared | None
) -> Compared | None:
    """What was got and what was expected, and how they were compared."""
    if not isinstance(error, AssertionError):
        return None
    for frame, _ in reversed(frames):
        held, place = frame.f_locals, frame.f_code.co_filename
        if frame.f_code.co_name in COMPARES and f"{os.sep}testing{os.sep}" in place:
            got, expected = COMPARES[frame.f_code.co_name]
            if got in held and expected in held:
                rtol, atol = held.get("rtol") or 1e-6, held.get("atol") or 1e-9
                return Compared("==", held[got], held[expected], rtol, atol)
    if compared is not None and " ".join(str(compared).split()) in " ".join(str(error).split()):
        return compared
    return None


def difference(sides: Compared) -> dict[str, str]:
    """`got` and `expected` in a line each; of long values, where they differ first."""
    if sides.op != "==":
        return {"got": f"{sides} does not hold", "expected": ""}
    told = _of_arrays(sides) or _of_parts(sides.left, sides.right)
    return told or {"got": short(sides.left), "expected": short(sides.right)}


# ---------------------------------------------------------------- parts


def _of_arrays(sides: Compared) -> dict[str, str] | None:
    got, expected = sides.left, getattr(sides.right, "expected", sides.right)
    if not (is_array(got) or is_array(expected)):
        return None
    plainly = {"got": short(got), "expected": short(expected)}
    mine, right = numbers(got), numbers(expected)
    if not mine or not right:
        return plainly
    right = right * len(mine) if len(right) == 1 else right
    if len(mine) != len(right) or len(mine) == 1:
        return plainly
    apart = [i for i, (a, b) in enumerate(zip(mine, right, strict=True)) if not sides.near(a, b)]
    if not apart or (is_array(got) and is_array(expected) and _shape(got) != _shape(expected)):
        return plainly
    place = _index(apart[0], _shape(got) if is_array(got) else _shape(expected))
    few, more = apart[:4], " …" if len(apart) > 4 else ""
    told = f" ({len(apart)} of {len(mine)} differ, the first at {place})"
    return {
        "got": " ".join(short(mine[i], 0) for i in few) + more + told,
        "expected": " ".join(short(right[i], 0) for i in few) + more,
    }


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape)


def _of_parts(got: object, expected: object) -> dict[str, str] | None:
    """Lists, dictionaries, sets and texts of many lines."""
    if isinstance(got, dict) and isinstance(expected, dict):
        keys = [k for k in [*expected, *got]
                if k not in got or k not in expected or got[k] != expected[k]]  # fmt: skip
        keys = list(dict.fromkeys(keys))[:4]
        return {"got": _entries(got, keys), "expected": _entries(expected, keys)}
    if isinstance(got, set | frozenset) and isinstance(expected, set | frozenset):
        more, less = got - expected, expected - got
        return {
            "got": short(got) + (f", too many: {short(more)}" if more else ""),
            "expected": short(expected) + (f", missing: {short(less)}" if less else ""),
        }
    if isinstance(got, str) and isinstance(expected, str) and "\n" in got + expected:
        got, expected = got.splitlines(), expected.splitlines()
    pairs = isinstance(got, list | tuple) and isinstance(expected, list | tuple)
    if pairs and max(len(got), len(expected)) > 4:  # type: ignore[arg-type]
        return _of_lists(list(got), list(expected))  # type: ignore[call-overload]
    return None


def _of_lists(got: list[Any], expected: list[Any]) -> dict[str, str] | None:
    longest = max(len(got), len(expected))
    if not got or not expected:
        return None
    for i in range(longest):
        if i >= len(got) or i >= len(expected) or bool(got[i] != expected[i]):
            return {"got": _part(got, i), "expected": _part(expected, i)}
    return None


def _part(values: list[Any], place: int) -> str:
    if place >= len(values):
        return f"ends after {len(values)}"
    return f"{short(values[place])} (at [{place}] of {len(values)})"


def _entries(values: dict[Any, Any], keys: list[Any]) -> str:
    shown = [f"{short(k)}: {short(values[k]) if k in values else 'missing'}" for k in keys]
    return ", ".join(shown)


def _index(flat: int, shape: tuple[int, ...]) -> str:
    place = []
    for size in reversed(shape):
        place.append(flat % size)
        flat //= size
    return f"[{', '.join(str(i) for i in reversed(place))}]"
