"""Options that several commands share, and how their words become objects.

In: an argument parser, or a parsed word. Out: shapes, specs and sizes; `ValueError` on bad words.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mini_engine.model.config import SHAPES, ModelConfig, named_shape
from mini_engine.predict.hardware import DeviceSpec, load_spec, spec_names

STYLES = ("fused9", "fused5", "hf56")
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")


def add_shape(parser: argparse.ArgumentParser, default: str = "qwen3-0.6b") -> None:
    """`--shape`: a named shape, or a checkpoint folder to take the shape from."""
    parser.add_argument(
        "--shape",
        default=default,
        help=f"{', '.join(SHAPES)}, or a folder with a config.json (default: {default})",
    )


def add_spec(parser: argparse.ArgumentParser, default: str = "h200") -> None:
    """`--spec`: the card that times are predicted for."""
    parser.add_argument(
        "--spec",
        default=default,
        help=f"device: {', '.join(spec_names())}, or a JSON file (default: {default})",
    )


def shape_of(word: str) -> ModelConfig:
    """The shape that `--shape` names."""
    if word in SHAPES:
        return named_shape(word)
    if Path(word).is_dir():
        return ModelConfig.from_folder(word)
    raise ValueError(f"shape {word!r}: expected one of {', '.join(SHAPES)}, or a checkpoint folder")


def spec_of(word: str) -> DeviceSpec:
    """The device that `--spec` names."""
    return load_spec(word)


def positive(word: str) -> int:
    """An integer of at least 1, for `type=`."""
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word} is not 1 or more")
    return value


def microseconds(word: str) -> float:
    """A time of 0 µs or more and at most a minute, for `type=`."""
    value = float(word)
    if not 0 <= value <= 60e6:
        raise argparse.ArgumentTypeError(f"{word} is not a time from 0 to 60,000,000 µs")
    return value


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list, for `type=`."""
    try:
        return [int(part) for part in word.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a list like 1,2,4,8") from None
