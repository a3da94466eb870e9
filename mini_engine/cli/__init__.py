"""The command line: parse, run one command, show what it found.

A command is a module of this package, imported only when it is asked for. Its docstring is the long
help, and it has:

    SHARED, OPTIONS, DEFAULTS    its options (cli/options.py), and what differs in shared ones
    run(args, console) -> dict   does the work, tells standard error, and returns what was found
    show(r, console)             prints it for people; `--json` prints all fields of it

`r` has the options and what `run` returned as attributes; times end with `_us`, memory with
`_bytes`. What is slow to import (matplotlib, torch) is imported in `run`.
"""

import importlib
import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

from mini_engine import __version__
from mini_engine.cli.ending import CheckFailed as CheckFailed
from mini_engine.cli.ending import guarded

# Each command: what it teaches, the next command, the chapter behind it.
COMMANDS = {
    "demo": ("the main job: one text in every mode, a picture, a trace", "crossover", 4),
    "generate": ("write text with a checkpoint: the same in every mode", "demo", 10),
    "explain": ("am I launch-bound? Where a step's time goes", "crossover", 4),
    "crossover": ("ITL against batch: up to where does a graph pay?", "ladder --batch 33", 16),
    "ladder": ("which batch sizes get a graph, why 33 runs at 40", "serve", 8),
    "capacity": ("what fits on a card, and the floor of ITL", "crossover", 3),
    "serve": ("replay a request trace: TTFT, ITL, padding waste", "ladder --batch 33", 10),
    "fleet": ("several servers: which cards, how many, which router", "serve", 10),
    "up": ("serve clients that speak OpenAI's API, or predict it", "serve", 10),
    "calibrate": ("what this machine charges, as a card and a host", "crossover", 14),
    "bench": ("time real decode steps, variant by variant", "validate", 14),
    "gpu": ("all that matters on this GPU in nine minutes", "bench --plot out/gpu/bench.json", 15),
    "validate": ("predictions against what others have measured", "calibrate", 14),
    "trace": ("a timeline of one decode step, for Perfetto", "demo", 4),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 if a check failed, 2 on bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["mini_engine", *[word for word in words if word in COMMANDS][:1]])
    return guarded(name, lambda: _run(words), as_json="--json" in words)


def _run(words: list[str]) -> int:
    from mini_engine.cli.terminal import Screen

    args = build_parser(words).parse_args(words, Namespace(typed=words))
    command = load(args.command)
    found = command.run(args, Screen(stderr=True, quiet=args.json))
    result = vars(args) | found
    if args.json:
        print(json.dumps(result, indent=2, default=as_json))
    else:
        command.show(Namespace(**result), Screen())
    return 0


def as_json(found: Any) -> Any:
    """What JSON has no form for: a dataclass is its fields and its properties, a path its name."""
    if not is_dataclass(found):
        return str(found)
    names = [field.name for field in fields(found)]
    names += [name for name, value in vars(type(found)).items() if isinstance(value, property)]
    return {name: getattr(found, name) for name in names}


def build_parser(words: Sequence[str]) -> ArgumentParser:
    """Only the command that is asked for is imported, to start fast."""
    from mini_engine.cli import options
    from mini_engine.cli.terminal import Parser

    parser = Parser(
        prog="python -m mini_engine",
        description="Predict, run and look at LLM decode: eager, piecewise and as one CUDA graph.",
        epilog="Each command has --help and --json. Start with: python -m mini_engine demo",
    )
    parser.add_argument("--version", action="version", version=f"launch-bound {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (teaches, following, chapter) in COMMANDS.items():
        sub = commands.add_parser(name, help=teaches, formatter_class=RawDescriptionHelpFormatter)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        if name in words:
            command = load(name)
            sub.description = command.__doc__
            sub.epilog = f"Next: python -m mini_engine {following}\nRead: chapter {chapter}"
            options.add(sub, command.SHARED, command.OPTIONS)
            sub.set_defaults(**getattr(command, "DEFAULTS", {}))
    return parser


def load(name: str) -> ModuleType:
    return importlib.import_module(f"mini_engine.cli.{name}")
