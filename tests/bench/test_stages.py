"""Stages: a run may be cut at any moment and goes on; nothing that is done is done again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mini_engine.bench.stages import (
    CUT,
    DONE,
    FAILED,
    LEAST_SECONDS,
    STATE,
    WAITING,
    Stage,
    read_state,
    run,
)

ME = {"gpu": "a card", "torch": "2.11"}
NOTE = "open({path!r}, 'a').write({word!r})"


def stage(name: str, *scripts: str, seconds: float = 60) -> Stage:
    return Stage(name, seconds, "a lesson", lambda _: [["-c", script] for script in scripts])


def noting(name: str, log: Path, **more: float) -> Stage:
    """A stage that adds its first letter to a file."""
    return stage(name, NOTE.format(path=str(log), word=name[0]), **more)


def statuses(folder: Path) -> dict[str, str]:
    state = read_state(folder)
    return {name: one.status for name, one in state.outcomes.items()} if state else {}


@pytest.mark.parametrize("after", range(4))
def test_a_run_cut_between_two_stages_goes_on_with_the_next_one(tmp_path: Path, after: int) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    stages = [noting(name, log) for name in ("alpha", "beta", "gamma")]
    cut = run(folder, stages, ME, 600)
    for _ in range(after):
        assert next(cut).status == DONE
    cut.close()
    assert list(statuses(folder)) == ["alpha", "beta", "gamma"][:after]
    rest = [outcome.stage for outcome in run(folder, stages, ME, 600)]
    assert rest == ["alpha", "beta", "gamma"][after:]
    assert log.read_text() == "abg"


def test_the_state_is_on_disk_before_the_next_stage_begins(tmp_path: Path) -> None:
    look = f"print(open({str(tmp_path / STATE)!r}).read()); raise SystemExit('seen')"
    stages = [noting("alpha", tmp_path / "log"), stage("beta", look)]
    assert [outcome.status for outcome in run(tmp_path, stages, ME, 600)] == [DONE, FAILED]
    assert '"status": "done"' in (tmp_path / "beta.txt").read_text()


def interrupted_after(folder: Path, stages: Sequence[Stage], what: signal.Signals) -> None:
    """Send ourselves a signal as soon as the first stage's command runs."""

    def send() -> None:
        while not (folder / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), what)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(run(folder, stages, ME, 600))
    thread.join()


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_a_stage_enters_it_as_cut_and_it_runs_again(
    tmp_path: Path, what: signal.Signals
) -> None:
    begun = tmp_path / "begun"
    once = f"import time; p = __import__('pathlib').Path({str(begun)!r}); again = p.exists(); "
    once += "p.write_text(str(__import__('os').getpid())); again or time.sleep(60)"
    stages = [stage("alpha", once), noting("beta", tmp_path / "log")]
    interrupted_after(tmp_path, stages, what)
    assert statuses(tmp_path) == {"alpha": CUT}
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)  # the command has ended with the run
    assert [outcome.status for outcome in run(tmp_path, stages, ME, 600)] == [DONE, DONE]


KILLED = """
import sys
from pathlib import Path
from mini_engine.bench.stages import Stage, run
body = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
list(run(Path(sys.argv[1]).parent, [Stage("a", 60, "", lambda _: [["-c", body, sys.argv[1]]])], {}, 60))
"""  # noqa: E501


def test_a_killed_run_leaves_no_command_behind(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(begun)])
    while not (begun.exists() and begun.read_text()):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    ends = time.monotonic() + 10
    while _alive(int(begun.read_text())):
        assert time.monotonic() < ends
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_deadline_cuts_a_stage_and_all_that_it_started(tmp_path: Path) -> None:
    child = "import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    child = child.format(path=str(tmp_path / "grandchild"))
    slow = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    stages = [stage("alpha", slow, seconds=1.5), noting("beta", tmp_path / "log")]
    first, second = run(tmp_path, stages, ME, 600)
    assert (first.status, first.note) == (CUT, "its 2 s were over")
    assert second.status == DONE
    assert not _alive(int((tmp_path / "grandchild").read_text()))


def test_a_failing_command_is_told_and_keeps_none_of_the_others_from_running(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    bad = stage("alpha", "raise SystemExit('no such card')", NOTE.format(path=str(log), word="x"))
    first, second = run(tmp_path, [bad, noting("beta", log)], ME, 600)
    assert (first.status, second.status) == (FAILED, DONE)
    assert log.read_text() == "xb"
    assert "ended with code 1" in first.note
    assert "no such card" in (tmp_path / "alpha.txt").read_text()


def test_what_failed_is_tried_again_after_what_has_not_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    bad, good = stage("alpha", "raise SystemExit(3)"), noting("beta", log)
    assert [o.stage for o in run(tmp_path, [bad], ME, 600)] == ["alpha"]
    again = [noting("alpha", log), good]
    assert [o.stage for o in run(tmp_path, again, ME, 600)] == ["beta", "alpha"]
    assert log.read_text() == "ba"


def test_no_stage_begins_when_the_time_is_over(tmp_path: Path) -> None:
    (only,) = run(tmp_path, [noting("alpha", tmp_path / "log")], ME, LEAST_SECONDS / 2)
    assert (only.status, only.note) == (WAITING, "the time of this run was over: run it again")
    assert not (tmp_path / "log").exists()


def test_a_stage_gets_no_more_than_what_is_left_of_the_run(tmp_path: Path) -> None:
    told: list[float] = []
    stages = [noting("alpha", tmp_path / "log", seconds=1e6)]
    list(run(tmp_path, stages, ME, 20, lambda _, seconds: told.append(seconds)))
    assert LEAST_SECONDS < told[0] <= 20


def test_another_machine_goes_on_only_if_it_is_of_the_same_kind(tmp_path: Path) -> None:
    stages = [noting("alpha", tmp_path / "log"), noting("beta", tmp_path / "log")]
    next(run(tmp_path, stages, ME, 600))
    with pytest.raises(ValueError, match=r"run\.json: begun with gpu 'a card', this is 'another'"):
        list(run(tmp_path, stages, {**ME, "gpu": "another"}, 600))
    assert [o.stage for o in run(tmp_path, stages, dict(ME), 600)] == ["beta"]


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"identity": {}, "stages": {"a": {"b": 1}}}'])
def test_a_broken_state_is_named_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE).write_text(text)
    with pytest.raises(ValueError, match=r"run\.json: "):
        list(run(tmp_path, [], ME, 600))
    assert (tmp_path / STATE).read_text() == text
