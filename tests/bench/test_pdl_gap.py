"""pdl_gap.py: a chain of dependent norms, with and without PDL in turns, or one line why not.

What PDL saves only a GPU can tell. Here the same code runs over emulated graphs: without PDL, since
a CPU has none, and with the refusal set aside and the clock replaced, to see what it counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.bench import pdl_gap  # noqa: E402
from mini_engine.bench.timing import Lap  # noqa: E402
from mini_engine.cli import calibrate as command  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.kernels import norm  # noqa: E402


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def test_where_there_is_no_pdl_the_plain_chain_is_measured_and_the_rest_is_none() -> None:
    figures = pdl_gap.pdl_figures(graphs_for("cpu"), nodes=8, rounds=4)
    assert list(figures) == ["norm_node_us", "norm_node_pdl_us", "pdl_saves_us"]
    assert figures["norm_node_us"]["median"] > 0
    reason = "programmatic dependent launch is a GPU's: it came with sm_90"
    for name in ("norm_node_pdl_us", "pdl_saves_us"):
        assert figures[name] == {"median": None, "reason": reason}
    assert command._pdl_line(*figures.values()) == f"PDL not measured: {reason}"


def test_an_older_gpu_is_told_that_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "sm_80 has no programmatic dependent launch: this variant needs sm_90"
    monkeypatch.setattr(pdl_gap, "no_pdl", lambda _: line)
    figures = pdl_gap.pdl_figures(graphs_for("cpu"), nodes=4, rounds=2)
    told = "sm_80 has no programmatic dependent launch: it came with sm_90"
    assert figures["pdl_saves_us"]["reason"] == told


def test_without_triton_nothing_is_measured_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdl_gap, "no_triton", lambda _: "not installed")
    figures = pdl_gap.pdl_figures(graphs_for("cpu"), nodes=4, rounds=2)
    assert all(figure["median"] is None for figure in figures.values())
    assert "Triton is not installed" in figures["norm_node_us"]["reason"]


def test_a_node_is_a_share_of_its_graph_and_the_saving_is_paired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Laps are of a node; both drift alike, which leaves no mark on what is saved."""
    seen: list[Any] = []

    def laps(_: Any, one: Any, other: Any, *, steps: int, rounds: int) -> tuple[Any, Any]:
        seen.append((one, other, steps, rounds))
        drift = [0.0, 0.5, 1.0, 1.5]
        plain = [Lap(2.0 + d, 9.0) for d in drift]
        return plain, [Lap(1.3 + d, 9.0) for d in drift]

    monkeypatch.setattr(pdl_gap, "no_pdl", lambda _: None)
    monkeypatch.setattr(pdl_gap, "paired_laps", laps)
    figures = pdl_gap.pdl_figures(graphs_for("cpu"), nodes=6, rounds=4)
    ((one, other, steps, rounds),) = seen
    assert (one.steps_a_call, other.steps_a_call, steps, rounds) == (6, 6, 6, 4)
    assert one.graph is not other.graph
    saved = figures["pdl_saves_us"]
    assert (saved["low"], saved["median"], saved["high"]) == pytest.approx((0.7, 0.7, 0.7))
    assert figures["norm_node_us"]["median"] == pytest.approx(2.75)
    told = command._pdl_line(*figures.values())
    assert "takes 2.75 µs without and 2.05 µs with it: 0.70 µs saved (0.70 to 0.70)" in told


@pytest.mark.parametrize("pdl", [False, True])
def test_the_chain_has_so_many_norms_and_each_reads_what_the_last_one_wrote(
    pdl: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int, bool]] = []

    def recorded(out: Any, x: Any, _weight: Any, _eps: float, pdl: bool) -> None:
        calls.append((out.data_ptr(), x.data_ptr(), pdl))

    monkeypatch.setattr(norm, "rms_norm", recorded)
    backend: Any = SimpleNamespace(device=torch.device("cpu"), synchronize=lambda: None)
    chain = pdl_gap.norm_chain(backend, 5, pdl=pdl)
    assert len(calls) == 1  # compiled before any capture
    calls.clear()
    chain()
    assert len(calls) == 5
    assert all(now[1] == before[0] for before, now in pairwise(calls))
    assert {flag for *_, flag in calls} == {pdl}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu_both_chains_run_or_it_says_why_not() -> None:
    figures = pdl_gap.pdl_figures(graphs_for("cuda"), nodes=256, rounds=8)
    assert 0.1 < figures["norm_node_us"]["median"] < 100
    if torch.cuda.get_device_capability() >= (9, 0):
        assert 0.1 < figures["norm_node_pdl_us"]["median"] < 100
        assert figures["pdl_saves_us"]["samples"] == 8
    else:
        assert "no programmatic dependent launch" in figures["pdl_saves_us"]["reason"]
