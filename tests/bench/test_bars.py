"""bars.py: what a file says of each bar, and what it may not say. Rows are made up."""

from __future__ import annotations

from typing import Any

import pytest

from mini_engine.bench.bars import BARS, Result, judged
from tests.support.bench_rows import made_up, made_up_row


def results(rows: list[dict[str, Any]], **given: Any) -> dict[str, Result]:
    return {r.name: r for r in judged(made_up(rows, **{"emulated": False, **given}))}


def row(variant: str, us: float, batch: int = 1, shape: str = "qwen3-1.7b") -> dict[str, Any]:
    return made_up_row(variant, batch, 512, shape, us=us)


@pytest.mark.parametrize(
    ("us", "status", "stretch"),
    [(900.0, "reached", True), (980.0, "reached", False), (1050.0, "missed", False)],
)
def test_an_itl_is_held_against_bar_and_stretch(us: float, status: str, stretch: bool) -> None:
    found = results([row("graph-5-pdl", us), row("graph-9", us + 300)])["itl-1.7b"]
    assert found.status == status
    assert ("stretch" in found.why) is stretch


def test_an_interval_across_the_bar_is_a_miss() -> None:
    across = row("graph-5", 1000.0)
    across["itl"] |= {"median": 999.0, "low": 990.0, "high": 1001.0}
    assert results([across])["itl-1.7b"].status == "missed"
    across["itl"] |= {"high": 1000.0}
    assert results([across])["itl-1.7b"].status == "reached"


def test_a_ratio_is_taken_at_the_worse_ends_of_both_intervals() -> None:
    ours, theirs = (row(name, us, shape="qwen3-0.6b") for name, us in
                    (("graph-5-pdl", 400.0), ("hf-eager", 3200.0)))  # fmt: skip
    ours["itl"] |= {"median": 400.0, "low": 390.0, "high": 400.0}
    theirs["itl"] |= {"median": 3210.0, "low": 3199.0, "high": 3300.0}
    assert results([ours, theirs])["times-transformers"].status == "missed"
    theirs["itl"] |= {"low": 3200.0}
    assert results([ours, theirs])["times-transformers"].status == "reached"
    theirs["no_graph"] = "graphs left out: 2"
    assert "graphs left out: 2" in results([ours, theirs])["times-transformers"].why


def test_what_failed_the_gate_reaches_nothing() -> None:
    wrong = row("graph-5", 900.0)
    wrong["gate"] = {**wrong["gate"], "passed": False}
    assert results([wrong])["itl-1.7b"].status == "not measured"


@pytest.mark.parametrize("given", [{"emulated": True}, {"gpu": "NVIDIA A100"}])
def test_the_emulator_and_another_gpu_reach_nothing(given: dict[str, Any]) -> None:
    assert {r.status for r in results([row("graph-5", 100.0)], **given).values()} == {
        "not measured"
    }


def test_the_bars_of_itl_are_those_of_one_table() -> None:
    itl = {bar.shape: (bar.limit, bar.stretch) for bar in BARS if not bar.baseline}
    assert itl == {"qwen3-0.6b": (0.42, 0.39), "qwen3-1.7b": (1.00, 0.95),
                   "llama-3.2-1b": (0.76, 0.70)}  # fmt: skip
