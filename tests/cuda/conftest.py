"""What several files of these tests ask for by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def inference() -> Iterator[None]:
    """As the engine runs: without autograd."""
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        yield
