"""measure/calibrate.py, spec_fit.py and the command: what is measured, what a spec makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cli import main  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.measure import calibrate, spec_fit  # noqa: E402
from mini_engine.cuda.measure.evidence import load_evidence, read_measurement  # noqa: E402
from mini_engine.predict.hardware import FIGURE_NAMES, load_spec, spec_names  # noqa: E402
from tests.support.torch_helpers import DEVICES  # noqa: E402

H200 = load_spec("h200")


def line(base: float, slope: float, nodes: tuple[int, ...] = (1, 64, 1024)) -> dict[str, Any]:
    return calibrate.line_fit(nodes, [base + slope * n for n in nodes])


def median(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value, "samples": 3}


def on_a_gpu() -> dict[str, Any]:
    """What a calibration of a GPU would hold, with known answers."""
    medians = {
        "cpu_launch_us": 1.9, "cpu_op_us": 4.5, "copy_us": 5.0, "sync_us": 9.0,
        "copy_bandwidth_gb_s": 4290.0, "matmul_tflops": 700.0, "null_kernel_us": 0.8,
        "gap_difference_us": 0.6,
    }  # fmt: skip
    values = {"sm_count": 132, "l2_bytes": 1 << 20, "queue_depth": 1022, "graph_node_bytes": 9000}
    return {
        **{name: median(value) for name, value in medians.items()},
        **{name: {"value": value} for name, value in values.items()},
        "graph_launch": line(2.6, 0.002),
        "graph_device": line(7.0, 2.0),
        "capture": {**line(5.0, 2.4), "slope_over_a_launch": 0.5},
        "instantiate": line(20.0, 1.2),
    }


def spec_of(figures: dict[str, Any], tmp_path: Path, **given: Any) -> tuple[Any, dict[str, Any]]:
    options = {"own_base": True, "emulated": False, **given}
    spec = spec_fit.spec_json(figures, H200, "mine", "calibration.json", **options)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    return load_spec(path), spec


# ---------------------------------------------------------------- the fit


@given(
    st.floats(0.1, 100),
    st.floats(1e-3, 10),
    st.lists(st.integers(1, 4096), min_size=2, unique=True),
)
def test_a_straight_line_is_found_again(base: float, slope: float, nodes: list[int]) -> None:
    counts = tuple(sorted(nodes))
    fit = line(base, slope, counts)
    # float64 least squares; close counts make the two unknowns nearly one
    scale = base + slope * counts[-1]
    fitted = [fit["base"] + fit["slope"] * n for n in counts]
    assert np.allclose(fitted, [base + slope * n for n in counts], rtol=1e-6, atol=1e-6 * scale)
    assert max(abs(r) for r in fit["residuals_us"]) <= 1e-6 * scale


def test_residuals_show_what_is_no_straight_line() -> None:
    bent = calibrate.line_fit((1, 10, 100), [1.0, 10.0, 40.0])
    assert max(abs(r) for r in bent["residuals_us"]) > 1
    assert spec_fit.residuals({"graph_launch": bent, "x": median(1.0)})["graph_launch"] > 0.1


def test_each_figure_of_the_spec_is_what_was_measured(tmp_path: Path) -> None:
    spec, _ = spec_of(on_a_gpu(), tmp_path)
    expected = {
        "cpu_launch_us": 1.9, "cpu_op_us": 4.5, "copy_us": 5.0, "sync_us": 9.0,
        "copy_bandwidth_gb_s": 4290.0, "peak_tflops": 700.0, "sm_count": 132, "queue_depth": 1022,
        "graph_node_bytes": 9000, "graph_launch_us": 2.6, "graph_node_ns": 2.0,
        "kernel_floor_us": 0.8, "graph_gap_us": 2.0 - 0.8, "stream_gap_us": 2.0 - 0.8 + 0.6,
        "capture_node_us": 0.5, "instantiate_node_us": 1.2,
    }  # fmt: skip
    for name, value in expected.items():
        assert getattr(spec, name) == pytest.approx(value, rel=1e-4), name
        assert spec.source(name).startswith("measured:"), name
        assert spec.source(name).endswith("course/measurements/calibration.json"), name


def test_what_was_not_measured_keeps_its_source(tmp_path: Path) -> None:
    spec, _ = spec_of(on_a_gpu(), tmp_path)
    kept = spec_fit.kept_from_base(on_a_gpu(), H200)
    assert set(kept) == {"vram_bytes", "bandwidth_gb_s", "host_step_us", "reserved_bytes"}
    for name in kept:
        assert spec.source(name) == H200.source(name)
        assert getattr(spec, name) == getattr(H200, name)


def test_figures_of_another_cards_base_are_borrowed(tmp_path: Path) -> None:
    spec, _ = spec_of(on_a_gpu(), tmp_path, own_base=False)
    assert spec.source("bandwidth_gb_s").startswith("borrowed: of h200 (datasheet): 4.8 TB/s")
    assert spec.source("cpu_op_us").startswith("measured:")


def test_a_figure_below_nothing_is_not_taken(tmp_path: Path) -> None:
    figures = on_a_gpu()
    figures["capture"]["slope_over_a_launch"] = -0.3
    figures["null_kernel_us"] = median(2.5)  # more than a node takes: no gap would be left
    spec, _ = spec_of(figures, tmp_path)
    assert spec.capture_node_us == H200.capture_node_us
    assert spec.graph_gap_us == H200.graph_gap_us
    assert "our measurement, -0.3, is not above 0" in spec.source("capture_node_us")
    assert {"capture_node_us", "graph_gap_us"} <= set(spec_fit.kept_from_base(figures, H200))


def test_without_a_profiler_the_floor_is_the_bases(tmp_path: Path) -> None:
    figures = on_a_gpu()
    del figures["null_kernel_us"]
    spec, _ = spec_of(figures, tmp_path)
    assert spec.source("kernel_floor_us") == H200.source("kernel_floor_us")
    assert spec.graph_gap_us == pytest.approx(2.0 - H200.kernel_floor_us)


def test_emulated_figures_say_in_the_spec_that_they_are_no_evidence(tmp_path: Path) -> None:
    spec, _ = spec_of(on_a_gpu(), tmp_path, emulated=True)
    assert spec.source("cpu_op_us").startswith("derived: CPU emulation, no evidence")


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", None),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", None),
        ("Tesla T4", None),
    ],
)
def test_a_gpu_is_known_by_its_name_and_its_cousins_are_not(gpu: str, name: str | None) -> None:
    assert spec_fit.base_name(gpu) == name
    assert name is None or name in spec_names()


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize("device", DEVICES)
def test_every_figure_that_a_spec_needs_is_measured(device: str) -> None:
    backend = graphs_for(device)
    figures = dict(calibrate.measure(backend, calibrate.sizes_for(backend, quick=True)))
    fits = spec_fit.fitted(figures, H200)
    assert set(fits) <= set(FIGURE_NAMES)
    assert len(fits) >= (12 if backend.emulated else 17)
    for name in ("cpu_op_us", "cpu_launch_us", "copy_us", "sync_us", "copy_bandwidth_gb_s"):
        assert fits[name].value > 0
    assert figures["graph_launch"]["nodes"] == list(calibrate.sizes_for(backend, True).nodes)


def test_a_captured_graph_holds_as_many_nodes_as_it_was_asked_for() -> None:
    backend = graphs_for("cpu")
    number = torch.zeros(1)
    graph, body_us, exit_us = calibrate.captured(backend, lambda _: number.add_(1), 5, 0)
    assert number.item() == 0
    graph.replay()
    assert number.item() == 5
    assert body_us > 0
    assert exit_us > 0


def test_the_queue_is_full_at_the_first_launch_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now, launched = [0.0], [0]

    def dummy(cycles: int) -> None:
        launched[0] += cycles == 0
        now[0] += 0.01 if launched[0] == 7 else 2e-6

    monkeypatch.setattr(calibrate, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert calibrate.queue_depth(dummy) == 7


# ---------------------------------------------------------------- the command


def test_the_command_writes_a_spec_and_measurements_that_are_no_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, evidence = tmp_path / "spec.json", tmp_path / "calibration.json"
    words = ["calibrate", "--quick", "--device", "cpu", "-o", str(spec)]
    words += ["--evidence", str(evidence)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["emulated"] is True
    assert "no evidence" in load_spec(spec).source("cpu_op_us")
    measurement = read_measurement(evidence)
    assert measurement.kind == "calibration"
    assert measurement.command.startswith("python -m mini_engine calibrate --quick --device cpu")
    assert str(tmp_path) not in evidence.read_text()
    assert set(told["largest_residual"]) == {
        "graph_launch", "graph_device", "capture", "instantiate"
    }  # fmt: skip
    with pytest.raises(ValueError, match="no evidence"):
        load_evidence(evidence)
    assert main(words) == 0
    assert "no evidence about any GPU" in capsys.readouterr().out


def test_a_base_that_does_not_exist_is_refused_before_measuring(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calibrate", "--device", "cpu", "--base", "h900"]) == 2
    assert "no device 'h900'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_gpu_that_is_not_there_is_one_clear_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["calibrate", "--device", "cuda"]) == 2
    assert "finds no CUDA GPU here; use cpu" in capsys.readouterr().err
