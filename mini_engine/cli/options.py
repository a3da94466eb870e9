"""Options that several commands share, and how their words become objects.

In: an argument parser, or parsed words. Out: shapes, specs and sizes; `ValueError` on bad words.
`--help` needs no more than the names of files, so what computes is imported where it is used.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.files import check_folder, check_out, did_you_mean
from mini_engine.model.config import SHAPES, ModelConfig, named_shape

if TYPE_CHECKING:
    from mini_engine.step.hardware import DeviceSpec

CARD = "h200"  # where --spec names none
MOST = 10**15  # of a number
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
WITHIN = "In brackets: 80% of what others measured, and the fit had not seen, lay so near."


# ---------------------------------------------------------------- types, for `type=`


def between(least: float, most: float, kind: type = float) -> Callable[[str], Any]:
    """A number (or, with `kind=int`, a whole one) from `least` to `most`."""

    def read(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"{word!r:.40} is not {what} from {least:,g} to {most:,g}"
            )
        return value

    return read


positive = between(1, MOST, int)
counted = between(0, MOST, int)
whole = between(-MOST, MOST, int)
share = between(0, 1)
step_tokens = between(1, 1 << 16, int)  # of a step: a ladder up to there has 4,097 rungs
microseconds = between(0, 60e6)
number = between(-MOST, MOST)
gibibytes = between(1e-9, 1e4)
gigabytes = between(1e-9, 1e9)


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list."""
    return [whole(part.strip()) for part in word.split(",") if part.strip()]


def picture(word: str) -> Path:
    """Where a picture can be written."""
    return _can_be_written(check_out, Path(word), (".png", ".svg", ".pdf"))


def json_out(word: str) -> Path:
    """Where a JSON file can be written."""
    return _can_be_written(check_out, Path(word), (".json",))


def out_folder(word: str) -> Path:
    """A folder that files can be written into, or that can be made."""
    return _can_be_written(check_folder, Path(word))


def _can_be_written(check: Callable[..., Path], *about: Any) -> Path:
    try:
        return check(*about)
    except (ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def check_not_onto(out: Path, *read: str | Path | None) -> None:
    """Raises ValueError where a result would be written over what it is made of."""
    for name in read:
        if name is not None and os.path.isfile(name) and out.exists() and out.samefile(name):
            raise ValueError(f"{out}: it is read for this: give another file to write")


# ---------------------------------------------------------------- options


def names(folder: str) -> str:
    """The cards ("cards"), "hosts" or "engines" that ship with the project, with commas."""
    files = (Path(__file__).parents[1] / "step" / folder).glob("*.json")
    return ", ".join(sorted(path.stem for path in files))


def add_shape(parser: argparse.ArgumentParser) -> None:
    """`--shape`: a named shape, or a checkpoint folder to take the shape from."""
    words = f"{', '.join(SHAPES)}, or a folder with a config.json (default: qwen3-0.6b)"
    parser.add_argument("--shape", default="qwen3-0.6b", help=words)


def add_spec(parser: argparse.ArgumentParser) -> None:
    """`--spec`: the card that times are predicted for."""
    words = f"card: {names('cards')}, or a JSON file (default: {CARD})"
    parser.add_argument("--spec", default=CARD, help=words)
    add_engine(parser)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """`--engine` and `--host`: what runs on the card, and the CPU that feeds it."""
    parser.add_argument("--engine", help=f"{names('engines')}, or a JSON file (default: vllm)")
    words = f"{names('hosts')}, or a JSON file (default: the engine's usual one)"
    parser.add_argument("--host", help=words)


def add_style(parser: argparse.ArgumentParser) -> None:
    """`--style`: the op list, where it is not to be the engine's own."""
    from mini_engine.step.oplists import STYLES

    words = "op list: 9 or 5 kernels a layer, or transformers' 56 (default: the engine's own)"
    parser.add_argument("--style", choices=STYLES, help=words)


def add_stored(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """`--quant` and `--kv-dtype`: how weights and cache are stored."""
    from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

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
    from mini_engine.dispatch.modes import CUDAGraphMode

    modes = [mode.name for mode in CUDAGraphMode]
    parser.add_argument("--mode", default="FULL_AND_PIECEWISE", choices=modes, help=help)


def add_picture(parser: argparse.ArgumentParser, default: str) -> None:
    """`-o`: where the picture goes."""
    words = f"picture: .png, .svg or .pdf (default: {default})"
    parser.add_argument("-o", "--out", type=picture, default=default, metavar="FILE", help=words)


# ---------------------------------------------------------------- what they name


def shape_of(word: str) -> ModelConfig:
    """The shape that `--shape` names: a built-in one before a folder of the same name."""
    if word.lower() in SHAPES:
        return named_shape(word)
    if Path(word).is_dir():
        return ModelConfig.from_folder(word)
    near = did_you_mean(word, SHAPES)
    raise ValueError(
        f"shape {word!r:.60}: expected one of {', '.join(SHAPES)}, or a checkpoint folder{near}"
    )


def shape_and_spec(args: argparse.Namespace) -> tuple[ModelConfig, DeviceSpec]:
    """What `--shape`, `--spec`, `--host` and `--engine` name, with the time of `--host-us` where
    that is given."""
    from mini_engine.step.hardware import load_spec

    shape, spec = shape_of(args.shape), load_spec(args.spec, args.host, args.engine)
    if getattr(args, "host_us", None) is not None:
        spec = replace(spec, host_step_us=args.host_us, ahead_us=0.0)
    return shape, spec


def left_out(given: Sequence[int] | None, kept: Sequence[int] | None) -> list[int]:
    """The capture sizes that were given and are not captured, rising."""
    return sorted(set(given or ()) - set(kept or ()))


def not_captured(sizes: Sequence[int], max_num_batched_tokens: int) -> str:
    """Why these sizes are not captured, in words."""
    some = ", ".join(f"{size:,}" for size in sizes[:8]) + (" …" if len(sizes) > 8 else "")
    most = f"{max_num_batched_tokens:,}"
    return f"Not captured: {some}. No step has more than max_num_batched_tokens {most}."


# ---------------------------------------------------------------- what is printed of them


def told(spec: DeviceSpec) -> dict[str, str]:
    """Card, host and engine, as every prediction names them in its JSON."""
    return {"spec": spec.name, "host": spec.host, "engine": spec.engine}


def on(result: Mapping[str, Any]) -> str:
    """The same for people: "one h200, host server, engine vllm"."""
    return f"one {result['spec']}, host {result['host']}, engine {result['engine']}"


def interval(spec: DeviceSpec, itl_us: float, mode: str) -> dict[str, float]:
    """A predicted ITL with its 80% interval, for JSON."""
    low, high = spec.interval(itl_us, mode)
    return {"itl_us": itl_us, "low_us": low, "high_us": high}


def ms(one: Mapping[str, float]) -> str:
    """The same for people: "1.45 ms (1.06 to 1.97)"."""
    itl, low, high = (one[name] / 1e3 for name in ("itl_us", "low_us", "high_us"))
    return f"{itl:,.2f} ms ({low:,.2f} to {high:,.2f})"
