"""Random PyTorch programs whose results are exact, to be run eagerly and as graphs.

All numbers are small integers held in float32, and every step clamps them to ±8: sums and products
are exact in any order, so that an eager run and a replay must agree to the last bit on any device,
whatever kernel it picks. Programs keep views, drop tensors, and write in place through either.
Tensors take one to four of the allocator's 512-byte blocks, so that blocks are split and joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

WIDTH = 64
LIMIT = 8


@dataclass(frozen=True, eq=False)
class Inputs:
    """The static buffers of a program over `rows` rows."""

    x: Tensor  # (rows, WIDTH)
    state: Tensor  # (8, WIDTH), a cache that programs write to
    slots: Tensor  # (rows,) int64, where they write
    weight: Tensor  # (WIDTH, WIDTH)

    @staticmethod
    def random(rows: int, seed: int, device: torch.device) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def numbers(*shape: int) -> Tensor:
            return torch.randint(-3, 4, shape, generator=generator).float().to(device)

        slots = torch.randperm(8, generator=generator)[:rows].to(device)
        return Inputs(numbers(rows, WIDTH), numbers(8, WIDTH), slots, numbers(WIDTH, WIDTH))

    def copy_(self, other: Inputs) -> None:
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.copy_(theirs)


@dataclass(frozen=True)
class Program:
    """Steps over a list of live tensors: (what, index of one operand, index of the other)."""

    rows: int
    steps: tuple[tuple[str, int, int], ...]

    def run(self, inputs: Inputs) -> list[Tensor]:
        """What is live at the end, each (rows, WIDTH)."""
        live = [inputs.x, inputs.x * 1]
        for what, i, j in self.steps:
            a, b = live[i % len(live)], live[j % len(live)]
            if what in NEW:
                live.append(NEW[what](a, b, inputs).clamp(-LIMIT, LIMIT))
            elif what in VIEWS:
                live.append(VIEWS[what](a))
            elif what == "drop" and len(live) > 2:
                del live[i % len(live)]
            elif what in IN_PLACE:
                IN_PLACE[what](a, b, inputs)
            del a, b  # or a dropped tensor would live for one step more
        return live


Step = Callable[[Tensor, Tensor, Inputs], Tensor]

NEW: dict[str, Step] = {
    "add": lambda a, b, s: a + b,
    "subtract twice": lambda a, b, s: torch.sub(a, b, alpha=2),
    "multiply": lambda a, b, s: a * b,
    "by a number": lambda a, b, s: 3 - a * 2,
    "linear": lambda a, b, s: torch.nn.functional.linear(a, s.weight),
    "weigh": lambda a, b, s: a @ s.weight,
    "sum": lambda a, b, s: a.sum(-1, keepdim=True) + b,
    "largest": lambda a, b, s: torch.maximum(a, b).amax(0, keepdim=True) - b,
    "choose": lambda a, b, s: torch.where(a > b, a, b),
    "turn": lambda a, b, s: torch.cat((a[:, 9:], b[:, :9]), dim=1),
    "through int": lambda a, b, s: (a.to(torch.int32) // 2).to(torch.bfloat16).float(),
    "read the cache": lambda a, b, s: s.state.index_select(0, s.slots) + a,
    "transpose": lambda a, b, s: (a.t().contiguous().view(-1) * 2).view(a.shape),
    "sort": lambda a, b, s: a.sort(dim=1).values + b,
    "fresh": lambda a, b, s: torch.zeros_like(a).add_(b).masked_fill(a > 0, 1.0),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "alias": lambda a: a[:],
    "reshaped": lambda a: a.reshape(a.shape),
}
IN_PLACE: dict[str, Step] = {
    "add in place": lambda a, b, s: a.add_(1).clamp_(-LIMIT, LIMIT),
    "flip a row": lambda a, b, s: a[0].neg_(),
    "copy over": lambda a, b, s: a.copy_(b),
    "write the cache": lambda a, b, s: s.state.index_copy_(0, s.slots, a),
    "mask": lambda a, b, s: a.masked_fill_(b < 0, 2.0),
    "into out": lambda a, b, s: torch.neg(b, out=a) if a is not b else a,
}

_names = st.sampled_from([*NEW, *VIEWS, *IN_PLACE, "drop", "drop", "drop"])
_steps = st.lists(st.tuples(_names, st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12)
programs = st.builds(Program, st.integers(1, 8), _steps.map(tuple))
