"""What an engine is capable of that has only the parts which a learner has built.

In:  numbers of solved labs, before this one and now. Out: a line and, where the step has changed,
its lanes; then what the small model writes. The learner's files stand in the engine's place.

    python -m labs.support.growth 0,4 0,4,5
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from labs.support.lanes import drawn
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import named_shape
from mini_engine.sim.generate import generate, open_checkpoint
from mini_engine.sim.predict import Prediction, predict
from mini_engine.step.cards import load_spec

ONE_SIZE = [64]  # who has no ladder captures one size, and each batch is padded to it
MANY = 32  # requests side by side, of an engine that schedules
CHANGES = {"5": "a step is one graph", "8": "a graph for every size", "9": "prompts run in pieces",
           "10": f"{MANY} requests share a step"}  # fmt: skip


def mode_of(solved: Collection[str]) -> str:
    in_graphs, in_pieces = "5" in solved, "9" in solved
    names = {(True, True): "FULL_AND_PIECEWISE", (True, False): "FULL", (False, True): "PIECEWISE"}
    return names.get((in_graphs, in_pieces), "NONE")


def step(solved: Collection[str]) -> tuple[int, Prediction]:
    """Requests side by side, and a decode step of theirs: Qwen3-0.6B on an H200, predicted."""
    batch = MANY if "10" in solved else 1
    sizes = None if "8" in solved else ONE_SIZE
    spec, shape = load_spec("h200"), named_shape("qwen3-0.6b")
    return batch, predict(shape, spec, mode_of(solved), batch=batch, capture_sizes=sizes)


def main() -> None:
    before, now = (set(words.split(",")) - {""} for words in sys.argv[1:3])
    (few, was), (many, has) = step(before), step(now)
    was_s, now_s = 1e6 * few / was.itl_us, 1e6 * many / has.itl_us
    print(f"Your engine, Qwen3-0.6B on an H200 (predicted): {now_s:,.0f} tokens a second", end="")
    if now_s == was_s:
        to_come = [f"lab {lab} ({what})" for lab, what in CHANGES.items() if lab not in now]
        print(f", as before. {to_come[0]} is the next that changes it." if to_come else ".")
    else:
        print(f", before {was_s:,.0f}")
        longest = max(was.itl_us, has.itl_us)
        print(f"before\n{drawn(was.timeline, longest)}\nnow\n{drawn(has.timeline, longest)}")
    prompts = ["Return the", "Raise an error if"] if "10" in now else ["Return the"]
    sizes = None if "8" in now else [8]
    spec = load_spec("h200")
    written = generate(open_checkpoint(SHIPPED), spec, prompts, mode_of(now), capture_sizes=sizes,
                       max_new_tokens=16)  # fmt: skip
    for prompt, text in zip(prompts, written.texts, strict=True):
        print(f"It writes: {prompt}{' '.join(('x' + text).split())[1:]}")


if __name__ == "__main__":
    main()
