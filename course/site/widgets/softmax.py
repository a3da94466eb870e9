"""What the softmax widget starts from: scores and values of one query.

In:  nothing. Out: sixteen scores, a larger one late, and as many values. Everything else is
computed in JavaScript, tile by tile, and held against numpy by a test.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KEYS = 16


def softmax() -> dict[str, Any]:
    """The state of the widget."""
    rng = np.random.default_rng(12)
    scores = np.round(rng.normal(1, 1.2, KEYS), 1)
    scores[10] = 5.0  # what all weights before it have to be corrected for
    values = np.round(rng.uniform(0, 50, KEYS))
    return {"scores": scores.tolist(), "values": values.tolist(), "tile": 4, "done": 1}
