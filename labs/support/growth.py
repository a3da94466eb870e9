"""What an engine is capable of that has only the parts which a learner has built.

In:  numbers of solved labs, before this one and now. Out: a line, the same for every lab; where it
has become faster the lanes of a step and what the small model writes, else what this lab changed.
The learner's files stand in the engine's place, and what has not been built is left out: no lab 5,
no graphs. With `path`: what the short path has cut from a step, lab by lab.

    python -m labs.support.growth 0,4 0,4,5
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from labs.support.lanes import LEGEND, drawn
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import named_shape
from mini_engine.sim.generate import Generation, generate, open_checkpoint
from mini_engine.sim.predict import Prediction, predict
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time

ONE_SIZE = [64]  # who has no ladder captures one size, and each batch is padded to it
PROMPTS = ["Return the", "Raise an error if", "Remove the", "Convert a string to"]
WHAT = "{} on an H200 (predicted)"
CHANGES = {
    "5": "a step is one graph",
    "8": "a graph of the batch's own size",
    "10": f"{len(PROMPTS)} requests share a step",
}
ELSE = {  # what the others change
    "3": "Before a step runs you can say which bytes it reads, and so how short it can be.",
    "4": "You can say of any card what launching costs, and from which batch on it is hidden.",
    "7": "It is your cache that keeps it so: the hundredth token costs no more than the first.",
    "8b": "Its graphs share one memory, of your allocator.",
    "9": "Steps whose attention changes have graphs too, in pieces.",
    "9b": "Each batch gets the graph that fits it, or the words why not.",
    "12": "Attention reads a long context in tiles, and keeps no scores.",
    "15b": "On a GPU the same graphs are PyTorch's own, captured by you.",
}
PATH = (  # what cut a step short, the labs that did it, those that a step had then, tokens a replay
    ("launched from Python", "4: you know why", "", 1),
    ("one graph for every batch", "5, which 6 and 7 made right", "5", 1),
    ("a graph of its own size", "8", "5,8", 1),
    ("eight steps a replay", "15b", "5,8", 8),
)


def mode_of(solved: Collection[str]) -> str:
    return "FULL" if "5" in solved else "NONE"


def served(solved: Collection[str]) -> Generation:
    """The small model's texts, written by the learner's files on a simulated H200."""
    side_by_side = len(PROMPTS) if "10" in solved else 1
    sizes = None if "8" in solved else ONE_SIZE
    return generate(open_checkpoint(SHIPPED), load_spec("h200"), PROMPTS[:side_by_side],
                    mode_of(solved), capture_sizes=sizes, max_new_tokens=16)  # fmt: skip


def step(solved: Collection[str]) -> Prediction:
    """A decode step of Qwen3-0.6B on an H200 by an engine of these labs, predicted."""
    batch, sizes = len(PROMPTS) if "10" in solved else 1, None if "8" in solved else ONE_SIZE
    return predict(named_shape("qwen3-0.6b"), load_spec("h200"), mode_of(solved), batch=batch,
                   capture_sizes=sizes)  # fmt: skip


def rate(solved: Collection[str]) -> float:
    """Tokens a second of that engine."""
    return 1e6 * (len(PROMPTS) if "10" in solved else 1) / step(solved).itl_us


def grown(before: set[str], now: set[str]) -> None:
    was_s, now_s = rate(before), rate(now)
    readers = f"{len(PROMPTS)} readers" if "10" in now else "one reader"
    what = WHAT.format(f"Your engine, Qwen3-0.6B for {readers}")
    print(f"{what}: {now_s:,.0f} tokens a second", end="")
    if f"{now_s:.0f}" == f"{was_s:.0f}":
        to_come = [f"lab {lab} ({what})" for lab, what in CHANGES.items() if lab not in now]
        print(f", as before. The next to change it is {to_come[0]}." if to_come else ".")
        for lab in sorted((now - before) & ELSE.keys()):
            print(ELSE[lab])
        return
    print(f", before {was_s:,.0f}. A step of it:")
    print(LEGEND)
    was, has = step(before), step(now)
    longest = max(was.itl_us, has.itl_us)
    print(f"before\n{drawn(was.timeline, longest)}\nnow\n{drawn(has.timeline, longest)}")
    for prompt, text in zip(PROMPTS, served(now).texts, strict=False):
        print(f"The small model writes by it: {prompt}{' '.join(('x' + text).split())[1:]}")


def path() -> None:
    """The bar of chapter 0 for one reader, as the labs of the short path have cut it."""
    print(WHAT.format("A token of Qwen3-0.6B for one reader") + ":")
    longest = step(()).itl_us
    for what, labs, solved, tokens in PATH:
        us = step(solved.split(",")).itl_us
        if tokens > 1:
            spec, shape = load_spec("h200"), StepShape.decode(1, 512)
            ops = step_ops(named_shape("qwen3-0.6b"), shape, spec.ops)
            us = step_time(ops * tokens, spec, "full", 1).itl_us / tokens
        bar = "█" * max(1, round(40 * us / longest))
        print(f"{us / 1e3:5.2f} ms {bar:40}  {what} (lab {labs})")


def main() -> None:
    if sys.argv[1:] == ["path"]:
        path()
        return
    before, now = (set(words.split(",")) - {""} for words in sys.argv[1:3])
    grown(before, now)


if __name__ == "__main__":
    main()
