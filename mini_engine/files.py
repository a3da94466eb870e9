"""Files, for every floor: JSON that somebody else wrote, as typed dataclasses; files written whole.

typed(Card, read_object(path), str(path))      # a dataclass; an error names file and field
write_whole(path, text)                        # the whole file or the old one, never a half"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 1e300  # of a number: NaN and Infinity, which Python reads, are none


def read_json(path: Path) -> object:
    """Parse a UTF-8 file. Raises ValueError, naming the file, for other bytes, and OSError."""
    return parse_json(path.read_bytes(), str(path))


def read_object(path: Path) -> dict[str, object]:
    """The same for a file that holds one object."""
    parsed = read_json(path)
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: expected a JSON object {{...}}, found {type(parsed).__name__}")
    return parsed


def parse_json(content: str | bytes, where: str) -> object:
    """Parse text, or UTF-8 bytes. `where` begins the message of each ValueError."""
    try:
        return json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError too
        raise ValueError(f"{where}: not JSON: {error}") from None


def typed(kind: type[T], data: object, where: str, *, more: bool = False) -> T:
    """The dataclass `kind` from a JSON object, checked field by field; null is a field that is not
    there. `more`: fields that `kind` does not have are passed over. Raises ValueError "WHERE: FIELD
    is VALUE, expected TYPE", and with `where` in front what the dataclass itself raises."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} is {in_short(data)}, expected an object {{...}}")
    hints, given = _hints(kind), {}
    for name in () if more else data:
        if name not in hints:
            near = did_you_mean(name, hints) or f": expected one of {', '.join(hints)}"
            raise ValueError(f"{where}: {in_short(name)} is no field{near}")
    for one in fields(kind):  # type: ignore[arg-type]
        if data.get(one.name) is not None:
            given[one.name] = _value(hints[one.name], data[one.name], f"{where}: {one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{where}: {one.name} is missing, expected {_name(hints[one.name])}")
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


_hints: Any = cache(get_type_hints)  # of a dataclass: field -> type


def _value(wanted: Any, value: Any, where: str) -> Any:
    """The value as the type asks for it. Raises ValueError where it is of another."""
    if get_origin(wanted) in (Union, UnionType):
        wanted = next((one for one in get_args(wanted) if _fits(one, value)), wanted)
    if not _fits(wanted, value):
        raise ValueError(f"{where} is {in_short(value)}, expected {_name(wanted)}")
    origin, inner = get_origin(wanted), get_args(wanted)
    if is_dataclass(wanted):
        return typed(wanted, value, where)  # type: ignore[arg-type]
    if origin in _LISTS:
        listed = [_value(inner[0], one, f"{where}[{i}]") for i, one in enumerate(value)]
        return listed if origin is list else tuple(listed)
    if origin in _OBJECTS:
        return {key: _value(inner[1], one, f"{where}: {key}") for key, one in value.items()}
    return float(value) if wanted is float else value


_LISTS, _OBJECTS = (list, tuple, Sequence), (dict, Mapping)
_NAMES = {int: "a whole number", float: "a number", str: "words", bool: "true or false"}


def _fits(wanted: Any, value: object) -> bool:
    """Whether a JSON value is of this type, whatever stands inside of it."""
    origin = get_origin(wanted)
    if origin in _LISTS:
        return isinstance(value, list)
    if origin in _OBJECTS or is_dataclass(wanted):
        return isinstance(value, dict)
    if origin is Literal:
        return value in get_args(wanted)
    if wanted is float:  # true is an int of Python's, and NaN a float: no number is meant
        return isinstance(value, int | float) and type(value) is not bool and abs(value) < LARGEST
    return wanted in (Any, object) or (wanted in _NAMES and type(value) is wanted)


def _name(wanted: Any) -> str:
    """A type in words, for an error."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return " or ".join(_name(one) for one in inner if one is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    return "a list [...]" if origin in _LISTS else _NAMES.get(wanted, "an object {...}")


def in_short(value: object) -> str:
    """A value out of a file, for an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error's line: "; did you mean h200?", and "" where no known word is near."""
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file beside the path, then put it in its place: an interrupt or a full disk leaves
    the old one. Makes folders. Raises OSError with the path in it."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # a link stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name[:60]}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():  # a device, or a pipe
            target.write_bytes(data)
        else:
            beside.write_bytes(data)
            os.replace(beside, target)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None
    finally:
        beside.unlink(missing_ok=True)


def check_out(path: Path, endings: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there, and its name ends in one of `endings` if there are
    any: asked before the work whose result goes there. Raises ValueError, and makes nothing."""
    if endings and path.suffix.lower() not in endings:
        raise ValueError(f"{path}: expected a name that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise ValueError(f"{path}: a folder, expected a file's name")
    if not path.exists() or path.is_file():  # otherwise a device or a pipe
        check_folder(path.parent)
    return path


def check_folder(path: Path) -> Path:
    """The same for a folder that files can be written into, or that can be made."""
    near = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise ValueError(f"{path}: {near} is no folder that can be written into")
    return path
