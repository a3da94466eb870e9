"""The command line: parse, run one command, show what it found.

In: words. Out: a table or a text for people, JSON with `--json`; exit code 2 and one clear line on
bad input.

A command is a module of this package, imported only when it is asked for. Its docstring is the long
help, and it has three functions:

    add_arguments(parser)        its options
    run(args, console) -> dict   does the work and returns what `--json` prints
    show(result, console)        prints the same for people

`console` writes to standard error in `run` (progress, notes) and to standard output in `show`, so
that `--json` output can be piped on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console

from mini_engine.cli.json_schema import document

COMMANDS = {
    "demo": "the main job: same text in every mode, where the time goes, pictures and a trace",
    "generate": "write text with a checkpoint, eagerly or with graphs: the same tokens either way",
    "crossover": "ITL against batch: up to where does a graph pay?",
    "ladder": "which batch sizes get a graph, and why your batch of 33 runs at 40",
    "capacity": "what fits on a card: weights, KV cache, graphs, context, and the floor of ITL",
    "serve": "replay a request trace: TTFT, ITL, padding waste, what a better ladder would save",
    "calibrate": "measure what this machine's GPU and CPU charge, and write a card and a host",
    "bench": "time real decode steps: transformers, eager, graphs, torch.compile, kernel by kernel",
    "gpu": "everything that matters on this machine's GPU in nine minutes, stage by stage",
    "compile": "our own torch.compile backend: pieces, a pass, a cache, and a second start",
    "validate": "hold the predictions against what others have measured",
    "trace": "write or sum up a timeline of one decode step (opens in Perfetto)",
}


class CheckFailed(RuntimeError):
    """A command found something wrong with the engine, not with its input."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 if a check failed, 2 on bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(words).parse_args(words, argparse.Namespace(typed=words))
    command = load(args.command)
    try:
        result = command.run(args, Console(stderr=True, quiet=args.json, highlight=False))
        if args.json:
            print(json.dumps(document(args.command, result), indent=2), flush=True)
        else:
            command.show(result, Console(highlight=False, soft_wrap=False))
    except BrokenPipeError:  # whoever was reading has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, MemoryError) as error:
        print(f"mini_engine {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except CheckFailed as error:
        print(f"mini_engine {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"mini_engine {args.command}: interrupted", file=sys.stderr)
        return 130
    return 0


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser. Only the command that is asked for is imported, to start fast."""
    parser = argparse.ArgumentParser(
        prog="python -m mini_engine",
        description="Predict, run and look at LLM decode: eager, piecewise and as one CUDA graph.",
        epilog="Each command has --help and --json. Start with: python -m mini_engine demo",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = next((word for word in words if word in COMMANDS), None)
    for name, teaches in COMMANDS.items():
        sub = commands.add_parser(
            name, help=teaches, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        if name == wanted:
            command = load(name)
            sub.description = command.__doc__
            command.add_arguments(sub)
    return parser


def load(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"mini_engine.cli.{name}")
