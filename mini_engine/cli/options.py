"""Options that several commands share, and how their words become objects.

In: an argument parser, or parsed words. Out: shapes, specs and sizes; `ValueError` on bad words.
`--help` needs no more than the names of files, so what computes is imported where it is used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_engine.files import check_folder, check_out, did_you_mean
from mini_engine.model.config import SHAPES, ModelConfig, named_shape

if TYPE_CHECKING:
    from mini_engine.step.cards import DeviceSpec

CARD = "h200"  # where --spec names none
PROMPTS = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
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
number = between(-MOST, MOST)
gigabytes = between(1e-9, 1e9)


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list."""
    return [whole(part.strip()) for part in word.split(",") if part.strip()]


def _written(check: Callable[..., Path], *about: Any) -> Callable[[str], Path]:
    """A path that `check` of mini_engine/files.py finds can be written."""

    def read(word: str) -> Path:
        try:
            return check(Path(word), *about)
        except (ValueError, OSError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


picture = _written(check_out, (".png", ".svg", ".pdf"))
json_out = _written(check_out, (".json",))
out_folder = _written(check_folder)  # or one that can be made


# ---------------------------------------------------------------- options


def names(folder: str) -> str:
    """The cards ("cards"), "hosts" or "engines" that ship with the project, with commas."""
    files = (Path(__file__).parents[1] / "step" / folder).glob("*.json")
    return ", ".join(sorted(path.stem for path in files))


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """`--prompt`, of which `prompts_of` makes a list."""
    words = "a prompt; give it again for more (default: five built-in ones)"
    parser.add_argument("--prompt", action="append", metavar="TEXT", help=words)


def prompts_of(args: argparse.Namespace) -> list[str]:
    """The prompts given, or the built-in ones where none are."""
    return args.prompt or list(PROMPTS)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """`--shape`, or `--model`: a named shape, or a checkpoint folder to take the shape from."""
    words = f"{', '.join(SHAPES)}, or a folder with a config.json (default: qwen3-0.6b)"
    parser.add_argument("--shape", "--model", default="qwen3-0.6b", metavar="NAME", help=words)


def add_spec(parser: argparse.ArgumentParser) -> None:
    """`--spec`, or `--gpu`: the card that times are predicted for; `--engine` and `--host`: what
    runs on the card, and the CPU that feeds it."""
    add = parser.add_argument
    words = f"card: {names('cards')}, or a JSON file (default: {CARD})"
    add("--spec", "--gpu", default=CARD, metavar="NAME", help=words)
    words = f"{names('engines')}, or a JSON file (default: vllm)"
    add("--engine", metavar="NAME", help=words)
    words = f"{names('hosts')}, or a JSON file (default: the engine's usual one)"
    add("--host", metavar="NAME", help=words)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """`--max-num-seqs` and `--max-num-batched-tokens`, as vLLM names them."""
    words = "requests that may run side by side (default: 256)"
    parser.add_argument("--max-num-seqs", type=step_tokens, default=256, metavar="N", help=words)
    words = "of a step: one of each running request, the rest for prompts (default: 8192)"
    parser.add_argument(
        "--max-num-batched-tokens", type=step_tokens, default=8192, metavar="N", help=words
    )


def add_stored(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """`--quant` and `--kv-dtype`: how weights and cache are stored."""
    from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

    says = f"(default: {default or 'as the model is'})"
    weights = f"of the weights: {', '.join(FORMATS)} {says}"
    add = parser.add_argument
    add("--quant", default=default, choices=FORMATS, metavar="NAME", help=weights)
    add("--kv-dtype", default=default, choices=KV_DTYPE_BYTES, help=f"of the cache {says}")


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
    """What `--shape`, `--spec`, `--host` and `--engine` name."""
    from mini_engine.step.cards import load_spec

    return shape_of(args.shape), load_spec(args.spec, args.host, args.engine)


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
