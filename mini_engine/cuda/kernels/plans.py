"""Which of the kernels' alternatives a step runs, as data: a benchmark puts them side by side.

In:  a plan's name. Out: a `KernelPlan`, one choice for everything of which there are alternatives.
     The ops take the name (a schema of torch knows strings).

"base" is what runs where nobody asks for another. Each of the others but "all" tries one idea, so
the difference from "base" is what that idea is worth. "all" puts together those that look best
before anything is measured (a thread's share stays as it is: with "dot", shorter threads make a
second wave). No compiler can tell which plan is best. The first run on a GPU does, and then the
other alternatives are deleted. `python -m mini_engine gpu` measures a plan as an arm of the
benchmark, such as "graph-5-pdl:dot".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Product = Literal["widened", "pairs", "dot"]


@dataclass(frozen=True)
class KernelPlan:
    """What the kernels of the five-kernel step do, where there is a choice."""

    # fused_attention.py: keys of a tile, and warps of a program that holds it in registers; 32 keys
    # of 128 numbers spill in one warp
    attention_tile: int = 16
    attention_warps: int = 1
    # combine.py: the last program combines the heads of its group in one tile, or one by one
    combine_together: bool = False
    # apart_attention.py: the current token is a split of its own, the others read only the past
    current_apart: bool = False
    # gemv_choice.py: bf16 widened one by one, read as pairs in an int32, or multiplied by tensor
    # cores (1 to 4 tokens of bf16; anything else is widened)
    product: Product = "widened"
    # gemv_choice.py: numbers of a weight that a thread holds: fewer make more threads, with less of
    # x each (8 warps where 4 would do)
    thread_elements: int = 64
    # gemv_variants.py: x comes through L1, so that the programs of a multiprocessor share it
    x_in_l1: bool = False
    # ahead.py: while QKV runs, all of O goes to L2, and during attention so many bytes of gate/up.
    # Bytes, since how many pay depends on the card: its L2, and how long its memory idles. 0: none
    prefetch: int = 0
    # persistent.py: a step of one token is one kernel, with grid barriers in it
    persistent: bool = False
    # from so many tokens on, a library's products with our norms, rope and attention around them
    library_from: int = 17

    @property
    def fewest_splits(self) -> int:
        """Programs that attention needs for a KV head."""
        return 2 if self.current_apart else 1


BASE = "base"
READ_AHEAD = 12 * 2**20  # bytes: about the first wave of gate/up's programs at 2,048 columns
PLANS: dict[str, KernelPlan] = {
    BASE: KernelPlan(),
    "attention": KernelPlan(attention_tile=32, attention_warps=4, combine_together=True),
    "attention-apart": KernelPlan(
        attention_tile=64, attention_warps=8, combine_together=True, current_apart=True
    ),
    "pairs": KernelPlan(product="pairs"),
    "dot": KernelPlan(product="dot"),
    "short-threads": KernelPlan(thread_elements=32),
    "x-in-l1": KernelPlan(x_in_l1=True),
    "prefetch": KernelPlan(prefetch=READ_AHEAD),
    "library": KernelPlan(library_from=5),
    "persistent": KernelPlan(persistent=True),
    "all": KernelPlan(
        attention_tile=64, attention_warps=8, combine_together=True, current_apart=True,
        product="dot", x_in_l1=True, prefetch=READ_AHEAD,
    ),
}  # fmt: skip


def plan_of(name: str) -> KernelPlan:
    """The plan of this name. ValueError, with all names, for one that there is not."""
    if name not in PLANS:
        raise ValueError(f"no plan {name!r}: use one of {', '.join(PLANS)}")
    return PLANS[name]
