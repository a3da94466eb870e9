"""`./lab demo`, `./lab show`, `./lab measure`: programs with the learner's files in place.

In:  a command of `mini_engine`, or a lab's `show.py` or `measure.py`. Out: what it prints.

`programs.py` puts the files in place and runs them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console

from labs.runner import Done, command, workspace
from labs.runner.commands import chosen_lab, refuse_missing_packages
from labs.runner.cut.catalogue import Lab, all_labs
from labs.runner.doctor import nvidia_gpu
from labs.runner.programs import Texts, merged, run

_KERNELS = "mini_engine.cuda.kernels."
# Files whose kernels run when a layer is nine of them, and not when it is five.
OF_NINE = {_KERNELS + name for name in ("norm", "activation", "rope", "attention")}
KERNELS = OF_NINE | {_KERNELS + name for name in ("paged", "gemv")}
# With one multiprocessor to fill, a kernel is few programs: the interpreter runs one at a time.
IN_THE_INTERPRETER = {"TRITON_INTERPRET": "1", "MINI_ENGINE_SM_COUNT": "1"}
A_TASTE = ["--max-new-tokens", "3", "--mode", "NONE"]
INTERPRETER = (
    "No NVIDIA GPU here: your kernels run in Triton's interpreter, at a few seconds a step, "
    "so unless you say otherwise 3 tokens a prompt are written, without graphs and their warm-up."
)


def run_demo(args: Namespace, console: Console) -> Done:
    """Run `python -m mini_engine WORDS`, `demo` by default, with every solved lab in place."""
    words, progress = args.words or ["demo"], workspace.load_progress()
    solved = []
    for lab in [lab for lab in all_labs() if lab.of_the_engine]:
        state = workspace.state(lab, progress)
        if state == "stale":
            console.print(f"Left out: {workspace.ask_for_update(lab)}")
        elif state == "failed":
            check = command("check", lab.number)
            console.print(f"Left out: lab {lab.number}, whose last check failed ({check})")
        elif state in workspace.PASSED:
            solved.append(lab)
    texts = merged(solved)
    if texts:
        numbers = ", ".join(lab.number for lab in solved)
        console.print(f"Your code of lab {numbers} runs in the place of the engine's:")
        for module in texts:
            console.print(f"  {module}")
    else:
        console.print("No lab about the engine is solved yet, so this is its own code.")
    environment: Texts = {}
    if uses_kernels(words) and texts.keys() & KERNELS:  # options of the learner's own come later
        defaults = ["--kernels", "9"] if texts.keys() & OF_NINE else []
        if not nvidia_gpu():
            console.print(INTERPRETER)
            environment, defaults = IN_THE_INTERPRETER, [*defaults, *A_TASTE]
        words = [words[0], *defaults, *words[1:]]
    console.print()
    return Done(code=run("mini_engine", words, texts, environment))


def uses_kernels(words: Sequence[str]) -> bool:
    """Whether the command writes with kernels: the plain model has none."""
    said = " ".join(words).replace("=", " ")
    return [*words[:1]] == ["generate"] and " cuda" in said and "--kernels 0" not in said


def run_measure(args: Namespace, console: Console) -> Done:
    """Run a lab's `measure.py` with the learner's file of that lab in place, if it has passed."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    refuse_missing_packages(lab)
    module = program_of(lab, "measure", progress)
    mine = workspace.solved(lab, progress)
    if not mine:
        console.print("You have not passed this lab yet, so the engine's own code is measured.\n")
    return Done(code=run(module, args.words, merged([lab] if mine else [])))


def run_show(args: Namespace, console: Console) -> Done:
    """Run the lab's show.py on the learner's code, or on the engine's if the lab has not passed."""
    from labs.runner.sabotage import is_sabotaged

    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    module = program_of(lab, "show", progress)
    sabotaged = is_sabotaged(lab, progress)
    mine = workspace.solved(lab, progress) or sabotaged
    whose = "your own code" if mine else "the engine's code, for this lab has not passed"
    whose += ", with a mistake in it" if sabotaged else ""
    console.print(f"[dim]lab {lab.number}, on {whose}:[/]\n")
    return Done(code=run(module, args.words, merged([lab]) if mine else {}, lab.environment))


def program_of(lab: Lab, name: str, progress: workspace.Progress) -> str:
    """The module of a lab's show.py or measure.py. ValueError if it has none, or if the learner's
    files no longer fit the engine."""
    if not (lab.folder / f"{name}.py").exists():
        raise ValueError(f"lab {lab.number} has nothing to {name}: its tests are the proof")
    if workspace.stale(lab, progress):
        raise ValueError(workspace.ask_for_update(lab))
    return f"labs.{lab.name}.{name}"
