"""The command line of the labs: `python -m labs COMMAND`.

In:  words. Out: text for people, or JSON with `--json`. The exit code is 0 if all is well, 1 if a
lab does not pass yet, and 2 on bad input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from labs.runner import Done
from mini_engine.cli.ending import guarded
from mini_engine.cli.terminal import Parser, Screen

HELP = """\
The labs of Launch Bound: files of the engine with holes in them, which you fill until every test
passes.

  python -m labs                where you stand, and the next step
  python -m labs start 5        cut the holes of lab 5 into a file of your own
  python -m labs check          run the tests of the lab you are in
  python -m labs hint           the next hint for the first open hole
  python -m labs demo           the engine's demo with your solved files in its place

Your files are in labs/mine, which git ignores: pulling a newer version never touches them. When
they no longer fit the engine, `python -m labs update` carries your code over.
"""


class Command(NamedTuple):
    """One row of `COMMANDS`. An argument is its name or flag, and what `add_argument` takes."""

    name: str
    help: str
    arguments: tuple[tuple[str, dict[str, Any]], ...]
    run: str  # MODULE:FUNCTION below labs.runner, imported when the command is typed


JSON = ("--json", {"action": "store_true", "help": "print the result as JSON"})
LAB = ("number", {"type": int, "nargs": "?", "help": "the lab (default: the current one)"})
THIS_LAB = ("number", {"type": int, "help": "the lab"})
STALE_LAB = ("number", {"type": int, "nargs": "?", "help": "the lab (default: all that need it)"})
ONE_LAB = ("number", {"type": int, "nargs": "?", "help": "the lab (default: every lab)"})
HOLE = ("--hole", {"type": int, "metavar": "K", "help": "of this hole, counted from 1"})
WORDS = ("words", {"nargs": argparse.REMAINDER, "help": "passed on as they are"})
EVERY_TEST = ("--all", {"action": "store_true", "help": "show every failing test in full"})
WHOSE = "mine, reference, or wrong/NAME for a known wrong answer (default: mine)"
IMPL = ("--impl", {"default": "mine", "metavar": "WHOSE", "help": WHOSE})
HARD = ("--hard", {"action": "store_true", "help": "leave out the words of the TODOs"})
YES = ("--yes", {"action": "store_true", "help": "also while the lab is red"})
QUESTION = ("--question", {"type": int, "metavar": "K", "help": "answer this question alone"})
SAY = ("--say", {"metavar": "ANSWER", "help": "a number in its unit, or the number of a choice"})
BECAUSE = ("--because", {"default": "", "metavar": "TEXT", "help": "why you expect it"})
UNDO = ("--undo", {"action": "store_true", "help": "take the mistake back and show it"})
SEED = ("--seed", {"type": int, "metavar": "S", "help": "the same mistake for the same seed"})
JOBS = ("--jobs", {"type": int, "default": 2, "metavar": "J", "help": "runs at a time (default 2)"})
SAMPLE = ("--sample", {"type": int, "metavar": "K", "help": "of K mutants a lab, always the same"})

COMMANDS = (
    Command("list", "show every lab, how far you are, and the next step",
            (JSON,), "commands:run_list"),
    Command("start", "cut the holes of a lab into a file of your own; a file that exists is kept",
            (JSON, LAB, HARD), "commands:run_start"),
    Command("check", "run the tests of a lab on your file",
            (JSON, LAB, IMPL, EVERY_TEST), "commands:run_check"),
    Command("hint", "show one more hint",
            (JSON, LAB, HOLE), "commands:run_hint"),
    Command("watch", "check again whenever you save, until Ctrl-C",
            (LAB,), "commands:run_watch"),
    Command("show", "show on your own code what the lab is about",
            (LAB, WORDS), "demo:run_show"),
    Command("demo", "run the demo, or any command of the engine, with your solved files in place",
            (WORDS,), "demo:run_demo"),
    Command("measure", "run the measuring step of a GPU lab, or read the captured run",
            (THIS_LAB, WORDS), "demo:run_measure"),
    Command("predict", "say what you expect before a lab; after green, see the key",
            (JSON, LAB, QUESTION, SAY, BECAUSE), "predict:run_predict"),
    Command("ledger", "show how good your predictions were, and whether they got better",
            (JSON,), "predict:run_ledger"),
    Command("diff", "show how your file differs from the engine's",
            (JSON, LAB, YES), "commands:run_diff"),
    Command("solution", "show how the engine itself fills the holes",
            (JSON, LAB, HOLE, YES), "commands:run_solution"),
    Command("reset", "cut a lab anew and keep what you wrote as a backup",
            (JSON, LAB, HARD), "commands:run_reset"),
    Command("update", "carry your code over into files cut from this engine; the old ones are kept",
            (JSON, STALE_LAB), "commands:run_update"),
    Command("sabotage", "make one small mistake in your passing file: find it from what it does",
            (JSON, LAB, UNDO, SEED), "sabotage:run_sabotage"),
    Command("mutate", "make small mistakes in the engine's way and show which no test notices",
            (JSON, ONE_LAB, HOLE, SAMPLE, JOBS), "mutate:run_mutate"),
    Command("doctor", "show versions and the GPU, and what is emulated here and why",
            (JSON,), "doctor:run_doctor"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, `list` if none is given. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["list"]
    known = [f" {word}" for word in words[:1] if word in {command.name for command in COMMANDS}]
    name = "".join(["labs", *known])
    return guarded(name, lambda: _run(words), as_json="--json" in words)


def _run(words: list[str]) -> int:
    args = build_parser().parse_args(words)
    as_json = getattr(args, "json", False)
    console = Screen(highlight=False, quiet=as_json, soft_wrap=True)  # commands stay on one line
    module, _, function = args.run.partition(":")
    run = getattr(import_module(f"labs.runner.{module}"), function)
    done: Done = run(args, console)
    if as_json:
        print(json.dumps(done.result, indent=2))
    return int(done.code)


def build_parser() -> Parser:
    """A subcommand for each row of `COMMANDS`."""
    parser = Parser(
        prog="python -m labs",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help, description=command.help)
        for name, options in command.arguments:
            sub.add_argument(name, **options)
        sub.set_defaults(run=command.run)
    return parser
