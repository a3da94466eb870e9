"""measure/bars.py: what a file says of each bar, and what it may not say. Rows are made up."""

from __future__ import annotations

from typing import Any

import pytest

from mini_engine.cli import build_parser
from mini_engine.cuda.measure.bars import (
    BARS,
    BASELINES,
    BATCHES,
    BENCH,
    CALIBRATE,
    SHAPES,
    Result,
    judged,
)
from tests.support.bench_rows import made_up, made_up_row
from tests.support.documents import ROOT, fences

Row = dict[str, Any]  # of a file


def results(rows: list[Row], **given: Any) -> dict[str, Result]:
    measurement = made_up(rows, **{"emulated": False, **given})
    return {result.bar.name: result for result in judged(measurement)}


def row(
    variant: str, us: float, batch: int = 1, shape: str = "qwen3-1.7b", context: int = 512
) -> Row:
    return made_up_row(variant, batch, context, shape, us=us)


def failed(one: Row) -> Row:
    """A baseline that failed the gate: its time is in the file all the same."""
    return {**one, "gate": {**one["gate"], "passed": False}}


@pytest.mark.parametrize(
    ("us", "status", "stretch"),
    [(870.0, "reached", True), (950.0, "reached", False), (1050.0, "missed", False)],
)
def test_an_itl_is_held_against_bar_and_stretch(us: float, status: str, stretch: bool) -> None:
    found = results([row("graph-5", us), row("graph-9", us + 300)])["itl-qwen3-1.7b"]
    assert found.status == status
    assert found.value == pytest.approx(us, rel=0.02)  # made-up rows have noise of 0.4%
    assert found.why.startswith("graph-5 at context 512: ")
    assert ("so is the stretch of 890 µs" in found.why) is stretch


def test_an_interval_across_the_bar_is_a_miss() -> None:
    across = row("graph-5", 1000.0)
    across["itl_us"] |= {"median": 999.0, "low": 990.0, "high": 1001.0}
    assert results([across])["itl-qwen3-1.7b"].status == "missed"
    across["itl_us"] |= {"high": 1000.0}
    assert results([across])["itl-qwen3-1.7b"].status == "reached"


def test_the_largest_context_up_to_512_counts_and_batch_1() -> None:
    rows = [row("graph-5", 1200.0), row("graph-5", 900.0, context=128),
            row("graph-5", 900.0, context=2048), row("graph-5", 900.0, batch=2)]  # fmt: skip
    assert results(rows)["itl-qwen3-1.7b"].status == "missed"
    assert results(rows[2:])["itl-qwen3-1.7b"].status == "not measured"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"emulated": True}, "the CPU emulator wrote this file"),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, "the bars are for an H200, this is NVIDIA A100"),
    ],
)
def test_another_machine_measures_no_bar(given: dict[str, Any], why: str) -> None:
    found = results([row("graph-5", 100.0)], **given)
    assert {result.status for result in found.values()} == {"not measured"}
    assert all(result.why.startswith(why) and result.value is None for result in found.values())


def test_a_variant_of_somebody_else_or_past_no_gate_reaches_nothing() -> None:
    rows = [row(variant, 500.0) for variant in ("hf-compile", "compile-reduce-overhead", "null")]
    rows.append({**row("graph-5", 500.0), "status": "gate failed"})
    rows.append(failed(row("graph-9", 500.0)))
    assert results(rows)["itl-qwen3-1.7b"].status == "not measured"


@pytest.mark.parametrize(("theirs", "status"), [(8300.0, "reached"), (7900.0, "missed")])
def test_times_transformers_is_of_the_shape_with_the_smallest_factor(
    theirs: float, status: str
) -> None:
    rows = [row("graph-5", 1000.0), row("hf-eager", 20_000.0)]
    rows += [row("graph-5", 1000.0, shape="qwen3-0.6b"), row("hf-eager", theirs, shape=SHAPES[0])]
    found = results(rows)["times-transformers"]
    assert found.status == status
    assert found.why.startswith("qwen3-0.6b, graph-5: ")
    assert "2 of 4 shapes measured" in found.why


def test_a_ratio_is_judged_by_the_ends_that_speak_against_us() -> None:
    ours, theirs = row("graph-5", 1000.0), row("hf-eager", 8000.0)
    ours["itl_us"] |= {"median": 990.0, "high": 1001.0}
    theirs["itl_us"] |= {"median": 8100.0, "low": 8000.0}
    assert results([ours, theirs])["times-transformers"].status == "missed"
    ours["itl_us"] |= {"high": 1000.0}
    assert results([ours, theirs])["times-transformers"].status == "reached"


def test_a_baseline_that_failed_the_gate_is_no_baseline() -> None:
    rows = [row("graph-5", 1000.0), failed(row("compile-reduce-overhead", 9000.0))]
    assert results(rows)["times-compile"].status == "not measured"


def everywhere(slow_at: tuple[str, int] | None = None) -> list[Row]:
    """Every shape and batch: a baseline of 1,000 µs, ours 10% faster, or slower at one place."""
    rows = []
    for shape in SHAPES:
        for batch in BATCHES:
            ours = 1100.0 if (shape, batch) == slow_at else 900.0
            rows += [row("graph-5", ours, batch, shape), row(BASELINES[1], 1000.0, batch, shape)]
    return rows


def test_never_slower_takes_every_point_and_falls_at_one() -> None:
    assert results(everywhere())["never-slower"].status == "reached"
    some = results(everywhere()[:6])["never-slower"]
    assert some.status == "not measured"
    assert some.why.startswith("holds at 3 of 36 points so far")
    slow = results(everywhere(slow_at=("llama-3.2-1b", 64)))["never-slower"]
    assert slow.status == "missed"
    assert slow.why.startswith("llama-3.2-1b, batch 64: graph-5 1,1")
    assert slow.value == pytest.approx(1.1, rel=0.03)
    level = [row("graph-5", 1000.0), row("hf-compile", 999.0)]
    level[0]["itl_us"] |= {"low": 995.0}
    level[1]["itl_us"] |= {"high": 1003.0}  # the intervals overlap: nobody is slower
    assert results(level)["never-slower"].status == "not measured"


def predicted(rows: list[Row], factor: float) -> list[Row]:
    return [{**one, "predicted_us": one["itl_us"]["median"] * factor} for one in rows]


def test_the_simulator_is_judged_by_its_worst_point_and_only_with_a_fitted_spec() -> None:
    rows = predicted([row("ours-graph", 1000.0), row("hf-eager", 9000.0)], 1.05)
    assert results(rows)["prediction"].status == "not measured"
    assert "predicted with h200 and server, not measured on this" in results(rows)["prediction"].why
    half = results(rows, spec="h200-calibrated")["prediction"]
    assert half.why.startswith("predicted with server, not measured on this machine")
    here = {"spec": "h200-calibrated", "host": "h200-host-calibrated"}
    fitted = results(rows, **here)["prediction"]
    assert fitted.status == "reached"
    assert fitted.why.startswith("2 of 2 points within 10%; worst ")
    rows += predicted([row("graph-5", 800.0)], 0.8)
    worst = results(rows, **here)["prediction"]
    assert worst.status == "missed"
    assert "worst graph-5, qwen3-1.7b, batch 1, context 512: 20.0% off" in worst.why
    pdl = predicted([row("graph-5-pdl", 800.0)], 0.5)  # the simulator has no PDL
    assert results(rows[:2] + pdl, **here)["prediction"].status == "reached"


def test_every_bar_names_its_source_and_a_command_and_can_be_written() -> None:
    found = results([row("graph-5", 900.0)])
    assert list(found) == [bar.name for bar in BARS]
    assert len(found) == 7
    for bar in BARS:
        assert bar.source
        assert bar.command.startswith(BENCH)
    written = found["itl-qwen3-1.7b"].as_dict()
    assert written["status"] == "reached"
    assert written["source"].startswith("3.44 GB at 80%")


def test_the_course_lists_every_bar_as_a_debt_with_its_command() -> None:
    """Until a GPU has measured it. Fails when a bar says something else now: change the list."""
    text = (ROOT / "course/measurements/README.md").read_text()
    commands = [" ".join(command.split()) for fence in fences(text) if fence.info == "sh gpu"
                for command in fence.commands]  # fmt: skip
    assert f".venv/bin/{CALIBRATE}" in commands
    for bar in BARS:
        assert f"| {bar.says} | {bar.source} | not yet measured |" in text, bar.name
        assert f".venv/bin/{bar.command}" in commands, bar.name


@pytest.mark.parametrize("command", [CALIBRATE, *(bar.command for bar in BARS)])
def test_every_command_is_one_that_the_command_line_takes(command: str) -> None:
    words = command.split()[3:]
    args = build_parser(words).parse_args(words)
    if words[0] == "bench":
        assert args.resume
        assert args.out.as_posix() == "course/measurements/bars-h200.json"
