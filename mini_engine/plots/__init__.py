"""The figures: each a function of data that writes one picture.

    timeline         one step on a CPU lane and a GPU lane, launched in several ways
    itl_curve        ITL against batch: eager, piecewise, full, the floor, where eager catches up
    itl_against_batch                             what a benchmark measured
    predicted_against_measured, errors_by_class   how far off the predictions are

In:  data that other rooms computed (`sim.trace`, `step.curves`, `validate.points`, `bench.rows`).
Out: a file (.png, .svg or .pdf). The title states the finding; the caption says what the
     data are of, and whether they were predicted or measured.

The same data give the same bytes. Empty data raise ValueError, a path that cannot be written
OSError.
"""

from mini_engine.plots.canvas import PREDICTED as PREDICTED
from mini_engine.plots.figures import errors_by_class as errors_by_class
from mini_engine.plots.figures import itl_curve as itl_curve
from mini_engine.plots.figures import predicted_against_measured as predicted_against_measured
from mini_engine.plots.measured import itl_against_batch as itl_against_batch
from mini_engine.plots.timeline import timeline as timeline
