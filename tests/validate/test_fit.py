"""The fit finds what made the points, says what it cannot tell, and sees nothing left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from mini_engine.step import cards
from mini_engine.validate import fit
from mini_engine.validate.fit import (
    Parameter,
    fit_points,
    hosts_to_fit,
    left_out,
    left_out_beside,
    parameters,
)
from mini_engine.validate.points import Point, Sheets, predicted_ms

SHEETS = Sheets.shipped().with_hosts({"attic": 10.6, "cellar": 10.6})
TRUTH = {"attic": 6.0, "cellar": 19.0, "vllm": 4.7, "floor": 1.6, "share": 0.79}
TABLE = (
    Parameter("attic", "op_us", (("host", "attic"),), 10.6, 0.5, "a test"),
    Parameter("cellar", "op_us", (("host", "cellar"),), 10.6, 0.5, "a test"),
    Parameter("vllm", "kernel_ops", (("engine", "vllm-2025"),), 5.9, 0.5, "a test"),
    Parameter(
        "floor",
        "kernel_floor_us",
        (("engine", "vllm"), ("engine", "vllm-2025")),
        2.0,
        0.5,
        "a test",
    ),
    Parameter("share", "product_share", (("card", "a100"),), 0.7, 0.2, "a test", top=1),
)


def true_sheets() -> Sheets:
    sheets = SHEETS
    for parameter in TABLE:
        for kind, name in parameter.where:
            sheets = sheets.with_figure(kind, name, parameter.figure, TRUTH[parameter.name])
    return sheets


def made(cls: str, host: str, model: str, batch: int, source: str = "") -> Point:
    """A point that the model itself has made."""
    id = f"{cls}-{host}-{model}-{batch}"
    point = Point(id, cls, model, "a100", batch, 500, 1.0, host, source or host)
    return replace(point, itl_ms=predicted_ms(point, true_sheets()))


POINTS = [
    made(cls, host, model, batch)
    for host in ("attic", "cellar")
    for cls in ("transformers eager", "vLLM eager", "vLLM V1 graph full")
    for model in ("qwen3-0.6b", "qwen3-8b")
    for batch in (1, 8)
]


def found(points: Sequence[Point]) -> dict[str, float]:
    fit = fit_points(points, SHEETS, TABLE)
    return {p.name: fit.value(i) for i, p in enumerate(fit.parameters)}


def test_the_fit_recovers_the_figures_that_made_the_points() -> None:
    """2%: priors pull a little, 24 points without noise pull more."""
    assert found(POINTS) == pytest.approx(TRUTH, rel=0.02)


def test_the_truth_lies_in_the_intervals_of_points_with_noise() -> None:
    rng = np.random.default_rng(4)
    noisy = [replace(p, itl_ms=p.itl_ms * math.exp(rng.normal(0, 0.04))) for p in POINTS]
    fit = fit_points(noisy, SHEETS, TABLE)
    for index, parameter in enumerate(fit.parameters):
        low, high = fit.interval(index)
        assert low < fit.value(index) < high
        assert low / 1.05 < TRUTH[parameter.name] < high * 1.05


def test_one_wild_point_does_not_carry_the_fit_away() -> None:
    wild = [replace(POINTS[0], itl_ms=10 * POINTS[0].itl_ms), *POINTS[1:]]
    assert found(wild) == pytest.approx(TRUTH, rel=0.15)


def test_without_a_point_that_it_moves_a_parameter_keeps_its_prior() -> None:
    fit = fit_points([p for p in POINTS if p.host == "attic"], SHEETS, TABLE)
    cellar = [p.name for p in fit.parameters].index("cellar")
    assert fit.value(cellar) == pytest.approx(10.6)
    assert fit.told_by_data(cellar) == pytest.approx(0, abs=1e-9)
    low, high = fit.interval(cellar)
    assert high / low == pytest.approx(math.exp(2 * 1.645 * 0.5), rel=1e-3)
    assert fit.told_by_data(cellar - 1) > 0.9


def test_a_host_and_an_engine_that_only_meet_each_other_cannot_be_separated() -> None:
    """Only their product counts: vLLM's ops, at the speed of this host."""
    met = [p for p in POINTS if p.host == "attic" and p.cls == "vLLM eager"]
    [(one, other, correlation)] = fit_points(met, SHEETS, TABLE).inseparable()
    assert {one, other} == {"attic", "vllm"}
    assert correlation < -0.9
    assert fit_points(POINTS, SHEETS, TABLE).inseparable() == []


# ---- a source left out


def test_what_a_left_out_source_measured_does_not_change_its_prediction() -> None:
    fit = fit_points(POINTS, SHEETS, TABLE)
    honest = left_out(POINTS, fit)
    lied = [replace(p, itl_ms=5 * p.itl_ms) if p.source == "cellar" else p for p in POINTS]
    told = left_out(lied, fit)
    for point in POINTS:
        if point.source == "cellar":
            assert told[point.id] == honest[point.id]
        else:  # which the lie may mislead
            assert told[point.id] != honest[point.id]


def test_a_host_that_only_the_left_out_source_has_met_is_the_usual_one() -> None:
    fit = fit_points(POINTS, SHEETS, TABLE)
    for point in POINTS:
        if point.cls == "transformers eager":
            sheets = fit_points(
                [p for p in POINTS if p.source != point.source], fit.sheets, TABLE
            ).sheets
            expected = predicted_ms(point, sheets, sheets.hosts["server"])
            assert left_out(POINTS, fit)[point.id] == pytest.approx(expected, rel=0.01)
            break


# ---- which hosts, and the table that ships


def test_points_beside_the_fit_are_predicted_without_their_machine_and_their_source() -> None:
    fit = fit_points(POINTS, SHEETS, TABLE)
    of_attic = replace(POINTS[0], id="beside", tp=2, source="another page")
    of_cellars_page = replace(POINTS[0], id="page", host="third", source="cellar")
    of_nobody = replace(POINTS[0], id="new", host="new", source="new")
    beside = left_out_beside(POINTS, [of_attic, of_cellars_page, of_nobody], fit)
    assert set(beside) == {"beside", "page"}  # the fit has seen nothing of the third
    lied = [replace(p, itl_ms=3 * p.itl_ms) if p.host == "attic" else p for p in POINTS]
    assert left_out_beside(lied, [of_attic], fit)["beside"] == pytest.approx(beside["beside"])


def test_a_host_is_fitted_where_a_step_waited_for_it() -> None:
    points = [
        Point("a", "vLLM eager", "qwen3-0.6b", "a100", 1, 1, 1.0, "barn", "s"),
        Point("b", "vLLM V1 graph full", "qwen3-0.6b", "a100", 1, 1, 1.0, "shed", "s"),
    ]
    hosts = hosts_to_fit(points, SHEETS).hosts
    assert "barn" in hosts
    assert "shed" not in hosts


def test_the_shipped_table_names_figures_that_exist_and_says_where_a_prior_is_from() -> None:
    sheets = Sheets.shipped()
    table = parameters(sheets)
    assert len({p.name for p in table}) == len(table)
    kinds = {"card": sheets.cards, "host": sheets.hosts, "engine": sheets.engines}
    homes = [(kind, name, p.figure) for p in table for kind, name in p.where]
    assert len(set(homes)) == len(homes)  # no figure is fitted twice
    for kind, name, figure in homes:
        assert figure in kinds[kind][name].figures
    assert all(p.why and p.where and p.prior > 0 and p.spread > 0 for p in table)


def test_what_a_fit_keeps_is_what_the_next_reader_of_a_sheet_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, folder in cards.FOLDERS.items():
        monkeypatch.setitem(cards.FOLDERS, kind, copytree(folder, tmp_path / kind))
    monkeypatch.setattr(fit, "KEPT", tmp_path / "fit.json")
    monkeypatch.setattr(fit, "INTERVALS", tmp_path / "intervals.json")
    before = cards.load_sheet("card", "a100")["product_share"]
    fit.keep(fit_points(POINTS, SHEETS, TABLE), POINTS, {p.id: p.itl_ms for p in POINTS})
    after = cards.load_sheet("card", "a100")["product_share"]
    cards.shipped_sheet.cache_clear()  # for those who come after this test
    assert after != before
    assert after == pytest.approx(TRUTH["share"], rel=0.02)
