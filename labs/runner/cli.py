"""The command line of the labs: `./lab COMMAND`.

In:  words. Out: text for people, or JSON with `--json`. The exit code is 0 if all is well, 1 if a
lab does not pass yet, and 2 on bad input, with one line that says what to do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from labs.runner import Done
from mini_engine.cli.ending import guarded
from mini_engine.cli.terminal import Parser, Screen

HELP = """\
The labs of Launch Bound: files of the engine with holes in them, which you fill until every test
passes. `./lab` alone says where you stand and what comes next.

{commands}

{more}Your files are in labs/mine, which git ignores: pulling a newer version never touches them.
"""
DAILY = ("start", "watch", "check", "hint", "show", "predict")


ARGUMENTS: dict[str, dict[str, Any]] = {  # name or flag -> what `add_argument` takes
    "number": {"metavar": "N", "nargs": "?", "help": "the lab, else the current one"},
    "words": {"nargs": argparse.REMAINDER, "help": "passed on as they are"},
    "--json": {"action": "store_true", "help": "print the result as JSON"},
    "--hole": {"type": int, "metavar": "K", "help": "of this hole, counted from 1"},
    "--all": {"action": "store_true", "help": "show every failing test in full"},
    "--impl": {"default": "mine", "metavar": "WHOSE",
               "help": "mine, reference, or wrong/NAME for a known wrong answer (default: mine)"},
    "--hard": {"action": "store_true", "help": "leave out the words of the TODOs"},
    "--yes": {"action": "store_true", "help": "also while the lab is red"},
    "--question": {"type": int, "metavar": "K", "help": "answer this question alone"},
    "--say": {"metavar": "ANSWER", "help": "a number in its unit, or the number of a choice"},
    "--because": {"default": "", "metavar": "TEXT", "help": "why you expect it"},
    "--undo": {"action": "store_true", "help": "take the mistake back and show it"},
    "--seed": {"type": int, "metavar": "S", "help": "the same mistake for the same seed"},
    "--jobs": {"type": int, "default": 2, "metavar": "J", "help": "runs at a time (default 2)"},
    "--sample": {"type": int, "metavar": "K", "help": "of K mutants a lab, always the same"},
}  # fmt: skip

# name -> help, arguments, and MODULE:FUNCTION below labs.runner, imported when the command is typed
COMMANDS = {
    "start": ("cut the holes of a lab into a file of your own; a file that exists is kept",
              "--json number --hard", "commands:run_start"),
    "watch": ("check whenever you save, until Ctrl-C",
              "number --hole", "commands:run_watch"),
    "check": ("run the tests of a lab on your file, or those of one hole",
              "--json number --hole --impl --all", "commands:run_check"),
    "hint": ("show one more hint",
             "--json number --hole", "commands:run_hint"),
    "show": ("show on your own code what the lab is about",
             "number words", "demo:run_show"),
    "predict": ("say what you expect before a lab; after green, see the key",
                "--json number --question --say --because", "predict:run_predict"),
    "list": ("show every lab, how far you are, and the next step",
             "--json", "commands:run_list"),
    "demo": ("run the demo, or any command of the engine, with your solved files in place",
             "words", "demo:run_demo"),
    "measure": ("run the measuring step of a GPU lab, or read a run that was kept",
                "number words", "demo:run_measure"),
    "ledger": ("show how good your predictions were, and whether they got better",
               "--json", "predict:run_ledger"),
    "diff": ("show how your file differs from the engine's",
             "--json number --yes", "commands:run_diff"),
    "solution": ("show how the engine itself fills the holes",
                 "--json number --hole --yes", "commands:run_solution"),
    "reset": ("cut a lab anew and keep what you wrote as a backup",
              "--json number --hard", "commands:run_reset"),
    "update": ("carry your code over into files cut from this engine; the old ones are kept. "
               "Without a lab: of all that need it",
               "--json number", "commands:run_update"),
    "sabotage": ("make one small mistake in your passing file: find it from what it does",
                 "--json number --undo --seed", "sabotage:run_sabotage"),
    "mutate": ("make small mistakes in the engine's way and show which no test notices. "
               "Without a lab: in every lab",
               "--json number --hole --sample --jobs", "mutate:run_mutate"),
    "doctor": ("show versions and the GPU, and what is emulated here and why",
               "--json", "doctor:run_doctor"),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, `list` if none is given. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ["list"]
    if words[0] in ("-h", "--help", "help", "--all"):
        print(told(every="--all" in words), end="")
        return 0
    known = [f" {word}" for word in words[:1] if word in COMMANDS]
    name = "".join(["labs", *known])
    return guarded(name, lambda: _run(words), as_json="--json" in words)


def _run(words: list[str]) -> int:
    args = build_parser().parse_args(words)
    as_json = getattr(args, "json", False)
    console = Screen(quiet=as_json, markup=True)
    module, _, function = args.run.partition(":")
    run = getattr(import_module(f"labs.runner.{module}"), function)
    done: Done = run(args, console)
    if as_json:
        print(json.dumps(done.result, indent=2))
    return int(done.code)


def build_parser() -> Parser:
    """A subcommand for each row of `COMMANDS`."""
    parser = Parser(prog="./lab")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (does, arguments, run) in COMMANDS.items():
        sub = subparsers.add_parser(name, description=does)
        for argument in arguments.split():
            sub.add_argument(argument, **ARGUMENTS[argument])
        sub.set_defaults(run=run)
    return parser


def told(*, every: bool = False) -> str:
    """The help: the six commands of every day, or all of them."""
    rows = [f"  ./lab {name:10}{does}" for name, (does, *_) in COMMANDS.items()
            if every or name in DAILY]  # fmt: skip
    more = "" if every else "`./lab --all` lists the others: demo, diff, solution, sabotage, …\n"
    return HELP.format(commands="\n".join(rows), more=more)
