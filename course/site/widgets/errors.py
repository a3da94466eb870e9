"""What the page of your predictions draws beside them: how far off ours are.

In:  nothing. Out: `ours`, predicted over measured for each published step of `mini_engine
validate`, by a fit that had not seen its source.
"""

from __future__ import annotations

from course.draw.ch14 import shipped_rows


def errors() -> dict[str, list[float]]:
    """The state of the widget."""
    rows = [row for row in shipped_rows() if row.left_out_error is not None]
    return {"ours": [round(row.left_out_ms / row.point.itl_ms, 3) for row in rows]}
