"""What a better ladder would have saved a server that has run.

In:  the report of a run, with every kind of step it took, and what steps cost.
Out: the ladder with as many rungs and the same top that pads least, the rows of padding that it
     saves, and the time.

The steps stay as they were and only move to their new rungs. In truth, shorter steps would also
change which requests meet; a second run of `replay.replay` with the new sizes shows that too.

A ladder is chosen by rows, and fewer rows may take longer: above `max_num_seqs` no rung has a full
graph. Where the ladder that ran was the quicker one, it is the answer, and nothing is saved.
"""

from collections import Counter
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.ladder import optimal_ladder
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.serving.report import Ran, ServeReport
from mini_engine.step.step_cost import padded_step
from mini_engine.step.step_model import StepModel


@dataclass(frozen=True)
class LadderSaving:
    """The optimal ladder beside the one that ran; only steps that ran in graphs are counted."""

    capture_sizes: tuple[int, ...]
    padded_rows: int  # that would be left
    saved_rows: int
    saved_us: float  # of step time
    saved_share: float  # of the time that the server was busy


def optimal_ladder_saving(
    report: ServeReport, costs: StepModel, dispatcher: GraphDispatcher
) -> LadderSaving | None:
    """None when no step ran in a graph. `dispatcher` is the one that the run used."""
    in_graphs = {
        ran: (steps, kv_tokens)
        for ran, (steps, kv_tokens) in report.ran.items()
        if ran.descriptor.mode is not CUDAGraphMode.NONE
    }
    if not in_graphs:
        return None
    histogram: Counter[int] = Counter()
    for ran, (steps, _) in in_graphs.items():
        histogram[ran.rows] += steps
    # as many rungs, the same top, the fewest padded rows
    sizes = optimal_ladder(histogram, len(dispatcher.sizes), top=max(dispatcher.sizes))
    better = GraphDispatcher(
        dispatcher.mode, sizes, dispatcher.max_num_seqs, dispatcher.decode_query_len
    )
    padded_rows = saved_rows = 0
    saved_us = 0.0
    for ran, (steps, kv_tokens) in in_graphs.items():
        # Where a graph takes any mix of requests, how many there were does not matter.
        num_reqs, uniform = (ran.rows, 1) if ran.uniform else (1, None)
        moved = better.dispatch(num_reqs, ran.rows, uniform)
        padded_rows += (moved.num_tokens - ran.rows) * steps
        saved_rows += (ran.descriptor.num_tokens - moved.num_tokens) * steps
        before, after = (
            _step_us(costs, ran, descriptor, kv_tokens / steps)
            for descriptor in (ran.descriptor, moved)
        )
        saved_us += (before - after) * steps
    if saved_us < 0:
        kept = padded_rows + saved_rows
        return LadderSaving(tuple(dispatcher.sizes), kept, 0, 0.0, 0.0)
    share = saved_us / report.busy_us
    return LadderSaving(tuple(sizes), padded_rows, saved_rows, saved_us, share)


def _step_us(costs: StepModel, ran: Ran, descriptor: BatchDescriptor, kv_tokens: float) -> float:
    """Such a step with an average of kv_tokens to read."""
    mode, shape = padded_step(descriptor, ran.rows if ran.uniform else 1)
    lines = costs.lines(mode, shape.num_tokens, shape.num_reqs, shape.served)
    return max(us + per_key * kv_tokens for us, per_key in lines)
