"""Other engines, through stand-ins for their interfaces: known token times, and ways to fail."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")


from mini_engine.bench import others
from mini_engine.bench.others import KINDS, NAMES, OURS, Job, gaps, prompts
from mini_engine.bench.rows import MEASURED, NOT_RUN
from tests.support.other_engines.clockwork import CLOCK, DECODE_US, EVERY_TENTH_US, next_token

STAND_INS = Path(__file__).parent.parent / "support" / "other_engines"
FOREIGN = [name for name in NAMES if not name.startswith(OURS)]
STAND_IN_MODULES = (
    *("vllm", "vllm.sampling_params"),
    *("sglang", "sglang.srt", "sglang.srt.server_args"),
)
BATCH, CONTEXT, TOKENS, LAPS = 3, 20, 21, 2


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The engines and their clock, in this process; a folder."""
    monkeypatch.syspath_prepend(STAND_INS)
    monkeypatch.setattr(time, "perf_counter", CLOCK)
    for name in STAND_IN_MODULES:
        sys.modules.pop(name, None)
    yield str(tmp_path)
    for name in STAND_IN_MODULES:
        sys.modules.pop(name, None)


def job(engine: str, model: str, **other: Any) -> Job:
    words = {"batch": BATCH, "context": CONTEXT, "tokens": TOKENS, "laps": LAPS, **other}
    return Job(engine, model, vocab=256, **words)


# ---------------------------------------------------------------- token times


@pytest.mark.parametrize("engine", FOREIGN)
def test_an_engine_gets_our_prompts_and_its_times_are_those_of_its_decode_steps(
    engine: str, stand_ins: str
) -> None:
    """Steps that compute prompts take 50 ms, the first batch is a hundred times as slow."""
    asked = job(engine, stand_ins)
    answer = others.answer(asked)
    for prompt, written in zip(prompts(asked, 1), answer["tokens"], strict=True):
        assert len(written) == TOKENS
        for count, token in enumerate(written):
            assert token == next_token(prompt + written[:count])
    assert len(answer["laps"]) == LAPS
    slower = 2.0 if engine.endswith("-eager") else 1.0
    for gaps_us, tokens_a_piece in answer["laps"]:
        assert set(map(round, gaps_us)) == {DECODE_US * slower, EVERY_TENTH_US * slower}
        assert statistics.median(gaps_us) == pytest.approx(DECODE_US * slower)
        assert tokens_a_piece == 1.0


@pytest.mark.parametrize(("incremental", "together"), [(True, False), (False, True), (True, True)])
def test_sglang_may_send_all_tokens_or_the_new_ones_and_several_in_one_piece(
    incremental: bool, together: bool, stand_ins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang: Any = importlib.import_module("sglang")
    monkeypatch.setattr(sglang, "INCREMENTAL", incremental)
    monkeypatch.setattr(sglang, "TOGETHER", together)
    asked = job("sglang", stand_ins)
    answer = others.answer(asked)
    assert len(answer["tokens"][0]) == TOKENS
    assert answer["tokens"][0][1] == next_token(prompts(asked, 1)[0] + answer["tokens"][0][:1])
    gaps_us, tokens_a_piece = answer["laps"][0]
    assert tokens_a_piece == (2.0 if together else 1.0)
    assert statistics.median(gaps_us) == pytest.approx(DECODE_US * (1 + together))


TIMES = st.lists(
    st.lists(st.integers(0, 30), min_size=2, max_size=8).map(sorted), min_size=1, max_size=4
)


@given(TIMES)
def test_a_gap_counts_while_every_request_is_decoding(times: list[list[int]]) -> None:
    """Against the definition, moment by moment."""

    def all_decode(moment: int) -> bool:
        return all(each[0] <= moment <= each[-1] for each in times)

    wanted = [
        1e6 * (after - before)
        for each in times
        for before, after in pairwise(sorted(set(each)))
        if all(all_decode(moment) for moment in range(before, after + 1))
    ]
    if not wanted:
        with pytest.raises(ValueError, match=f"{len(times)} requests never all decoded"):
            gaps(times)
        return
    found, tokens_a_piece = gaps(times)
    assert found == pytest.approx(wanted)
    assert tokens_a_piece >= 1.0


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_that_is_missing_is_named_with_how_to_install_it(engine: str) -> None:
    reason = others.answer(job(engine, "here"))["not_run"]
    assert KINDS[engine][2] in reason


@pytest.mark.parametrize(
    ("mode", "seconds", "reason"),
    [
        ("dies", 20.0, "its process ended with code 3: CUDA error: out of memory"),
        ("hangs", 3.0, "it gave no answer in 3 s: loading"),
        ("old", 20.0, "AttributeError: 'LLM' object has no attribute 'llm_engine'"),
    ],
)
def test_a_process_that_fails_is_a_row_with_the_reason(
    mode: str, seconds: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_children(monkeypatch, mode)
    assert reason in others.ask(job("vllm", "here"), sys.executable, seconds)["not_run"]


def test_what_an_engine_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own processes hold the GPU's memory, and the next engine needs that."""
    in_children(monkeypatch, "spawns")
    monkeypatch.setenv("STAND_IN_PID", str(tmp_path / "pid"))
    assert others.ask(job("vllm", "here"), sys.executable)["version"] == "none"
    assert_ends(int((tmp_path / "pid").read_text()))


def assert_ends(process: int) -> None:
    stat = Path("/proc") / str(process) / "stat"
    for _ in range(100):
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def in_children(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Stand-ins on the path of every child."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    monkeypatch.setenv("STAND_IN", mode)


# ---------------------------------------------------------------- rows


def test_one_engine_runs_at_a_time_ours_first_and_each_row_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def ask(job: Job, *_: Any) -> dict[str, Any]:
        """Without a process: an engine's gaps are ten times the letters of its name."""
        asked.append(job.engine)
        if job.engine == "sglang":
            return {"not_run": "no room"}
        lap = [10.0 * len(job.engine)] * 9 + [500.0], 1.0
        return {"version": "1", "start_s": 2.0, "laps": [lap] * LAPS, "tokens": [[1, 2]] * BATCH}

    monkeypatch.setattr(others, "ask", ask)
    rows = others.compare("tiny", job(OURS, "here"), ["vllm", "sglang"])
    assert (next(rows).engine, asked) == (OURS, [OURS])
    vllm, sglang = rows
    assert asked == [OURS, "vllm", "sglang"]
    assert (sglang.status, sglang.reason) == (NOT_RUN, "no room")
    assert (vllm.status, vllm.itl.median, vllm.p99_us) == (MEASURED, 40.0, 500.0)
    assert vllm.times_ours == pytest.approx(40 / 120, rel=1e-5)
    assert vllm.same_tokens == 1.0
