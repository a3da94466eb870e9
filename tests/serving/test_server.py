"""`Server`: the same predictions as the commands', behind one object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mini_engine import Server
from mini_engine.cli import main
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace

WORDS = ["--shape", "qwen3-1.7b", "--spec", "rtx4090"]
SERVER = Server("qwen3-1.7b", "rtx4090")


def json_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, *WORDS, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("mode", ["NONE", "PIECEWISE", "FULL"])
def test_a_step_is_that_of_crossover(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = json_of(capsys, "crossover", "--context", "512")["batch_1"][mode]
    found = SERVER.itl(1, 512, mode)
    expected = [wanted[name] / 1e3 for name in ("itl_us", "low_us", "high_us")]
    assert [*found[:3]] == pytest.approx(expected)
    assert found.mode == mode


def test_a_step_taken_apart_is_that_of_explain(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = json_of(capsys, "explain", "--batch", "4", "--itl", "9")
    found = SERVER.explain(batch=4, itl_ms=9)
    assert (found.mode, found.cpu_us) == (wanted["mode"], pytest.approx(wanted["cpu_us"]))


@pytest.mark.parametrize("trace", [SHIPPED_TRACE, read_trace(SHIPPED_TRACE)], ids=["file", "list"])
def test_a_replay_is_that_of_serve(trace: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = json_of(capsys, "serve")
    found = SERVER.replay(trace)
    assert (found.requests, found.steps) == (wanted["requests"], wanted["steps"])
    assert found.itl_p99_us == pytest.approx(wanted["itl_p99_us"])


def test_a_ladder_of_few_rungs_holds_the_batches_that_ran_most() -> None:
    assert SERVER.ladder({33: 100, 1: 7}, rungs=2) == [1, 33]
