"""Claims about sweeps: cut, resumed, on one core, on many or on Ray, the table is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mini_engine.fleet.fleet import Design
from mini_engine.fleet.sweep import Row, Sweep, cell_of, cheapest, designs_up_to, row_of, sweep_to

ROOT = Path(__file__).parents[2]
BASE = Design("qwen3-0.6b", ("h100",), slo_us=(2e5, 1e4))
few_or_500 = pytest.mark.parametrize("cells", [10, pytest.param(500, marks=pytest.mark.slow)])


def trace_of(folder: Path, requests: int = 8) -> str:
    path = folder / "trace.jsonl"
    lines = [
        {"arrival_s": i / 10, "prompt_tokens": 300 + 50 * i, "output_tokens": 20 + i}
        for i in range(requests)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def sweep_of(folder: Path, cells: int) -> Sweep:
    cards = ("h100", "l40s", "a10", "h200", "a100")
    modes, routers = ("FULL", "NONE"), ("least", "round-robin", "two", "prefix")
    designs = designs_up_to(BASE, cards, 3 if cells > 100 else 2, routers, modes)
    assert len(designs) >= min(cells, 400)
    return Sweep(trace_of(folder), designs[:cells])


PROGRAM = """
import sys
from pathlib import Path
from tests.fleet.test_sweep import sweep_of
from mini_engine.fleet.sweep import sweep_to
folder, cells, jobs, on = Path(sys.argv[1]), *map(int, sys.argv[2:4]), sys.argv[4]
sweep_to(folder / "table.csv", sweep_of(folder, cells), jobs=jobs, on=on)
"""


def killed_at(half: int, folder: Path, cells: int, jobs: int) -> None:
    """A sweep in a process of its own, which is killed, with its workers, at half."""
    command = [sys.executable, "-c", PROGRAM, str(folder), str(cells), str(jobs), "processes"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, start_new_session=True) as sweep:
        while sweep.poll() is None and rows_in(folder) < half:
            time.sleep(0.01)
        os.killpg(sweep.pid, signal.SIGKILL)
    assert half <= rows_in(folder) < cells


def rows_in(folder: Path) -> int:
    path = folder / "table.csv"
    return max(0, path.read_text().count("\n") - 1) if path.exists() else 0


@few_or_500
def test_a_sweep_that_is_killed_at_half_goes_on_and_ends_with_the_same_table(
    cells: int, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole.csv", tmp_path / "table.csv"
    sweep = sweep_of(tmp_path, cells)
    rows = sweep_to(whole, sweep)
    assert [row["cards"] for row in rows] == [cell_of(design)["cards"] for design in sweep.designs]
    killed_at(cells // 2, tmp_path, cells, jobs=2)
    with cut.open("a") as file:
        file.write(cut.read_text().splitlines()[1][:40])  # the kill was in the midst of a line
    told: list[Row] = []
    again = sweep_to(cut, sweep, jobs=2, tell=told.append)
    assert cut.read_bytes() == whole.read_bytes()
    assert again == rows
    assert len(told) <= cells - cells // 2  # what was done is not done again
    assert sweep_to(cut, sweep, tell=told.append) == rows
    assert len(told) <= cells - cells // 2


@pytest.mark.slow
@few_or_500
def test_rays_table_is_that_of_the_processes(cells: int, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install .[fleet]")
    sweep = sweep_of(tmp_path, cells)
    assert sweep_to(tmp_path / "a.csv", sweep, jobs=2) == sweep_to(
        tmp_path / "b.csv", sweep, on="ray"
    )
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def dies_at(cards: str) -> Callable[..., Row]:
    return _Dies(cards)


class _Dies:
    """Serves a design, except the one at which its worker dies, as if it were out of memory."""

    def __init__(self, cards: str) -> None:
        self.cards = cards

    def __call__(self, sweep: Sweep, design: Design) -> Row:
        if cell_of(design)["cards"] == self.cards:
            os.kill(os.getpid(), signal.SIGKILL)
        return row_of(sweep, design)


@pytest.mark.parametrize(
    ("on", "jobs"), [("processes", 2), pytest.param("ray", 1, marks=pytest.mark.slow)]
)
def test_a_worker_that_dies_takes_one_cell_with_it(on: str, jobs: int, tmp_path: Path) -> None:
    if on == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install .[fleet]")
    sweep = sweep_of(tmp_path, 10)
    expected = sweep_to(tmp_path / "sound.csv", sweep)
    path = tmp_path / "table.csv"
    rows = sweep_to(path, sweep, on=on, jobs=jobs, do=dies_at("1xl40s"))
    assert [row["error"] for row in rows if row["cards"] == "1xl40s"] == ["its worker died"] * 2
    sound = [row for row in expected if row["cards"] != "1xl40s"]
    assert [row for row in rows if row["cards"] != "1xl40s"] == sound
    assert sweep_to(path, sweep) == expected  # what failed is done again


def test_a_model_that_does_not_fit_is_a_row_with_an_error(tmp_path: Path) -> None:
    designs = designs_up_to(replace(BASE, model="llama-3-8b"), ("rtx3060",), 1, ["least"], ["FULL"])
    (row,) = sweep_to(tmp_path / "table.csv", Sweep(trace_of(tmp_path), designs))
    assert "rtx3060" in row["error"]
    assert cheapest([row], 0.5) is None


def test_a_table_of_another_sweep_is_not_written_over(tmp_path: Path) -> None:
    sweep, path = sweep_of(tmp_path, 2), tmp_path / "table.csv"
    sweep_to(path, sweep)
    before = path.read_bytes()
    other = replace(sweep, designs=tuple(replace(d, slo_us=(1.0, 1.0)) for d in sweep.designs))
    for strange in (other, replace(sweep, shared=(64, 1.0, 1))):
        with pytest.raises(ValueError, match="another table"):
            sweep_to(path, strange)
    assert path.read_bytes() == before
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="another table"):
        sweep_to(path, sweep)
    trace_of(tmp_path, 9)  # the same name, and another trace
    path.write_bytes(before)
    with pytest.raises(ValueError, match="another table"):
        sweep_to(path, sweep)


def test_the_cheapest_is_the_cheapest_of_those_that_are_good_enough() -> None:
    def row(cards: str, cost: float, content: float, ttft: float) -> dict[str, Any]:
        figures = {"cost_per_hour": cost, "content_share": content, "ttft_p99_us": ttft}
        return {"cards": cards, "error": "", **figures}

    rows = [row("a", 1, 0.5, 10), row("b", 3, 0.99, 30), row("c", 3, 1.0, 20), row("d", 9, 1.0, 1)]
    best = cheapest(rows, 0.99)
    assert best
    assert best["cards"] == "c"
    assert cheapest(rows, 1.01) is None


def test_no_fleet_beats_one_of_the_front(tmp_path: Path) -> None:
    from mini_engine.plots.figures import fleet_costs, pareto_front  # no worker draws

    points = [(3.0, 5.0), (1.0, 9.0), (2.0, 9.0), (3.0, 4.0), (4.0, 4.0), (5.0, 1.0)]
    assert pareto_front(points) == [(1.0, 9.0), (3.0, 4.0), (5.0, 1.0)]
    path = tmp_path / "fleet.png"
    fleet_costs([(x, y, y < 5, f"{x:.0f}xh100") for x, y in points], "a title", "fleets", path)
    assert path.stat().st_size > 5000
