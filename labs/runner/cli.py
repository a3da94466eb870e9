"""The runner of the labs: what a learner types.

In:  words. Out: text for people, JSON with `--json`; exit code 0 when green, 1 when a lab is not
passed yet, 2 on bad input, with one clear line.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from labs.runner import show, workspace
from labs.runner.catalogue import Lab, all_labs, lab_number
from labs.runner.checking import Report, check_files, check_implementation, shown
from labs.runner.cutter import CutError, body_of, open_holes
from labs.runner.workspace import Progress

HELP = """\
The labs of Launch Bound: the engine with holes in it, solved until every test is green.

  python -m labs                where you stand, and the next step
  python -m labs start 5        cut the holes of lab 5 into your own file
  python -m labs check          run the tests of the lab you are in
  python -m labs hint           the next hint for the first open hole
  python -m labs demo           the engine's demo with your solved files in its place

Your files are in labs/mine, which git ignores: pulling a newer version never touches them.
"""
COMMANDS = {
    "list": "all labs: progress, minutes, what each needs, the next step",
    "start": "cut the holes of a lab into your own file (kept if it is there already)",
    "check": "run the tests of a lab on your file",
    "hint": "show one more hint, or with --all those you have seen",
    "watch": "check again whenever you save",
    "demo": "run the engine, or any command of it, with your solved files in the place of its own",
    "measure": "the measuring step of a GPU lab: a real run, or the captured one",
    "diff": "how your file differs from the engine's",
    "reset": "cut a lab anew; what you wrote is kept as a backup",
    "solution": "the engine's own way to fill the holes",
    "doctor": "versions, GPU, and what will be emulated here and why",
}


class NotGreenError(Exception):
    """A check that ran and is red: exit code 1."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    args = build_parser().parse_args(list(sys.argv[1:] if argv is None else argv) or ["list"])
    console = Console(highlight=False, quiet=getattr(args, "json", False))
    try:
        result = RUN[args.command](args, console)
    except NotGreenError as red:
        if args.json:
            print(json.dumps(red.args[0], indent=2))
        return 1
    except (ValueError, OSError, RuntimeError) as error:
        print(f"labs {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if getattr(args, "json", False):
        print(json.dumps(result, indent=2))
    return int(result) if args.command in ("demo", "measure") else 0


def build_parser() -> argparse.ArgumentParser:
    """`list` is what no command means."""
    parser = argparse.ArgumentParser(
        prog="python -m labs",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, teaches in COMMANDS.items():
        sub = commands.add_parser(name, help=teaches, description=teaches)
        if name in ("demo", "measure"):
            if name == "measure":
                sub.add_argument("number", type=int, help="the lab's number")
            sub.add_argument("words", nargs=argparse.REMAINDER, help="passed on as they are")
            continue
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        if name not in ("list", "doctor"):
            sub.add_argument(
                "number", type=int, nargs="?", help="the lab (default: the current one)"
            )
        if name in ("hint", "solution"):
            sub.add_argument("--hole", type=int, metavar="K", help="of this hole, counted from 1")
        if name == "hint":
            sub.add_argument("--all", action="store_true", help="again, all that were shown so far")
        if name == "check":
            sub.add_argument(
                "--impl",
                default="mine",
                metavar="WHOSE",
                help="mine, reference, or wrong/NAME: a known-wrong answer (default: mine)",
            )
            sub.add_argument("--all", action="store_true", help="every failing test in full")
    return parser


# ---------------------------------------------------------------- commands


def run_list(args: argparse.Namespace, console: Console) -> Any:
    labs, progress = all_labs(), workspace.load_progress()
    if not progress.labs and not args.json:  # the first minute: lab 1 is cut, one command to run
        workspace.start(labs[0], progress)
        workspace.save_progress(progress)
        show.welcome(labs[0], console)
        return None
    show.listing(labs, progress, console)
    return [show.standing(lab, progress) for lab in labs]


def run_start(args: argparse.Namespace, console: Console) -> Any:
    progress = workspace.load_progress()
    lab = _chosen(args, progress)
    written = workspace.start(lab, progress)
    workspace.save_progress(progress)
    show.started(lab, bool(written), console)
    return {"lab": lab.name, "files": [str(p) for p in workspace.my_files(lab).values()]}


def run_check(args: argparse.Namespace, console: Console) -> Any:
    progress = workspace.load_progress()
    lab = _chosen(args, progress)
    show.refuse_missing_packages(lab)
    with console.status(f"lab {lab.number}: running its tests"):
        if args.impl == "mine":
            report = check_mine(lab, progress)
        else:
            report = check_implementation(lab, args.impl)
    show.report(report, console, whose=args.impl, every=args.all, progress=progress)
    result = show.as_json(report)
    if not report.passed:
        raise NotGreenError(result)
    return result


def check_mine(lab: Lab, progress: Progress) -> Report:
    """Check the learner's files and write down what came of it."""
    if not workspace.started(lab):
        raise ValueError(f"lab {lab.number} is not started: python -m labs start {lab.number}")
    report = check_files(lab, workspace.my_files(lab))
    state = progress.of(lab)
    state.checks += 1
    if report.passed:
        state.passed = state.passed or workspace.now()
        state.passed_hash = workspace.my_digest(lab)
    progress.current = lab.number
    workspace.save_progress(progress)
    return report


def run_hint(args: argparse.Namespace, console: Console) -> Any:
    progress = workspace.load_progress()
    lab = _chosen(args, progress)
    state = progress.of(lab)
    if args.hole is not None and not 1 <= args.hole <= len(lab.holes):
        raise ValueError(f"lab {lab.number} has holes 1 to {len(lab.holes)}, given {args.hole}")
    hole = lab.holes[args.hole - 1] if args.hole else _first_open(lab)
    seen = state.hints.get(str(hole.number), 0)
    if not args.all:
        seen = state.hints[str(hole.number)] = min(seen + 1, len(hole.hints))
        workspace.save_progress(progress)
    show.hints(lab, hole, seen, console)
    return {"hole": hole.name, "hints": list(hole.hints[:seen])}


def run_watch(args: argparse.Namespace, console: Console) -> Any:
    progress = workspace.load_progress()
    lab = _chosen(args, progress)
    show.refuse_missing_packages(lab)
    before = None
    while True:
        files = workspace.my_files(lab).values()
        stamps = [path.stat().st_mtime_ns if path.exists() else 0 for path in files]
        if stamps != before:
            before = stamps
            report = check_mine(lab, progress)
            show.report(report, console, whose="mine", every=False, progress=progress)
            if report.passed:
                return show.as_json(report)
            console.print("[dim]watching: save to check again, Ctrl-C to stop[/]")
        time.sleep(0.3)


def run_demo(args: argparse.Namespace, console: Console) -> int:
    from labs.runner.play import play

    return play(args.words or ["demo"], console)


def run_measure(args: argparse.Namespace, console: Console) -> int:
    from labs.runner.play import measure

    lab = lab_number(args.number)
    show.refuse_missing_packages(lab)
    return measure(lab, args.words, console)


def run_diff(args: argparse.Namespace, console: Console) -> Any:
    lab = _chosen(args, workspace.load_progress())
    lines: list[str] = []
    to_mend = lab.to_mend()  # the engine's own text would give the fault away
    for file, path in workspace.my_files(lab).items():
        if not path.exists():
            raise ValueError(f"lab {lab.number} is not started: python -m labs start {lab.number}")
        mine = path.read_text()
        if file in to_mend:
            lines += _diff(to_mend[file], mine, f"{file} as it was given", shown(path))
        else:
            lines += _diff(mine, lab.reference()[file], shown(path), lab.sources[file])
    show.diff(lines, console, "what you were given" if to_mend else "the engine's")
    return lines


def run_reset(args: argparse.Namespace, console: Console) -> Any:
    progress = workspace.load_progress()
    lab = _chosen(args, progress)
    backups = workspace.reset(lab, progress)
    workspace.save_progress(progress)
    for backup in backups:
        console.print(f"kept what you had: {shown(backup)}")
    show.started(lab, True, console)
    return {"lab": lab.name, "backups": [str(path) for path in backups]}


def run_solution(args: argparse.Namespace, console: Console) -> Any:
    lab = _chosen(args, workspace.load_progress())
    if args.hole is not None and not 1 <= args.hole <= len(lab.holes):
        raise ValueError(f"lab {lab.number} has holes 1 to {len(lab.holes)}, given {args.hole}")
    holes = [lab.holes[args.hole - 1]] if args.hole else list(lab.holes)
    texts, to_mend = lab.reference(), lab.to_mend()
    found = {
        hole.name: "\n".join(_diff(to_mend[hole.file], texts[hole.file], "broken", "mended"))
        if hole.broken
        else body_of(texts[hole.file], hole.name)
        for hole in holes
    }
    show.solution(lab, found, console)
    return found


def run_doctor(_args: argparse.Namespace, console: Console) -> Any:
    from labs.runner.doctor import examine

    findings = examine()
    show.findings(findings, console)
    return findings


RUN: dict[str, Callable[[argparse.Namespace, Console], Any]] = {
    name: globals()[f"run_{name}"] for name in COMMANDS
}


# ---------------------------------------------------------------- parts


def _chosen(args: argparse.Namespace, progress: Progress) -> Lab:
    """The lab that was asked for, or the current one."""
    if args.number is not None:
        return lab_number(args.number)
    if not progress.current:
        raise ValueError("no lab is started yet: python -m labs start 1")
    return lab_number(progress.current)


def _diff(before: str, after: str, left: str, right: str) -> list[str]:
    lines = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(*lines, left, right, lineterm=""))


def _first_open(lab: Lab) -> Any:
    """The first hole that is still open in the learner's file; the first one if none is."""
    to_mend = lab.to_mend()
    for hole in lab.holes:
        path = workspace.my_files(lab)[hole.file]
        if not path.exists():
            continue
        if hole.broken:
            if path.read_text() == to_mend[hole.file]:
                return hole
            continue
        try:
            if open_holes(path.read_text(), [hole.name]):
                return hole
        except (CutError, SyntaxError):
            return hole
    return lab.holes[0]
