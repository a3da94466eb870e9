"""What a card, a host or an engine calls measured stands in a kept file, and is what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mini_engine.bench.evidence import load_evidence, new_measurement, write_measurement
from mini_engine.bench.spec_fit import card_fits, host_fits
from mini_engine.step.cards import FOLDERS, Sheet, load_sheet, names
from mini_engine.validate.points import SHIPPED_POINTS, Sheets, read_points
from tests.bench.test_calibrate import card_of, on_a_gpu
from tests.support.documents import ROOT

MEASUREMENTS = ROOT / "course/measurements"
SHIPPED = [(kind, name) for kind in FOLDERS for name in names(kind)]


def without_evidence(kind: str, sheet: Sheet, folder: Path) -> list[str]:
    """The figures that are called measured and are not in the file that their source names."""
    return [
        name
        for name, one in sheet.figures.items()
        if one.kind == "measured" and one.value not in _kept(kind, name, sheet, folder)
    ]


def _kept(kind: str, name: str, sheet: Sheet, folder: Path) -> set[float]:
    """A figure as its kept file has it, as a file of figures rounds it; nothing without a file."""
    named = re.search(r"course/measurements/([\w.-]+\.json)", sheet.figures[name].source)
    if not named or not (folder / named[1]).exists() or kind == "engine":
        return set()  # no calibration writes an engine's file
    figures = load_evidence(folder / named[1]).figures
    fits = card_fits(figures, sheet) if kind == "card" else host_fits(figures)
    return {float(f"{fits[name].value:.5g}"), round(fits[name].value)} if name in fits else set()


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_no_shipped_figure_is_called_measured_without_its_file(kind: str, name: str) -> None:
    assert without_evidence(kind, load_sheet(kind, name), MEASUREMENTS) == []


def test_every_published_point_names_its_page_or_repository() -> None:
    points, _ = read_points(SHIPPED_POINTS, Sheets.shipped())
    address = re.compile(r"https?://|github[ :][\w.-]+/[\w.-]+")
    assert [point.id for point in points if not address.search(point.source)] == []


def test_a_measured_figure_stands_in_the_file_that_it_names(tmp_path: Path) -> None:
    card = card_of(on_a_gpu(), tmp_path)
    measured = [name for name, one in card.figures.items() if one.kind == "measured"]
    assert len(measured) == 8
    assert without_evidence("card", card, tmp_path) == measured, "no file is kept yet"

    kept = new_measurement("calibration", "cpu", "a test", on_a_gpu())
    write_measurement(
        tmp_path / "calibration.json", replace(kept, gpu="NVIDIA H200", emulated=False)
    )
    assert without_evidence("card", card, tmp_path) == []

    rounded = replace(card.figures["sm_count"], value=131)
    other = replace(card, figures={**card.figures, "sm_count": rounded})
    assert without_evidence("card", other, tmp_path) == ["sm_count"]


def test_what_the_emulator_wrote_is_no_evidence(tmp_path: Path) -> None:
    card = card_of(on_a_gpu(), tmp_path)
    kept = new_measurement("calibration", "cpu", "a test", on_a_gpu())
    write_measurement(tmp_path / "calibration.json", kept)
    with pytest.raises(ValueError, match="emulat"):
        without_evidence("card", card, tmp_path)
