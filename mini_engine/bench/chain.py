"""The decode step taken apart: how much shorter it is without each of its kernels in turn.

In:  a `DecodeSetup`. Out: one `Link` for each kernel of the five-kernel step: µs that the step
     loses without it, for one launch, beside the µs that its bytes take at the speed of a copy.
     Less than those where it hides behind its neighbours; more where they wait for it.

A kernel that reads what a left-out one should have written finds random numbers there: its time
does not depend on them, and zeros would cost less power. They are put there once, after the
capture; in it they would be kernels themselves, between two of the step, where the real step has
none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mini_engine.bench.decode_setup import DecodeSetup
from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import Interval
from mini_engine.bench.timing import paired_laps
from mini_engine.bench.variants import FusedGraph
from mini_engine.cuda.generate import no_pdl
from mini_engine.step.kernels import StepShape, step_parts

OURS = "launch_bound::"  # how the ops of `mini_engine/cuda/kernels` begin
NAMES = {"norm_linear": "norm_qkv_proj", "pick_and_advance": "argmax"}  # others: by their own
STEPS_A_CALL = 8


@dataclass(frozen=True)
class Link:
    """One kernel of the chain. Times in µs for one launch of it."""

    kernel: str
    launches: int  # a step
    bytes: float  # that one launch must move
    left_out: Interval  # what the step loses without it, 95%
    copy_us: float  # its bytes at the speed of a copy


class LeftOut(TorchDispatchMode):
    """`with LeftOut(name, ...):` all kernels run but this one. What the step allocates holds random
    numbers, or zeros where they are indices: at once, or after a capture, by `fill`."""

    def __init__(self, name: str, down: frozenset[int], capturing: Callable[[], bool]) -> None:
        """`down`: the addresses of the weights of down, whose op is the same as O's."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, self.down, self.capturing = name, down, capturing
        self.made: list[Tensor] = []  # in the graph's memory: while they are held, it is theirs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func.name().startswith(OURS) and self.name_of(func.name(), args) == self.name:
            return None
        out = func(*args, **(kwargs or {}))
        if "empty" in func.name():
            self.made.append(out)
            if not self.capturing():
                self.fill()
        return out

    def name_of(self, op: str, args: Any) -> str:
        """The kernel's name in the op list "fused5"."""
        word = op.removeprefix(OURS).partition(".")[0]
        if word == "linear_add":
            return "down_proj_add" if args[3].data_ptr() in self.down else "o_proj_add"
        return NAMES.get(word, word)

    def fill(self) -> None:
        """Put numbers into all that was made since the last time."""
        for tensor in self.made:
            tensor.normal_() if tensor.is_floating_point() else tensor.zero_()
        if not self.capturing():
            self.made.clear()


class ShorterGraph(FusedGraph):
    """`FusedGraph` without one of its kernels."""

    def __init__(self, setup: DecodeSetup, name: str, pdl: bool, steps_a_call: int) -> None:
        super().__init__(setup, 5, pdl, steps_a_call)
        down = frozenset(id_of(layer.down) for layer in self.model.weights.layers)
        self.left_out = LeftOut(name, down, setup.backend.is_current_stream_capturing)

    def prepare(self) -> None:
        super().prepare()
        self.left_out.fill()

    def release(self) -> None:
        self.left_out.made.clear()
        super().release()

    def _forward(self, rung: int) -> Tensor:
        with self.left_out:
            return super()._forward(rung)


def id_of(matrix: object) -> int:
    return matrix.data_ptr() if isinstance(matrix, Tensor) else 0


@torch.no_grad()
def chain(
    setup: DecodeSetup, copy_gb_s: float, *, steps: int = 32, rounds: int = 6
) -> Iterator[Link]:
    """A link for each kernel, as soon as it is known. With PDL where the card has it."""
    backend, a_call = setup.backend, min(steps, STEPS_A_CALL)
    pdl = no_pdl(backend) is None
    parts = step_parts(setup.model.config, StepShape.decode(setup.batch, setup.context), "fused5")
    whole = FusedGraph(setup, 5, pdl, a_call)
    whole.prepare()
    for op, launches in [*((op, parts.num_layers) for op in parts.layer),
                         *((op, 1) for op in parts.tail)]:  # fmt: skip
        shorter = ShorterGraph(setup, op.name, pdl, a_call)
        shorter.prepare()
        pairs = zip(*paired_laps(backend, whole, shorter, steps=steps, rounds=rounds), strict=True)
        lost = [(one.event_us - other.event_us) / launches for one, other in pairs]
        shorter.release()
        yield Link(op.name, launches, op.bytes, median_interval(lost), op.bytes / copy_gb_s / 1e3)
    whole.release()
