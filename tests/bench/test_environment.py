"""The first seconds on a machine: what it is, and a kernel that does nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench import environment as module  # noqa: E402
from mini_engine.bench.evidence import without_paths  # noqa: E402
from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for  # noqa: E402
from mini_engine.cuda.kernels import null  # noqa: E402
from tests.support.torch_helpers import DEVICES  # noqa: E402


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest) -> GraphBackend:
    return graphs_for(request.param)


def test_the_machine_is_told_without_paths_or_a_hosts_name(backend: GraphBackend) -> None:
    found = module.machine(backend)
    assert found["packages"]["torch"] == torch.__version__
    assert found["cpus"] >= 1
    assert set(found["tools"]) == set(module.TOOLS)
    assert without_paths(found) == found
    assert ("sm" in found) is (backend.device.type == "cuda")


def test_a_kernel_that_does_nothing_is_timed_in_a_stream_and_in_a_graph(
    backend: GraphBackend,
) -> None:
    found = module.null_kernel(backend)
    assert found["stream_us"]["median"] > 0
    assert found["graph_us"]["median"] > 0
    pdl = found["pdl_us"]
    assert pdl["median"] is None or pdl["median"] > 0
    assert pdl["median"] is not None or pdl["reason"]


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_that_does_not_run_all_its_nodes_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(null, "count", lambda cell, pdl: None)
    with pytest.raises(RuntimeError, match="replayed 4 times counted to 0"):
        module.null_kernel(graphs_for("cpu"))


def test_a_tool_tells_its_version_or_that_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(c.isdigit() for c in module._version_line("python3"))
    assert module._version_line("no-such-tool") == "none"
    monkeypatch.setattr(module.shutil, "which", lambda _: "/no/such/file")
    assert module._version_line("gcc") == "does not answer"
