"""A value in a few words, for the one line in which a failing test shows its inputs.

In:  any object that a test holds. Out: a short text without line breaks and addresses: an array as
its type, shape and first values, a `ModelConfig` by its name, a `DeviceSpec` by those of its card,
host and engine.

Nothing here imports numpy or torch: their arrays are known by what they can do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import types
from collections.abc import Mapping, Sequence, Set
from typing import Any

WIDE = 72  # characters of one value
FEW = 6  # elements of an array or a list
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan)(?!\w)")
COUNT = re.compile(r"[-+]?\d+")


def short(value: object, depth: int = 2) -> str:
    """The value in at most about `WIDE` characters."""
    try:
        text = _short(value, depth)
    except Exception:  # a learner's own __repr__ may do anything
        return f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 2 * WIDE else f"{text[: 2 * WIDE - 2]} …"


def numbers(value: object) -> list[float] | None:
    """All numbers of a number, an array or a nested list, in order; None for anything else."""
    with contextlib.suppress(Exception):
        if hasattr(value, "expected") and type(value).__module__.startswith("_pytest"):
            value = value.expected  # pytest.approx(…)
        if is_array(value):
            return [float(number) for number in _flat(value)]
        if isinstance(value, bool | int | float):
            return [float(value)]
        if isinstance(value, list | tuple):
            parts = [numbers(part) for part in value]
            if all(part is not None for part in parts):
                return [number for part in parts for number in part or []]
    return None


def is_array(value: object) -> bool:
    """Is it an array or a tensor, with numbers that can be read?"""
    names = ("shape", "dtype", "tolist", "reshape")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def plain(value: object) -> bool:
    """Can two runs be compared by it: is it a number, a text, an array, a list of them?"""
    if value is None or isinstance(value, str | bool | int | float | enum.Enum):
        return True
    if is_array(value) or dataclasses.is_dataclass(value):
        return True
    if isinstance(value, Mapping):
        return all(plain(part) for pair in list(value.items())[:FEW] for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(plain(part) for part in list(value)[:FEW])
    return False


def fingerprint(value: object) -> str:
    """Longer than `short`: what tells the values of two runs apart."""
    found = numbers(value)
    if found is not None and len(found) > 1:
        step = max(1, len(found) // 48)
        return f"{len(found)} numbers: " + " ".join(_float(x) for x in found[::step])
    if isinstance(value, Mapping):
        return "; ".join(f"{short(k)}: {short(v)}" for k, v in list(value.items())[:48])
    if isinstance(value, list | tuple):
        return f"{len(value)}: " + "; ".join(short(part) for part in value[:48])
    return short(value)


def alike(one: str, other: str) -> bool:
    """Do two texts say the same, numbers up to rounding, addresses and folders apart?"""
    one, other = _without_places(one), _without_places(other)
    if one == other:
        return True
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(a == b or _close(a, b) for a, b in pairs)


# ---------------------------------------------------------------- parts


def _short(value: object, depth: int) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str | bytes | int):
        text = repr(value)
        return text if len(text) <= WIDE else f"{text[: WIDE - 2]} …"
    if is_array(value):
        return _array(value)
    if type(value).__module__.startswith("_pytest") and hasattr(value, "expected"):
        return short(value.expected, depth)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _record(value, depth)
    if isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinMethodType):
        return value.__name__
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, Mapping):
        pairs = [f"{short(k, 0)}: {short(v, depth - 1)}" for k, v in list(value.items())[:FEW]]
        return _listed("{", pairs, len(value), "}")
    if isinstance(value, list | tuple | range) and not hasattr(value, "_fields"):
        left, right = "()" if isinstance(value, tuple) else "[]"
        right = f",{right}" if isinstance(value, tuple) and len(value) == 1 else right
        return _listed(left, [short(v, depth - 1) for v in value[:FEW]], len(value), right)
    if isinstance(value, tuple) and len(value) <= FEW:
        names: tuple[str, ...] = getattr(value, "_fields", ())
        parts = [f"{name}={short(getattr(value, name), depth - 1)}" for name in names]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Set):
        return _listed("{", sorted(short(v, depth - 1) for v in value)[:FEW], len(value), "}")
    text = repr(value)
    if len(text) > WIDE or ADDRESS.search(text) or text.startswith("<"):
        return f"a {type(value).__name__}"
    return text


def _float(value: float) -> str:
    return repr(float(f"{float(value):.6g}"))


def _array(value: Any) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    shape = ", ".join(str(size) for size in value.shape)
    flat = _flat(value)
    if len(flat) > FEW and len({repr(number) for number in flat}) == 1:
        return f"{kind}[{shape}] all {short(flat[0], 0)}"
    shown = " ".join(short(number, 0) for number in flat[:FEW])
    return f"{kind}[{shape}] {shown}{' …' if len(flat) > FEW else ''}".rstrip()


def _flat(value: Any) -> list[Any]:
    """The elements, one after the other, as Python's own numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    flat = value.reshape(-1).tolist()
    return flat if isinstance(flat, list) else [flat]


def _record(value: Any, depth: int) -> str:
    """A dataclass by its name if it has one, else with its fields if they are few."""
    kind = type(value).__name__
    if isinstance(getattr(value, "name", None), str):
        return f"{value.name}{_of_spec(value)}"
    fields = [field for field in dataclasses.fields(value) if field.repr]
    if depth <= 0 or len(fields) > FEW or not value.__dataclass_params__.repr:
        return f"a {kind}"
    parts = [f"{field.name}={short(getattr(value, field.name), depth - 1)}" for field in fields]
    return f"{kind}({', '.join(parts)})"


def _of_spec(value: Any) -> str:
    """Of a `DeviceSpec`: its host and engine, and the figures that a test has set itself."""
    if not (hasattr(value, "host") and hasattr(value, "engine") and hasattr(value, "source")):
        return ""
    figures = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    given = "".join(
        f", {name}={short(figure)}"
        for name, figure in figures.items()
        if isinstance(figure, int | float) and value.source(name).startswith("set by")
    )
    return f" ({value.host}, {value.engine}{given})"


def _listed(left: str, shown: Sequence[str], count: int, right: str) -> str:
    more = f", … ({count} in all)" if count > len(shown) else ""
    return f"{left}{', '.join(shown)}{more}{right}"


def _without_places(text: str) -> str:
    """Addresses and folders taken out: they differ from run to run."""
    return re.sub(r"(/[\w.\-]+)+/", "/", ADDRESS.sub("0x", text))


def _close(a: str, b: str) -> bool:
    if COUNT.fullmatch(a) and COUNT.fullmatch(b):
        return int(a) == int(b)  # 27354 requests are not 27355
    one, other = float(a), float(b)
    if one != one or other != other:
        return one != one and other != other
    return one == other or abs(one - other) <= 1e-4 * max(abs(one), abs(other)) + 1e-7
