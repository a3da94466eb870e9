"""A server without pages on the step model: batches that start together and end with their longest.

In:  requests as (prompt tokens, output tokens), all waiting at the start; what a step costs; B.
Out: µs until the last token, to hold against `replay` on the same requests.

    us = static_batches_us(lengths, StepModel(shape, spec), "full", batch=8, t_max=4096)

It is the engine of `labs/lab07b_static_cache/static_engine.py`. A batch pads its prompts to the
longest, in one step; then every step attends over all T_max columns of all rows, whoever has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from labs.lab07b_static_cache.masked_rows import Lengths, masked_columns
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode
from mini_engine.step.step_model import StepModel


def static_batches_us(
    requests: Sequence[Lengths], costs: StepModel, mode: Mode, *, batch: int, t_max: int
) -> float:
    """Raises ValueError for what `masked_columns` refuses."""
    masked_columns(requests, batch, t_max)
    total = 0.0
    for first in range(0, len(requests), batch):
        together = requests[first : first + batch]
        rows, longest = len(together), max(prompt for prompt, _ in together)
        steps = max(output for _, output in together) - 1
        total += costs.itl_us(mode, StepShape.mixed([longest] * rows, [longest] * rows))
        total += steps * costs.itl_us(mode, StepShape.decode(rows, t_max))
    return total
