"""What an engine is capable of that has only the parts which a learner has built.

In:  numbers of solved labs, before this one and now. Out: a line and, where it has become faster,
the lanes of a step; then what the small model writes. The learner's files stand in the engine's
place, and what has not been built is left out: no lab 5, no graphs.

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

ONE_SIZE = [64]  # who has no ladder captures one size, and each batch is padded to it
PROMPTS = ["Return the", "Raise an error if", "Remove the", "Convert a string to"]
CHANGES = {"5": "a step is one graph", "10": f"{len(PROMPTS)} requests share a step"}


def mode_of(solved: Collection[str]) -> str:
    return "FULL" if "5" in solved else "NONE"


def served(solved: Collection[str]) -> Generation:
    """The small model's texts, written by the learner's files on a simulated H200."""
    side_by_side = len(PROMPTS) if "10" in solved else 1
    sizes = None if "8" in solved else ONE_SIZE
    return generate(open_checkpoint(SHIPPED), load_spec("h200"), PROMPTS[:side_by_side],
                    mode_of(solved), capture_sizes=sizes, max_new_tokens=16)  # fmt: skip


def rate(written: Generation) -> float:
    """Tokens a second."""
    return 1e6 * sum(len(one.tokens) for one in written.completions) / written.simulated_us


def step(solved: Collection[str]) -> Prediction:
    """A decode step of Qwen3-0.6B on an H200 by an engine of these labs, predicted."""
    batch, sizes = len(PROMPTS) if "10" in solved else 1, None if "8" in solved else ONE_SIZE
    return predict(named_shape("qwen3-0.6b"), load_spec("h200"), mode_of(solved), batch=batch,
                   capture_sizes=sizes)  # fmt: skip


def main() -> None:
    before, now = (set(words.split(",")) - {""} for words in sys.argv[1:3])
    written = served(now)
    was_s, now_s = rate(served(before)), rate(written)
    print(
        f"Your engine, with the small model on a simulated H200: {now_s:,.0f} tokens a second",
        end="",
    )
    if f"{now_s:.0f}" == f"{was_s:.0f}":
        to_come = [f"lab {lab} ({what})" for lab, what in CHANGES.items() if lab not in now]
        print(f", as before. The next to change it is {to_come[0]}." if to_come else ".")
    else:
        print(f", before {was_s:,.0f}. A step of Qwen3-0.6B, launched so (predicted):")
        print(LEGEND)
        was, has = step(before), step(now)
        longest = max(was.itl_us, has.itl_us)
        print(f"before\n{drawn(was.timeline, longest)}\nnow\n{drawn(has.timeline, longest)}")
        for prompt, text in zip(PROMPTS, written.texts, strict=False):
            print(f"It writes: {prompt}{' '.join(('x' + text).split())[1:]}")


if __name__ == "__main__":
    main()
