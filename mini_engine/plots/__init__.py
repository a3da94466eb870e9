"""The figures: each a function of data that writes one picture (`canvas`). The title states the
finding; the caption says what the data are of, and whether they were predicted or measured."""

from mini_engine.plots.canvas import PREDICTED as PREDICTED
from mini_engine.plots.figures import errors_by_class as errors_by_class
from mini_engine.plots.figures import itl_curve as itl_curve
from mini_engine.plots.figures import predicted_against_measured as predicted_against_measured
from mini_engine.plots.measured import itl_against_batch as itl_against_batch
from mini_engine.plots.timeline import timeline as timeline
