"""The run in stages: its table, its cuts; and the command, rehearsed without a GPU."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.bench.evidence import read_measurement  # noqa: E402
from mini_engine.bench.rows import Row  # noqa: E402
from mini_engine.bench.stages import (  # noqa: E402
    CUT,
    DONE,
    FAILED,
    SECONDS,
    Stage,
    read_outcomes,
    run,
    stages_for,
)
from mini_engine.bench.variants import VARIANTS  # noqa: E402
from mini_engine.cli import build_parser, main  # noqa: E402
from tests.support.warm_python import warm_python  # noqa: E402

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
ME = {"gpu": "a card", "torch": "2.11"}
NOTE = "open({path!r}, 'a').write({word!r})"
NAMES = [stage.name for stage in stages_for("cuda")]


def stage(name: str, script: str, seconds: float = 60) -> Stage:
    return Stage(name, "a lesson", seconds, f"-c {shlex.quote(script)}")


def noting(name: str, log: Path) -> Stage:
    """A stage that adds its first letter to a file."""
    return stage(name, NOTE.format(path=str(log), word=name[0]))


def statuses(folder: Path) -> dict[str, str]:
    return {name: one.status for name, one in read_outcomes(folder).items()}


# ---------------------------------------------------------------- the table


def test_all_stages_together_end_within_nine_minutes_on_an_h200() -> None:
    table = stages_for("cuda")
    assert SECONDS == 9 * 60
    assert sum(stage.deadline_s for stage in table) <= SECONDS


def test_stages_stand_in_the_order_of_their_worth_and_a_rehearsal_has_them_all() -> None:
    assert NAMES[:5] == ["environment", "design", "baselines", "ideas", "calibrate"]
    assert [stage.name for stage in stages_for("cpu")] == NAMES


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_command_of_a_stage_can_be_parsed_and_names_arms_that_exist(device: str) -> None:
    for one in stages_for(device):
        words = shlex.split(one.command)
        if words[1] == "mini_engine":
            args = build_parser(words[2:]).parse_args(words[2:])
            assert set(getattr(args, "arms", None) or []) <= set(VARIANTS)


# ---------------------------------------------------------------- cut, and gone on with


@pytest.mark.parametrize("after", range(4))
def test_a_run_cut_between_two_stages_goes_on_with_the_next_one(tmp_path: Path, after: int) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    stages = [noting(name, log) for name in ("alpha", "beta", "gamma")]
    cut = run(folder, stages, ME, 600)
    for _ in range(after):
        assert next(cut).status == DONE
    cut.close()
    rest = [outcome.stage for outcome in run(folder, stages, ME, 600)]
    assert rest == ["alpha", "beta", "gamma"][after:]
    assert log.read_text() == "abg"


def test_a_run_of_some_stages_keeps_what_became_of_the_others(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        list(run(tmp_path, [noting(name, tmp_path / "log")], ME, 600))
    assert statuses(tmp_path) == {"beta": DONE, "alpha": DONE}


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_a_stage_enters_it_as_cut_and_it_runs_again(
    tmp_path: Path, what: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    once = f"import time; p = __import__('pathlib').Path({str(begun)!r}); again = p.exists(); "
    once += "p.write_text(str(__import__('os').getpid())); again or time.sleep(60)"
    stages = [stage("alpha", once), noting("beta", tmp_path / "log")]

    def send() -> None:
        while not (begun.exists() and begun.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), what)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(run(tmp_path, stages, ME, 600))
    thread.join()
    assert statuses(tmp_path)["alpha"] == CUT
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)  # the command has ended with the run
    assert [outcome.status for outcome in run(tmp_path, stages, ME, 600)] == [DONE, DONE]


def test_a_stage_over_its_deadline_is_ended_and_tried_again_behind_the_others(
    tmp_path: Path,
) -> None:
    log, tries = tmp_path / "log", tmp_path / "tries"
    slow = f"import time; {NOTE.format(path=str(tries), word='x')}; "
    slow += f"len(open({str(tries)!r}).read()) > 1 or time.sleep(60)"
    found = list(run(tmp_path, [stage("alpha", slow, seconds=6), noting("beta", log)], ME, 600))
    assert [(one.stage, one.status) for one in found] == [
        ("alpha", CUT), ("beta", DONE), ("alpha", DONE)
    ]  # fmt: skip
    assert found[2].took_s >= found[0].took_s >= 6


def test_a_failing_command_is_told_and_keeps_none_of_the_others_from_running(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    bad = stage("alpha", "raise SystemExit('no such card')")
    first, second, again = run(tmp_path, [bad, noting("beta", log)], ME, 600)
    assert (first.status, second.status, again.status) == (FAILED, DONE, FAILED)
    assert log.read_text() == "b"
    assert "no such card" in (tmp_path / "alpha.txt").read_text()
    assert "alpha.txt" in first.note


def test_another_machine_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    list(run(tmp_path, [noting("alpha", tmp_path / "log")], ME, 600))
    with pytest.raises(ValueError, match="another"):
        list(run(tmp_path, [], {**ME, "gpu": "another"}, 600))


# ---------------------------------------------------------------- the command


def test_a_rehearsal_runs_its_stages_and_tells_no_rates(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest stages here; `gpu --device cpu` rehearses all."""
    monkeypatch.setattr(sys, "executable", warm_python())
    stages = ["environment", "ideas", *(["pytest"] if SLOW else [])]
    words = ["gpu", "--device", "cpu", "-o", str(tmp_path), "--stages", ",".join(stages)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert statuses(tmp_path) == dict.fromkeys(stages, DONE)
    assert "no evidence" in told
    assert "GB/s" not in told
    assert "of a copy" not in told
    rows = map(Row.from_json, read_measurement(tmp_path / "bench.json").figures["rows"])
    assert [row.variant for row in rows] == ["graph-5", "graph-9", "graph-5-pdl-k8", "null"]
    assert "PyTorch version" in (tmp_path / "environment.txt").read_text()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_a_run_says_how_to_rehearse_and_stops(tmp_path: Path, capsys: Any) -> None:
    assert main(["gpu", "-o", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "use cpu" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "value"), [(["--stages", "design,cahin"], "cahin"), (["--stages", ""], "''")]
)
def test_bad_input_is_one_line_that_names_the_value(
    words: list[str], value: str, capsys: Any
) -> None:
    assert main_code(["gpu", *words, "--device", "cpu"]) == 2
    assert value in capsys.readouterr().err


def main_code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as ended:
        return int(str(ended.code))
