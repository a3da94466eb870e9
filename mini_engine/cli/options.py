"""Options that several commands share, and how their words become objects.

In: an argument parser, or parsed words. Out: shapes, specs and sizes; `ValueError` on bad words.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.files import check_folder, check_out, did_you_mean
from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.step.figures import names
from mini_engine.step.hardware import DeviceSpec, load_spec, spec_names
from mini_engine.step.oplists import STYLES
from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

CARD = "h200"  # where --spec names none
LONGEST = 30  # characters of a number that is read as it stands
MOST = 10**15
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")

WITHIN = "In brackets: 80% of what others measured, and the fit had not seen, lay so near."


def add_shape(parser: argparse.ArgumentParser) -> None:
    """`--shape`: a named shape, or a checkpoint folder to take the shape from."""
    words = f"{', '.join(SHAPES)}, or a folder with a config.json (default: qwen3-0.6b)"
    parser.add_argument("--shape", default="qwen3-0.6b", help=words)


def add_spec(parser: argparse.ArgumentParser) -> None:
    """`--spec`: the card that times are predicted for."""
    words = f"card: {', '.join(spec_names())}, or a JSON file (default: {CARD})"
    parser.add_argument("--spec", default=CARD, help=words)
    add_engine(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine` and `--host`: what runs on the card, and the CPU that feeds it."""
    engines = ", ".join(names("engine"))
    parser.add_argument("--engine", help=f"{engines}, or a JSON file (default: vllm)")
    hosts = ", ".join(names("host"))
    words = f"{hosts}, or a JSON file (default: the engine's usual one)"
    parser.add_argument("--host", help=words)


def add_style(parser: argparse.ArgumentParser) -> None:
    """`--style`: the op list, where it is not to be the engine's own."""
    words = "op list: 9 or 5 kernels a layer, or transformers' 56 (default: the engine's own)"
    parser.add_argument("--style", choices=STYLES, help=words)


def add_stored(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """`--quant` and `--kv-dtype`: how weights and cache are stored."""
    says = f"(default: {default or 'as the model is'})"
    weights = f"of the weights: {', '.join(FORMATS)} {says}"
    add = parser.add_argument
    add("--quant", default=default, choices=FORMATS, metavar="NAME", help=weights)
    add("--kv-dtype", default=default, choices=KV_DTYPE_BYTES, help=f"of the cache {says}")


def add_host_us(
    parser: argparse.ArgumentParser,
    help: str = "CPU time of the engine while the GPU waits, between two steps (default: the "
    "engine's own)",
) -> None:
    """`--host-us`: in place of the spec's `host_step_us`."""
    parser.add_argument("--host-us", type=microseconds, metavar="US", help=help)


def add_mode(parser: argparse.ArgumentParser, help: str = "(default: FULL_AND_PIECEWISE)") -> None:
    """`--mode`: any of `CUDAGraphMode`."""
    modes = [mode.name for mode in CUDAGraphMode]
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", choices=modes, help=help)


def add_picture(parser: argparse.ArgumentParser, default: str) -> None:
    """`-o`: where the picture goes."""
    words = f"picture: .png, .svg or .pdf (default: {default})"
    parser.add_argument("-o", "--out", type=picture, default=default, metavar="FILE", help=words)


def shape_of(word: str) -> ModelConfig:
    """The shape that `--shape` names."""
    if word.lower() in SHAPES:
        return named_shape(word)
    if Path(word).is_dir():
        return ModelConfig.from_folder(word)
    near = did_you_mean(word, SHAPES)
    raise ValueError(
        f"shape {word!r}: expected one of {', '.join(SHAPES)}, or a checkpoint folder{near}"
    )


def shape_and_spec(args: argparse.Namespace) -> tuple[ModelConfig, DeviceSpec]:
    """What `--shape`, `--spec`, `--host` and `--engine` name, with the time of `--host-us` where
    that is given."""
    shape, spec = shape_of(args.shape), load_spec(args.spec, args.host, args.engine)
    if getattr(args, "host_us", None) is not None:
        spec = replace(spec, host_step_us=args.host_us, ahead_us=0.0)
    return shape, spec


def told(spec: DeviceSpec) -> dict[str, str]:
    """Card, host and engine, as every prediction names them in its JSON."""
    return {"spec": spec.name, "host": spec.host, "engine": spec.engine}


def on(result: Mapping[str, Any]) -> str:
    """The same for people: "one h200, host server, engine vllm"."""
    return f"one {result['spec']}, host {result['host']}, engine {result['engine']}"


def interval(spec: DeviceSpec, itl_us: float, mode: str) -> dict[str, float]:
    """A predicted ITL with its 80% interval, for JSON."""
    low, high = spec.interval(itl_us, mode)
    return {"itl_ms": itl_us / 1e3, "low_ms": low / 1e3, "high_ms": high / 1e3}


def ms(one: Mapping[str, float]) -> str:
    """The same for people: "1.45 ms (1.06 to 1.97)"."""
    return f"{one['itl_ms']:,.2f} ms ({one['low_ms']:,.2f} to {one['high_ms']:,.2f})"


def whole(word: str) -> int:
    """An integer, for `type=`; also as 1e6."""
    _refuse_blank(word)
    if len(word) > LONGEST and word.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{word:.40}… is more than {MOST:,}, the most there can be"
        )
    try:
        value = int(word) if len(word) <= LONGEST and "e" not in word.lower() else _power(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word:.40} is not a whole number") from None
    if abs(value) > MOST:
        raise argparse.ArgumentTypeError(f"{word:.40} is more than {MOST:,}, the most there can be")
    return value


def _power(word: str) -> int:
    """1e6 as 1,000,000. Raises ValueError for what is not whole."""
    value = float(word)
    if not math.isfinite(value) or not value.is_integer():
        raise ValueError
    return int(value)


def _refuse_blank(word: str) -> None:
    """Of a variable that a shell does not know, nothing is left to be quoted in an error."""
    if not word.strip():
        raise argparse.ArgumentTypeError("it is empty, expected a number")


def positive(word: str) -> int:
    """An integer of at least 1, for `type=`."""
    value = whole(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word} is not 1 or more")
    return value


def counted(word: str) -> int:
    """An integer of at least 0, for `type=`."""
    value = whole(word)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{word} is not 0 or more")
    return value


def number(word: str) -> float:
    """A number that is finite, for `type=`."""
    value = _float(word)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{word:.40} is not a number")
    return value


def _float(word: str) -> float:
    """The number that the word is, nan where it is none."""
    _refuse_blank(word)
    try:
        return float(word)
    except ValueError:
        return math.nan


def microseconds(word: str) -> float:
    """A time of 0 µs or more and at most a minute, for `type=`."""
    value = _float(word)
    if not 0 <= value <= 60e6:
        raise argparse.ArgumentTypeError(f"{word} is not a time from 0 to 60,000,000 µs")
    return value


def gibibytes(word: str) -> float:
    """A size above 0 and up to 10,000 GiB, for `type=`."""
    value = _float(word)
    if not 0 < value <= 1e4:
        raise argparse.ArgumentTypeError(f"{word} is not a size above 0 and up to 10,000 GiB")
    return value


def share(word: str) -> float:
    """A number from 0 to 1, for `type=`."""
    value = _float(word)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{word} is not a share from 0 to 1")
    return value


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list, for `type=`."""
    try:
        return [whole(part.strip()) for part in word.split(",") if part.strip()]
    except argparse.ArgumentTypeError as error:
        given = f"{word!r:.80} is not a list like 1,2,4,8"
        raise argparse.ArgumentTypeError(f"{given}: {error}") from None


def picture(word: str) -> Path:
    """Where a picture can be written, for `type=`."""
    return _out(word, (".png", ".svg", ".pdf"))


def json_out(word: str) -> Path:
    """Where a JSON file can be written, for `type=`."""
    return _out(word, (".json",))


def out_folder(word: str) -> Path:
    """A folder that files can be written into, or that can be made, for `type=`."""
    return _out(word, folder=True)


def check_not_onto(out: Path, *read: str | Path | None) -> None:
    """Raises ValueError where a result would be written over what it is made of."""
    for name in read:
        # a word that is no path may be longer than a path may be
        if name is not None and os.path.isfile(name) and out.exists() and out.samefile(name):
            raise ValueError(f"{out}: it is read for this: give another file to write")


def _out(word: str, endings: tuple[str, ...] = (), *, folder: bool = False) -> Path:
    try:
        return check_folder(Path(word)) if folder else check_out(Path(word), endings)
    except (ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
