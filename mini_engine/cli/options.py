"""Options that several commands share, and how their words become objects.

In: an argument parser, or parsed words. Out: shapes, specs and sizes; `ValueError` on bad words.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.files import check_folder, check_out
from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.model.hub import shape_of as shape_of
from mini_engine.serving.request_trace import Columns
from mini_engine.step.cards import DeviceSpec, load_spec, names
from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

CARD = "h200"  # where --spec names none
PROMPTS = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
MOST = 10**15  # of a number
NAMED = "time=NAME,prompt=NAME,new=NAME"  # a trace's columns
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
gigabytes = between(1e-9, 1e9)


def words(word: str) -> list[str]:
    """`a,b` as a list."""
    if found := [part.strip() for part in word.split(",") if part.strip()]:
        return found
    raise argparse.ArgumentTypeError(f"expected names with commas between them, not {word!r}")


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list."""
    return [whole(part) for part in words(word)]


def columns(word: str) -> Columns:
    """`time=at,prompt=in,new=out` as the columns of a trace; `time_ms=` for milliseconds."""
    named = dict(part.partition("=")[::2] for part in word.split(","))
    units_us = {"time": 1e6, "time_ms": 1e3}
    times = [key for key in named if key in units_us]
    if {*named} - {*times} != {"prompt", "new"} or len(times) > 1 or not all(named.values()):
        raise argparse.ArgumentTypeError(
            f"{word!r:.60}: expected {NAMED}, with time_ms= for milliseconds, or without a time"
        )
    time = times[0] if times else None
    return Columns(time and named[time], named["prompt"], named["new"], units_us[time or "time"])


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


def add(parser: argparse.ArgumentParser, *which: str, context: int = 1024) -> None:
    """The shared options of these names: `add(parser, "shape", "spec", "stored")`."""
    cards, engines, hosts = (", ".join(names(kind)) for kind in ("card", "engine", "host"))
    or_file, as_is = "or a JSON file (default:", "(default: as the model is)"
    modes = [mode.name for mode in CUDAGraphMode]
    prompt = "a prompt; give it again for more (default: five built-in ones)"
    shape = f"{', '.join(SHAPES)}, a folder with a config.json, or a hub id (default: qwen3-0.6b)"
    tokens = "of each request, this step's token included (default: %(default)s)"
    named = "names of the trace's columns; numbers are seconds, or milliseconds with time_ms= "
    named += "(default: those of a trace that is known)"
    seqs = "requests that may run side by side (default: 256)"
    budget = "of a step: one of each running request, the rest for prompts (default: 8192)"
    word: dict[str, Any] = {"metavar": "NAME"}
    number: dict[str, Any] = {"type": positive, "metavar": "N"}
    limit: dict[str, Any] = {"type": step_tokens, "metavar": "N"}
    every: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("prompt", ("--prompt",), {"action": "append", "metavar": "TEXT", "help": prompt}),
        ("shape", ("--shape", "--model"), {**word, "default": "qwen3-0.6b", "help": shape}),
        ("spec", ("--spec", "--gpu"), {**word, "default": CARD,
                                       "help": f"card: {cards}, {or_file} {CARD})"}),
        ("spec", ("--engine",), {**word, "help": f"{engines}, {or_file} vllm)"}),
        ("spec", ("--host",), {**word, "help": f"{hosts}, {or_file} the engine's usual one)"}),
        ("batch", ("--batch",), {**number, "default": 1, "help": "requests (default: 1)"}),
        ("context", ("--context",), {**number, "default": context, "help": tokens}),
        ("columns", ("--columns",), {"type": columns, "metavar": NAMED, "help": named}),
        ("limits", ("--max-num-seqs",), {**limit, "default": 256, "help": seqs}),
        ("limits", ("--max-num-batched-tokens",), {**limit, "default": 8192, "help": budget}),
        ("stored", ("--quant",), {"choices": FORMATS, "metavar": "NAME",
                                  "help": f"of the weights: {', '.join(FORMATS)} {as_is}"}),
        ("stored", ("--kv-dtype",), {"choices": KV_DTYPE_BYTES, "help": f"of the cache {as_is}"}),
        ("mode", ("--mode",), {"default": "FULL_AND_PIECEWISE", "choices": modes,
                               "help": "how steps are launched (default: FULL_AND_PIECEWISE)"}),
    ]  # fmt: skip
    for name, flags, how in every:
        if name in which:
            parser.add_argument(*flags, **how)


def add_picture(parser: argparse.ArgumentParser, default: str) -> None:
    """`-o`: where the picture goes. With --json there is one only where it is asked for."""
    says = f"picture: .png, .svg or .pdf (default: {default}; with --json none)"
    parser.add_argument("-o", "--out", type=picture, metavar="FILE", help=says)
    parser.set_defaults(usual_out=picture(default))


def picture_of(args: argparse.Namespace) -> Path | None:
    """Where `add_picture`'s picture goes, if anywhere."""
    usual: Path = vars(args).pop("usual_out")  # an option that nobody gives is not in the JSON
    return args.out or (None if args.json else usual)


# ---------------------------------------------------------------- what they name


def shape_and_spec(args: argparse.Namespace) -> tuple[ModelConfig, DeviceSpec]:
    """What `--shape`, `--spec`, `--host` and `--engine` name."""
    return shape_of(args.shape), load_spec(args.spec, args.host, args.engine)


def name_dropped(
    args: argparse.Namespace, asked: list[int] | None, kept: list[int], console: Console
) -> None:
    """One line for the capture sizes that were asked for and that no step reaches."""
    if (dropped := sorted({*(asked or ())} - {*kept})) and args.mode != "NONE":
        told = f"capture sizes {', '.join(map(str, dropped))} are dropped: a step has at most"
        console.print(f"{told} {args.max_num_batched_tokens:,} tokens", soft_wrap=True)


# ---------------------------------------------------------------- what is printed of them


def told(spec: DeviceSpec) -> dict[str, str]:
    """Card, host and engine, as every prediction names them in its JSON."""
    return {"spec": spec.name, "host": spec.host, "engine": spec.engine}


def on(result: Mapping[str, Any]) -> str:
    """The same for people: "one h200, host server, engine vllm"."""
    return f"one {result['spec']}, host {result['host']}, engine {result['engine']}"


def interval(spec: DeviceSpec, itl_us: float, mode: str, floor_us: float = 0.0) -> dict[str, float]:
    """A predicted ITL with its 80% interval, for JSON. No step takes less than its floor."""
    low, high = spec.interval(itl_us, mode)
    return {"itl_us": itl_us, "low_us": max(low, floor_us), "high_us": high}


def ms(one: Mapping[str, float]) -> str:
    """The same for people: "1.45 ms (1.06 to 1.97)"."""
    itl, low, high = (one[name] / 1e3 for name in ("itl_us", "low_us", "high_us"))
    return f"{itl:,.2f} ms ({low:,.2f} to {high:,.2f})"
