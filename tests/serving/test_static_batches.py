"""Batches without pages take the time of their prompts and of their longest answer."""

from __future__ import annotations

import pytest

from mini_engine.serving.static_batches import static_batches_us
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode, StepModel


class Costs(StepModel):
    """µs that show what they are made of: rows, and keys that are read."""

    def __init__(self) -> None:
        pass

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        assert mode == "full"
        return shape.num_tokens + 0.001 * shape.kv_tokens


def test_a_batch_pays_its_longest_prompt_and_its_longest_answer_in_every_row() -> None:
    lengths = [(5, 3), (2, 1), (4, 2)]
    first = 2 * 5 + 0.001 * 2 * 5 + 2 * (2 + 0.001 * 2 * 16)
    second = 4 + 0.001 * 4 + 1 * (1 + 0.001 * 16)
    took = static_batches_us(lengths, Costs(), "full", batch=2, t_max=16)
    assert took == pytest.approx(first + second)


def test_a_request_that_no_row_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="request 1"):
        static_batches_us([(1, 1), (9, 9)], Costs(), "full", batch=2, t_max=16)
