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
from mini_engine.serving.ladder_cost import MEMORY_WITHIN, TIME_WITHIN, GraphCosts
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
    seqs = "requests that may run side by side (default: vLLM's on the card)"
    budget = "of a step: one of each running request, the rest for prompts (default: vLLM's on it)"
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
        ("limits", ("--max-num-seqs",), {**limit, "help": seqs}),
        ("limits", ("--max-num-batched-tokens",), {**limit, "help": budget}),
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
    """What `--shape`, `--spec`, `--host` and `--engine` name. Limits that nobody gave become those
    that vLLM sets on the card."""
    shape, spec = shape_of(args.shape), load_spec(args.spec, args.host, args.engine)
    for name, value in spec.batch_defaults._asdict().items():
        if vars(args).get(name, 0) is None:
            setattr(args, name, value)
    return shape, spec


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


def interval(
    spec: DeviceSpec, itl_us: float, mode: str, batch: int, floor_us: float = 0.0
) -> dict[str, float | None]:
    """A predicted ITL with its 80% interval, for JSON; null for ends that are not known."""
    low, high = spec.interval(itl_us, mode, batch, floor_us) or (None, None)
    return {"itl_us": itl_us, "low_us": low, "high_us": high}


def ms(one: Mapping[str, Any]) -> str:
    """The same for people: "1.5 ms (1.3 to 1.9)"."""
    known = ends(one["low_us"], one["high_us"], 1e-3)
    known = "no interval: too few measured it" if known == "–" else known
    return f"{two_digits(one['itl_us'] / 1e3)} ms ({known})"


def capture(costs: GraphCosts) -> str:
    """What graphs take at start-up, and how far published ones were from it: "2.0 s (1.0 to 4.0)
    and 430 MiB (220 to 1,700)"."""
    seconds, mib = costs.capture_us / 1e6, costs.memory_bytes / 2**20
    took, held = ends(*TIME_WITHIN, seconds), ends(*MEMORY_WITHIN, mib)
    return f"{two_digits(seconds)} s ({took}) and {two_digits(mib)} MiB ({held})"


def ends(low: float | None, high: float | None, times: float = 1.0, to: str = " to ") -> str:
    """An interval, as sure as it is; "–" where none is known."""
    if low is None or high is None:
        return "–"
    return f"{two_digits(low * times)}{to}{two_digits(high * times)}"


def two_digits(value: float) -> str:
    """As many digits as a prediction is good for: 0.98, 1.5, 17, 230."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:#.2g}"
