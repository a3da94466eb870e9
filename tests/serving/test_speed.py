"""Claims about the bench: it sees a difference, and says in one line what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from mini_engine.serving.request_trace import synthetic_trace
from tests.serving.speed import differences, main, server, time_strides


def test_differences_between_two_runs_are_named() -> None:
    timed = time_strides(synthetic_trace(5, seed=0), 5)
    report = timed.report
    assert timed.steps_per_s == report.steps / timed.wall_s
    assert differences(report, report) == ([], 0.0)
    other = replace(report, preemptions=3, turns=9999, busy_us=report.busy_us * 1.5)
    assert differences(report, other) == (["preemptions"], pytest.approx(0.5))
    assert differences(report, replace(report, ran={}))[0] == ["ran"]


def test_the_server_of_the_bench_has_graphs() -> None:
    plan, _ = server()
    assert plan.graph_costs.graphs > 0


def test_a_missing_trace_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--most", "0", "--trace", str(tmp_path / "none.csv")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert "none.csv" in errors[0]
