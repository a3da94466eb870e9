"""The figures: each a function of data that writes one PNG.

    timeline         one step on a CPU lane and a GPU lane, launched in several ways
    itl_curve        ITL against batch: eager, piecewise, full, the floor, where eager catches up
    ladder_curve     a denser ladder: padding against capture time and memory
    waste_by_batch   the staircase: at which rung a batch of n runs
    rung_histogram   which rungs the steps of a server ran at
    itl_against_batch, measured_crossover, waterfall      what a benchmark measured

In: data that other rooms have computed (`trace`, `curves`, `ladder`, `serving.report`, `measured`).
Out: a file. The title states what the figure shows; the caption says of what, and whether it was
predicted or measured. The same data give the same bytes. Empty data raise ValueError, a path that
cannot be written OSError.
"""

from mini_engine.plots.canvas import PREDICTED
from mini_engine.plots.figures import itl_curve, rung_histogram
from mini_engine.plots.ladders import ladder_curve, waste_by_batch
from mini_engine.plots.measured import itl_against_batch, measured_crossover
from mini_engine.plots.timeline import timeline
from mini_engine.plots.waterfall import waterfall

__all__ = [
    "PREDICTED",
    "itl_against_batch",
    "itl_curve",
    "ladder_curve",
    "measured_crossover",
    "rung_histogram",
    "timeline",
    "waste_by_batch",
    "waterfall",
]
