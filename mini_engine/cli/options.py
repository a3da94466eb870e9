"""Options that several commands share, how their words become objects, and how what they name and
predict is printed.

In: an argument parser, or parsed words. Out: a `Server`, numbers, paths; `ValueError` on bad words.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.files import check_folder, check_out
from mini_engine.model.config import SHAPES
from mini_engine.model.hub import shape_of as shape_of
from mini_engine.server import Server
from mini_engine.serving.ladder_cost import MEMORY_WITHIN, TIME_WITHIN, GraphCosts
from mini_engine.step.cards import DeviceSpec, names
from mini_engine.step.explain import Way
from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

CARD = "h200"  # where --spec names none
PROMPTS = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
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


positive = between(1, 1e15, int)
counted = between(0, 1e15, int)
whole = between(-1e15, 1e15, int)
share = between(0, 1)
step_tokens = between(1, 1 << 16, int)  # of a step: a ladder up to there has 4,097 rungs


def words(word: str) -> list[str]:
    """`a,b` as a list."""
    if found := [part.strip() for part in word.split(",") if part.strip()]:
        return found
    raise argparse.ArgumentTypeError(f"expected names with commas between them, not {word!r}")


def whole_numbers(word: str) -> list[int]:
    """`1,2,4,8` as a list."""
    return [whole(part) for part in words(word)]


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
    modes = [mode.name for mode in CUDAGraphMode]
    sizes = (
        "capture sizes, in any order; those above a step's tokens are left out (default: vLLM's)"
    )
    every: list[tuple[str, str, dict[str, Any], str]] = [
        ("prompt", "--prompt", {"action": "append", "metavar": "TEXT"},
         "a prompt; give it again for more (default: five built-in ones)"),
        ("shape", "--shape --model", {"default": "qwen3-0.6b", "metavar": "NAME"},
         f"{', '.join(SHAPES)}, a folder with a config.json, or a hub id (default: qwen3-0.6b)"),
        ("spec", "--spec --gpu", {"default": CARD, "metavar": "NAME"},
         f"card: {cards}, or a JSON file (default: {CARD})"),
        ("spec", "--engine", {"metavar": "NAME"}, f"{engines}, or a JSON file (default: vllm)"),
        ("spec", "--host", {"metavar": "NAME"},
         f"{hosts}, or a JSON file (default: the engine's usual one)"),
        ("batch", "--batch", {"type": positive, "default": 1, "metavar": "N"},
         "requests (default: 1)"),
        ("context", "--context", {"type": positive, "default": context, "metavar": "N"},
         "tokens of each request, this step's included (default: %(default)s)"),
        ("limits", "--max-num-seqs", {"type": step_tokens, "metavar": "N"},
         "requests that may run side by side (default: vLLM's on the card)"),
        ("limits", "--max-num-batched-tokens", {"type": step_tokens, "metavar": "N"},
         "of a step: one of each running request, the rest for prompts (default: vLLM's)"),
        ("sizes", "--capture-sizes --ladder", {"type": whole_numbers, "metavar": "1,2,4"}, sizes),
        ("stored", "--quant", {"choices": FORMATS, "metavar": "NAME"},
         f"of the weights: {', '.join(FORMATS)} (default: as the model is)"),
        ("stored", "--kv-dtype", {"choices": KV_DTYPE_BYTES}, "of the cache (default: likewise)"),
        ("mode", "--mode", {"default": MODES[-1], "choices": modes},
         f"how steps are launched (default: {MODES[-1]})"),
    ]  # fmt: skip
    for name, flags, how, told in every:
        if name in which:
            parser.add_argument(*flags.split(), **how, help=told)


def add_picture(parser: argparse.ArgumentParser, default: str) -> None:
    """`-o`: where the picture goes. With --json there is one only where it is asked for."""
    says = f"picture: .png, .svg or .pdf (default: {default}; with --json none)"
    parser.add_argument("-o", "--out", type=picture, metavar="FILE", help=says)


# ---------------------------------------------------------------- what they name


def server(args: argparse.Namespace) -> Server:
    """What the shared options name. Limits that nobody gave become those that vLLM sets on the
    card."""
    given = vars(args)
    limits = ("max_num_seqs", "max_num_batched_tokens")
    more = {name: given.get(name) for name in ("quant", "kv_dtype", *limits)}
    found = Server(args.shape, args.spec, host=args.host, engine=args.engine, **more)
    given |= {name: getattr(found, name) for name in limits if name in given}
    return found


def told(found: Server) -> dict[str, str]:
    """What a prediction is of, for its JSON."""
    stored = {"quant": found.stored.quant, "kv_dtype": found.stored.kv_dtype}
    return {"shape": found.config.name, **on_spec(found.spec), **stored}


def on_spec(spec: DeviceSpec) -> dict[str, str]:
    """Card, host and engine alone."""
    return {"spec": spec.name, "host": spec.host, "engine": spec.engine}


def on(r: Any) -> str:
    """The same for people: "one h200, host server, engine vllm"."""
    return f"one {r.spec}, host {r.host}, engine {r.engine}"


def name_dropped(args: argparse.Namespace, kept: list[int], console: Console) -> None:
    """One line for the capture sizes that were asked for and that no step reaches."""
    if (dropped := sorted({*(args.capture_sizes or ())} - {*kept})) and args.mode != "NONE":
        which = f"capture sizes {', '.join(map(str, dropped))} are dropped"
        console.print(f"{which}: a step has at most {args.max_num_batched_tokens:,} tokens")


# ---------------------------------------------------------------- what is printed of predictions


def interval(spec: DeviceSpec, itl_us: float, mode: str, batch: int, floor_us: float = 0.0) -> Way:
    """A predicted ITL with its 80% interval."""
    return Way(itl_us, *spec.interval(itl_us, mode, batch, floor_us) or ())


def ms(one: Way) -> str:
    """The same for people: "1.5 ms (1.3 to 1.9)"."""
    known = ends(one.low_us, one.high_us, 1e-3)
    known = "no interval: too few measured it" if known == "–" else known
    return f"{two_digits(one.itl_us / 1e3)} ms ({known})"


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
