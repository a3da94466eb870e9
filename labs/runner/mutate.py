"""`./lab mutate`: the mutation score of the labs, with every mistake that no test notices.

In:  the parsed words. Out: a line a lab and the survivors, or JSON; exit code 1 if a lab stays
below the bar or its list of equivalent mutants is wrong.
"""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from labs.runner import Done
from labs.runner.cut.catalogue import all_labs, lab_number
from labs.runner.mistakes.mutation import Score, all_mutants, fixed_sample, score


def run_mutate(args: Namespace, console: Console) -> Done:
    if args.jobs < 1 or (args.sample is not None and args.sample < 1):
        raise ValueError("--jobs and --sample are at least 1")
    labs = [lab_number(args.number)] if args.number is not None else all_labs()
    if args.hole is not None and (args.number is None or not 1 <= args.hole <= len(labs[0].holes)):
        raise ValueError(f"--hole {args.hole} is no hole of one lab: labs mutate N --hole K")
    scores = []
    for lab in labs:
        chosen = fixed_sample(lab, args.sample) if args.sample else all_mutants(lab, args.hole)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"lab {lab.number}", total=len(chosen))
            scores.append(
                score(lab, chosen, jobs=args.jobs, tick=lambda t=task: progress.advance(t))  # type: ignore[misc]
            )
        _show(scores[-1], console)
    good = all(score.good for score in scores)
    return Done([score.as_json() for score in scores], 0 if good else 1)


def _show(score: Score, console: Console) -> None:
    counted = len(score.killed) + len(score.alive)
    sign = "[green]✓[/]" if score.good else "[red]✗[/]"
    console.print(
        f"{sign} [bold]lab {score.lab.number}: {score.lab.title}[/]: {len(score.killed)} of "
        f"{counted} mutants die ({score.share:.1%}), {len(score.equivalent)} more are equivalent, "
        f"{score.seconds:.0f} s"
    )
    for one in score.alive:
        console.print(f"    alive  {one.hole}: {escape(one.change)}", soft_wrap=True)
    for line in score.wrong:
        console.print(f"    equivalent.toml: {escape(line)}", soft_wrap=True)
