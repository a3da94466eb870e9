"""The notebooks run in an empty folder, with the engine alone, say what they are committed with,
and show pictures, the first of them at once."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread

from notebooks.running import DRAWN, FOLDER, drawn, fresh, spoken
from tests.support.documents import ROOT, same_figure
from tests.support.warm_python import warm_python

NOTEBOOKS = sorted(FOLDER.glob("[0-9][0-9]-*.ipynb"))
LINK = re.compile(r"\]\(([^)#]+)(#[^)]*)?\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each_notebook
def test_a_notebook_runs_and_says_and_shows_what_it_is_committed_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions are the same everywhere; cells tagged `varies` hold timings."""
    monkeypatch.setattr(sys, "executable", warm_python())
    book, again = nbformat.read(path, as_version=4), fresh(path)
    kept = dict(spoken(book))
    for cell, said in spoken(again):
        assert said == kept[cell], f"{path.name}, cell {cell}: run `python -m notebooks` again"
    for (cell, old), (_, new) in zip(drawn(book), drawn(again), strict=True):
        stale = f"{path.name}, picture of cell {cell}: run `python -m notebooks` again"
        if DRAWN in old:
            assert same_figure(old, new), stale
            continue
        one, other = (imread(BytesIO(b64decode(picture))) for picture in (old, new))
        assert one.shape == other.shape, stale
        # A bar moved by a few pixels is 0.001. Letters are drawn by the version of matplotlib.
        assert np.abs(one - other).mean() < 0.0005, stale


@each_notebook
def test_a_picture_comes_first_and_the_code_that_draws_it_is_folded(path: Path) -> None:
    title, opening, *_ = nbformat.read(path, as_version=4).cells
    assert len(title.source.splitlines()) <= 5
    assert opening.metadata["tags"] == ["hide-input"]
    ((drawn_as, *_),) = [[*output["data"]] for output in opening.outputs]
    assert drawn_as == "image/svg+xml"


@each_notebook
def test_a_notebook_begins_with_its_question_and_links_lead_somewhere(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    first = book.cells[0]
    assert first.cell_type == "markdown"
    assert re.match(r"# \d+\. .+\n", first.source)
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert "../course/" in text, "it belongs to a chapter"
    assert "Predict" in text, "first a prediction, then the picture"
    for target, _ in LINK.findall(text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target
            assert (path.parent / target).resolve().is_relative_to(ROOT)
