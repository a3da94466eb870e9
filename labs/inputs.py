"""What the tests of several labs give to a learner's code."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = TypeVar("Array", bound=npt.NDArray[np.generic])


def frozen(array: Array) -> Array:
    """The same array, read-only: code that writes into it fails on the line that does."""
    array.flags.writeable = False
    return array
