"""The widgets of the chapters: `NAME.js` draws what a function here takes from the engine.

Each is one ES module with anywidget's contract, `render({ model, el })`, and no library. A page has
it inline, with its data and `shim.js`, so that it runs from a file, too, where a browser loads no
module. The data are an object whose entries are the model's first state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from course.draw import ch00_race
from course.site.widgets.capture import stories
from course.site.widgets.cutter import cutter
from course.site.widgets.errors import errors
from course.site.widgets.floor import floor
from course.site.widgets.ladder import ladder
from course.site.widgets.pages import pages
from course.site.widgets.roofline import roofline
from course.site.widgets.softmax import softmax

DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "race": lambda: ch00_race.table() | {"shown": ch00_race.SHOWN, "batch": 1},
    "capture": stories,
    "cutter": cutter,
    "errors": errors,
    "floor": floor,
    "ladder": ladder,
    "pages": pages,
    "predict": dict,  # a page's own: course/predictions.toml, by layout.py
    "roofline": roofline,
    "softmax": softmax,
}


@cache
def state(name: str) -> dict[str, Any]:
    """The first state of a widget's model."""
    return DATA[name]()
