"""The figures: each a function of data that writes one picture.

    timeline         one step on a CPU lane and a GPU lane, launched in several ways
    step_bars        what steps spent their time on, recorded beside predicted
    itl_curve        ITL against batch: eager, piecewise, full, the floor, where eager catches up
    ladder_curve     denser ladders: padding against capture time and memory
    rung_histogram   the rungs that the steps of a server ran at
    itl_against_batch, measured_crossover         what a benchmark measured
    predicted_against_measured, errors_by_class   how far off the predictions are

In:  data that other rooms computed (`trace`, `curves`, `ladder`, `serving.report`, `measured`).
Out: a file (.png, .svg or .pdf). The title states the finding; the caption says what the
     data are of, and whether they were predicted or measured.

The same data give the same bytes. Empty data raise ValueError, a path that cannot be written
OSError.
"""

from mini_engine.plots.bars import step_bars
from mini_engine.plots.canvas import PREDICTED
from mini_engine.plots.figures import (
    errors_by_class,
    itl_curve,
    ladder_curve,
    predicted_against_measured,
    rung_histogram,
)
from mini_engine.plots.measured import itl_against_batch, measured_crossover
from mini_engine.plots.timeline import timeline

__all__ = [
    "PREDICTED",
    "errors_by_class",
    "itl_against_batch",
    "itl_curve",
    "ladder_curve",
    "measured_crossover",
    "predicted_against_measured",
    "rung_histogram",
    "step_bars",
    "timeline",
]
