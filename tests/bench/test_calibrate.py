"""bench/calibrate.py, spec_fit.py and the command: what is measured, which card and which host
that makes, and what a machine without a GPU can tell of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.bench import calibrate, spec_fit  # noqa: E402
from mini_engine.bench.evidence import load_evidence, read_measurement  # noqa: E402
from mini_engine.cli import main  # noqa: E402
from mini_engine.cuda.generate import no_pdl  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.step.cards import FIGURES, Sheet, load_sheet, load_spec, names  # noqa: E402
from tests.support.torch_helpers import DEVICES  # noqa: E402

H200, SERVER = load_sheet("card", "h200"), load_sheet("host", "server")


def line(base: float, slope: float, nodes: tuple[int, ...] = (1, 64, 1024)) -> dict[str, Any]:
    return calibrate.line_fit(nodes, [base + slope * n for n in nodes])


def median(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value, "samples": 3}


def on_a_gpu() -> dict[str, Any]:
    """What a calibration of a GPU would hold, with known answers."""
    medians = {
        "launch_us": 1.9, "op_us": 4.5, "copy_us": 5.0, "sync_us": 9.0,
        "copy_bandwidth_gb_s": 4290.0, "product_gb_s": 4320.0, "matmul_tflops": 791.6,
        "gap_difference_us": 0.6, "kernel_floor_us": 0.9, "pdl_saves_us": 0.7,
    }  # fmt: skip
    values = {"sm_count": 132, "graph_node_bytes": 9000}
    return {
        **{name: median(value) for name, value in medians.items()},
        **{name: {"value": value} for name, value in values.items()},
        "graph_launch": line(2.6, 0.002),
        "graph_device": line(7.0, 2.0),
        "capture": {**line(5.0, 2.4), "slope_over_a_launch": 0.5},
        "instantiate": line(20.0, 1.2),
    }


def card_of(figures: dict[str, Any], tmp_path: Path, **given: Any) -> Sheet:
    options = {"own_base": True, "emulated": False, **given}
    path = tmp_path / "card.json"
    fits = spec_fit.card_fits(figures, H200)
    card = spec_fit.sheet_json("card", fits, H200, "mine", evidence="calibration.json", **options)
    path.write_text(json.dumps(card))
    return load_sheet("card", path)


def host_of(figures: dict[str, Any], tmp_path: Path, *, emulated: bool = False) -> Sheet:
    path = tmp_path / "host.json"
    host = spec_fit.sheet_json(
        "host", spec_fit.host_fits(figures), SERVER, "mine", evidence="calibration.json",
        emulated=emulated, says="a host",
    )  # fmt: skip
    path.write_text(json.dumps(host))
    return load_sheet("host", path)


# ---------------------------------------------------------------- the fit


def test_each_figure_of_card_and_host_is_what_was_measured(tmp_path: Path) -> None:
    card = {
        "copy_bandwidth_gb_s": 4290.0, "product_share": 4320 / 4800, "peak_share": 791.6 / 989.5,
        "sm_count": 132, "graph_node_bytes": 9000,
        "graph_gap_us": 2.0, "stream_gap_us": 2.0 + 0.6, "pdl_saves_us": 0.7,
    }  # fmt: skip
    host = {
        "launch_us": 1.9, "op_us": 4.5, "copy_us": 5.0, "sync_us": 9.0, "graph_launch_us": 2.6,
        "graph_node_ns": 2.0, "capture_node_us": 0.5, "instantiate_node_us": 1.2,
    }  # fmt: skip
    sheets = card_of(on_a_gpu(), tmp_path), host_of(on_a_gpu(), tmp_path)
    for sheet, expected in zip(sheets, (card, host), strict=True):
        for name, value in expected.items():
            assert sheet[name] == pytest.approx(value, rel=1e-4), name
            assert sheet.figures[name].kind == "measured", name
            source = sheet.figures[name].source
            assert source.endswith("course/measurements/calibration.json"), name
    assert set(host) == set(FIGURES["host"])


def test_what_was_not_measured_keeps_its_source(tmp_path: Path) -> None:
    card = card_of(on_a_gpu(), tmp_path)
    for name in ("vram_bytes", "bandwidth_gb_s", "link_gb_s", "peak_tflops", "reserved_bytes"):
        assert card.figures[name] == H200.figures[name]
    assert card.words["family"] == H200.words["family"]


def test_a_figure_out_of_range_is_not_taken(tmp_path: Path) -> None:
    figures = on_a_gpu()
    figures["capture"]["slope_over_a_launch"] = -0.3
    figures["product_gb_s"] = median(5000.0)  # more than the datasheet has: another card's base
    card, host = card_of(figures, tmp_path), host_of(figures, tmp_path)
    assert host["capture_node_us"] == SERVER["capture_node_us"]
    assert "our measurement, -0.3, is not above 0" in host.figures["capture_node_us"].source
    assert card["product_share"] == H200["product_share"]
    assert "our measurement, 1.04, is more than 1" in card.figures["product_share"].source


def test_pdl_that_saves_nothing_is_measured_too_and_without_pdl_the_base_stands(
    tmp_path: Path,
) -> None:
    figures = {**on_a_gpu(), "pdl_saves_us": median(-0.02)}
    nothing = card_of(figures, tmp_path).figures["pdl_saves_us"]
    assert (nothing.value, nothing.kind) == (0, "measured")
    figures["pdl_saves_us"] = {"median": None, "reason": "sm_80"}
    assert card_of(figures, tmp_path).figures["pdl_saves_us"] == H200.figures["pdl_saves_us"]


def test_emulated_figures_say_in_both_files_that_they_are_no_evidence(tmp_path: Path) -> None:
    for figure in (
        card_of(on_a_gpu(), tmp_path, emulated=True).figures["graph_gap_us"],
        host_of(on_a_gpu(), tmp_path, emulated=True).figures["op_us"],
    ):
        assert figure.kind == "derived"
        assert figure.source.startswith("CPU emulation, no evidence about any GPU: ")


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H20-3e", None),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", None),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 5070 Ti Laptop GPU", None),
        ("Tesla T4", "t4"),
        ("unknown", None),
    ],
)
def test_a_gpu_is_known_by_its_name_and_its_cousins_are_not(gpu: str, name: str | None) -> None:
    assert spec_fit.base_name(gpu) == name
    assert name is None or name in names("card")


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize("device", DEVICES)
def test_every_figure_that_card_and_host_need_is_measured(device: str) -> None:
    backend = graphs_for(device)
    figures = dict(calibrate.measure(backend, calibrate.sizes_for(backend)))
    card, host = spec_fit.card_fits(figures, H200), spec_fit.host_fits(figures)
    assert set(card) <= set(FIGURES["card"])
    assert set(host) == set(FIGURES["host"])
    assert len(card) >= (5 if backend.emulated else 8)
    for name in ("op_us", "launch_us", "copy_us", "sync_us"):
        assert host[name].value > 0
    assert card["copy_bandwidth_gb_s"].value > 0
    assert card["product_share"].value > 0
    assert "kernel_floor_us" in figures
    assert figures["graph_launch"]["nodes"] == list(calibrate.sizes_for(backend).nodes)


# ---------------------------------------------------------------- clocks that are up


@pytest.mark.parametrize("what", ["graph gap", "PDL gap"])
def test_clocks_are_raised_before_a_kernel_of_a_few_us_is_timed(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle GPU lowers its clocks, and capturing leaves it idle."""
    order: list[str] = []

    def noted(name: str) -> None:
        original = getattr(calibrate, name)

        def call(*words: Any, **more: Any) -> Any:
            order.append(name)
            return original(*words, **more)

        monkeypatch.setattr(calibrate, name, call)

    for name in ("spin", "device_us"):
        noted(name)
    backend = graphs_for("cpu")
    dummy = calibrate.dummy_kernel(backend)
    if what == "graph gap":
        list(calibrate._graph_figures(backend, calibrate.sizes_for(backend), dummy, 1.0))
        timed = ["spin", "device_us"]  # for each size of graph, and then two differences
        assert order == [*timed * 3, *timed, "device_us", *timed, *timed]
    else:
        monkeypatch.setattr(calibrate, "no_pdl", lambda _: None)
        calibrate.pdl_figures(backend, 8, 2)
        assert order == ["spin", *["device_us"] * 4]  # two graphs, two rounds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu_both_chains_run_or_it_says_why_not() -> None:
    backend = graphs_for("cuda")
    figures = calibrate.pdl_figures(backend, nodes=256, rounds=8)
    if no_pdl(backend):
        assert figures["pdl_saves_us"]["reason"]
    else:
        assert 0.1 < figures["norm_node_pdl_us"]["median"] < 100


# ---------------------------------------------------------------- a host without a GPU


def test_an_op_on_cpu_tensors_is_timed_with_one_thread_and_threads_come_back() -> None:
    threads = torch.get_num_threads()
    found = calibrate.op_on_cpu_us(repeats=20)
    assert torch.get_num_threads() == threads
    assert 0.1 < found["low"] <= found["median"] <= found["high"] < 1e4
    assert found["ops"] > 100


def test_a_host_without_a_gpu_says_what_was_measured_and_borrows_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "my-laptop.json"
    assert main(["calibrate", "--host", "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    host = load_sheet("host", out)
    assert host.name == "my-laptop"
    op = host.figures["op_us"]
    assert (op.kind, op.value) == ("measured", pytest.approx(told["op_us"]["median"], rel=1e-4))
    assert "on CPU tensors" in op.source
    for name, figure in host.figures.items():
        if name != "op_us":
            assert figure.kind == "borrowed", name
            assert figure.source.startswith("of server (")
    assert list(out.parent.iterdir()) == [out]  # no evidence of a GPU, no card
    assert load_spec("h200", out).cpu_op_us > 0
    assert main(["calibrate", "--host", "-o", str(out)]) == 0
    assert "a launch on a GPU comes on top" in " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------- the command


def test_the_command_writes_a_card_a_host_and_measurements_that_are_no_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, evidence = tmp_path / "mine.json", tmp_path / "calibration.json"
    words = ["calibrate", "--device", "cpu", "-o", str(card)]
    words += ["--evidence", str(evidence)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["emulated"] is True
    assert told["files"] == {"card": str(card), "host": str(tmp_path / "mine-host.json")}
    spec = load_spec(*told["files"].values())
    assert (spec.name, spec.host) == ("emulated-calibrated", "emulated-host-calibrated")
    assert spec.engine == "numpy"  # as the base card says
    assert "no evidence" in spec.source("graph_gap_us")
    assert "no evidence" in spec.source("cpu_launch_us")
    assert read_measurement(evidence).kind == "calibration"
    assert str(tmp_path) not in evidence.read_text()
    with pytest.raises(ValueError, match="no evidence"):
        load_evidence(evidence)
