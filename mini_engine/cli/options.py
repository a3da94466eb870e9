"""Options that several commands share, how their words become objects, how those are printed."""

import argparse
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from mini_engine.cli.terminal import two_digits
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.generation import Speculation
from mini_engine.files import check_folder, check_out
from mini_engine.model.config import SHAPES
from mini_engine.server import Server
from mini_engine.serving.ladder_cost import MEMORY_WITHIN, TIME_WITHIN, GraphCosts
from mini_engine.serving.request_trace import SHIPPED_TRACE, Columns
from mini_engine.step.cards import names
from mini_engine.step.explain import Way
from mini_engine.step.storage import FORMATS, KV_DTYPE_BYTES

CARD = "h200"  # where --spec names none
NAMED = "time=NAME,prompt=NAME,new=NAME"  # a trace's columns
PROMPTS = ("Return True if", "Remove the", "Return a list of", "Return the number of", "Convert a")
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE")
EMULATED = "Emulated on a CPU: no evidence about any GPU."
WITHIN = "In brackets: 80% of what others measured, and the fit had not seen, lay so near."


def between(least: float, most: float, kind: type = float) -> Callable[[str], Any]:
    """A number (or, with `kind=int`, a whole one) from `least` to `most`."""
    what = f"{'a whole number' if kind is int else 'a number'} from {least:,g} to {most:,g}"

    def read(word: str) -> Any:
        try:
            value = kind(word)
        except ValueError:
            value = math.nan
        if least <= value <= most:
            return value
        raise argparse.ArgumentTypeError(f"{word!r:.40} is not {what}")

    return read


positive, counted = between(1, 1e15, int), between(0, 1e15, int)
whole, share = between(-1e15, 1e15, int), between(0, 1)
drafted, step_tokens = between(1, 15, int), between(1, 1 << 16, int)  # a ladder of 4,097 rungs


def words(word: str, known: Collection[str] = ()) -> list[str]:
    """`a,b` as a list; only of what is `known`, if anything is."""
    found = [part.strip() for part in word.split(",") if part.strip()]
    if known and (strange := [one for one in found if one not in known]):
        raise argparse.ArgumentTypeError(f"{strange[0]!r}: expected some of {', '.join(known)}")
    return found


def whole_numbers(word: str) -> list[int]:
    return [whole(part) for part in words(word)]


def speculation(word: str) -> Speculation:
    """`ngram:3`, or `draft:FOLDER:3`: who drafts, and how many tokens."""
    who, _, rest = word.partition(":")
    folder, _, count = rest.rpartition(":")
    if who not in ("ngram", "draft") or (who == "draft") != bool(folder):
        raise argparse.ArgumentTypeError(f"{word!r:.40} is not ngram:K or draft:FOLDER:K")
    return Speculation(drafted(count), folder or None)


def columns(word: str) -> Columns:
    """`time=at,prompt=in,new=out` as the columns of a trace; `time_ms=` for milliseconds."""
    named = dict(part.partition("=")[::2] for part in word.split(","))
    complete, unit_us = all(named.values()), 1e3 if "time_ms" in named else 1e6
    time = named.pop("time_ms" if "time_ms" in named else "time", None)
    if {*named} != {"prompt", "new"} or not complete:
        raise argparse.ArgumentTypeError(f"{word!r:.60}: expected {NAMED} (time_ms=, or no time)")
    return Columns(time, named["prompt"], named["new"], unit_us)


def written(*endings: str) -> Callable[[str], Path]:
    """A file that can be written, whose name ends so; without `endings`, a folder for files."""

    def read(word: str) -> Path:
        try:
            return check_out(Path(word), endings) if endings else check_folder(Path(word))
        except (ValueError, OSError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


picture, json_out, out_folder = written(".png", ".svg", ".pdf"), written(".json"), written()


# A row says of an option: its flags, and the word for its value; its type (bool is a switch, list
# may be given again, a tuple holds the choices); its default, which the help names; what it means.
Rows = Mapping[str, tuple[Any, Any, str]]
_KNOWN = {kind: f"{', '.join(names(kind))}, or a JSON file" for kind in ("card", "engine", "host")}
SHARED: Mapping[str, Rows] = {
    "trace": {
        "--trace FILE": (Path, SHIPPED_TRACE, "CSV or JSON lines (default: a synthetic one)"),
        f"--columns {NAMED}": (columns, None, "the trace's (default: of a trace that is known)"),
        "--shared-prefix TOKENS": (counted, 0, "with which a share of the prompts begins"),
        "--share 0..1": (share, None, "of the prompts (default: 1)")},
    "prompt": {"--prompt TEXT": (list, None, "give it again for more (default: five built-in)")},
    "shape": {"--shape --model NAME": (
        str, "qwen3-0.6b", f"{', '.join(SHAPES)}, a folder with a config.json, or a hub id"),
        "--tp N": (between(1, 64, int), 1, "cards that compute each step together")},
    "spec": {
        "--spec --gpu NAME": (str, CARD, f"card: {_KNOWN['card']} (default: {CARD})"),
        "--engine NAME": (str, None, f"{_KNOWN['engine']} (default: vllm)"),
        "--host NAME": (str, None, f"{_KNOWN['host']} (default: the engine's usual one)")},
    "batch": {"--batch N": (positive, 1, "requests")},
    "context": {"--context N": (positive, 1024, "tokens of each request, this step's included")},
    "limits": {
        "--max-num-seqs N": (step_tokens, None, "requests side by side (default: vLLM's)"),
        "--max-num-batched-tokens N": (step_tokens, None, "of a step (default: vLLM's)")},
    "sizes": {"--capture-sizes --ladder 1,2,4": (
        whole_numbers, None, "in any order; those above a step's tokens go (default: vLLM's)")},
    "stored": {
        "--quant": (FORMATS, None, "of the weights (default: as the model is)"),
        "--kv-dtype": (tuple(KV_DTYPE_BYTES), None, "of the cache (default: as the model is)")},
    "mode": {"--mode": (tuple(m.name for m in CUDAGraphMode), MODES[-1], "how steps are launched")},
    "device": {"--device": (("auto", "cuda", "cpu"), "auto", "cpu: the emulator, no evidence")},
}  # fmt: skip


def add(parser: argparse.ArgumentParser, shared: str, own: Rows) -> None:
    """A command's own options, and the shared ones of these names ("shape spec")."""
    every = [row for name in shared.split() for row in SHARED[name].items()]
    for flags, (kind, default, says) in [*own.items(), *every]:
        known = default is None or "(default" in says
        how: dict[str, Any] = {"help": says if known else f"{says} (default: %(default)s)"}
        if kind is bool:
            how["action"] = "store_true"
        elif isinstance(kind, tuple):
            how |= {"default": default, "choices": kind}
        else:
            how |= {"default": default, "metavar": flags.split()[-1]}
            how |= {"action": "append"} if kind is list else {"type": kind}
        parser.add_argument(*(word for word in flags.split() if word[0] == "-"), **how)


def server(args: argparse.Namespace) -> Server:
    """What the shared options name. Limits that nobody gave become vLLM's on the card."""
    given, limits = vars(args), ("max_num_seqs", "max_num_batched_tokens")
    names = ("host", "engine", "tp", "quant", "kv_dtype", *limits)
    found = Server(args.shape, args.spec, **{name: given[name] for name in names if name in given})
    given |= {name: getattr(found, name) for name in limits if name in given}
    return found


def shared_prefix(args: argparse.Namespace) -> tuple[int, float]:
    """Tokens that prompts have in common, and the share of the prompts that have them."""
    if args.share is not None and not args.shared_prefix:
        raise ValueError("--share without --shared-prefix does nothing: say how long the prefix is")
    args.share = 1.0 if args.share is None else args.share
    return args.shared_prefix, args.share


def told(found: Server) -> dict[str, Any]:
    """What a prediction is of."""
    shape, spec, stored = found.config, found.spec, found.stored
    return {"shape": shape.name, "spec": spec.name, "host": spec.host, "engine": spec.engine,
            "quant": stored.quant, "kv_dtype": stored.kv_dtype, "tp": shape.ranks}  # fmt: skip


def on(r: Any) -> str:
    tp = getattr(r, "tp", 1)
    return f"{tp if tp > 1 else 'one'} {r.spec}, host {r.host}, engine {r.engine}"


def ms(one: Way) -> str:
    known = one.low_us and ends(one.low_us, one.high_us, 1e-3)
    return f"{two_digits(one.itl_us / 1e3)} ms ({known or 'no interval: too few measured it'})"


def capture(costs: GraphCosts) -> str:
    seconds, mib = costs.capture_us / 1e6, costs.memory_bytes / 2**20
    took, held = ends(*TIME_WITHIN, seconds), ends(*MEMORY_WITHIN, mib)
    return f"{two_digits(seconds)} s ({took}) and {two_digits(mib)} MiB ({held})"


def ends(low: float | None, high: float | None, times: float = 1.0, to: str = " to ") -> str:
    if low is None or high is None:
        return "–"
    return f"{two_digits(low * times)}{to}{two_digits(high * times)}"
