"""The first seconds on a machine: what it is, and a kernel that does nothing."""

from __future__ import annotations

from importlib.metadata import version

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench import calibrate  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from tests.support.torch_helpers import DEVICES  # noqa: E402


@pytest.mark.parametrize("local", ["2.11.0", "2.11.0+cu130"])
def test_the_version_of_torch_is_that_of_its_package_whatever_the_build_calls_itself(
    local: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of PyPI is 2.11.0 to pip, and says 2.11.0+cu130 of itself."""
    monkeypatch.setattr(torch, "__version__", local)
    told = calibrate.machine(graphs_for("cpu"))["packages"]["torch"]
    assert told == version("torch")
    assert told.partition("+")[0].count(".") == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_that_does_nothing_is_timed_in_a_stream_and_in_a_graph(device: str) -> None:
    found = calibrate.null_kernel(graphs_for(device))
    assert found["stream_us"]["median"] > 0
    assert found["graph_us"]["median"] > 0
    assert found["pdl_saves_us"]["median"] is not None or found["pdl_saves_us"]["reason"]
