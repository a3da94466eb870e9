"""What a simulated server asks about time: of a step, and of copies to host memory and back.

`predict.step_model.StepModel` and `predict.swap_cost.SwapCost` answer it for a real card.
"""

from collections.abc import Sequence
from typing import Protocol

from mini_engine.step.oplists import StepShape
from mini_engine.step.step_cost import Mode
from mini_engine.step.step_model import Line


class StepCosts(Protocol):
    """What a step costs."""

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """Time of one step, whatever is in it."""
        ...

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> Sequence[Line]:
        """The same for a decode step: the highest of us + us_per_key * kv_tokens. `served`: the
        requests that are no padding; all where it is None."""
        ...


class CopyCosts(Protocol):
    """What preempting by swap costs."""

    @property
    def block_bytes(self) -> int: ...

    def copy_us(self, blocks: int) -> float:
        """Time to copy so many blocks one way."""
        ...

    def saves_us(self, tokens: int) -> float:
        """Of a request with so many tokens in the cache: the time to compute them again, less that
        of copying them out and in."""
        ...
