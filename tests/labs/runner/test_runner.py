"""The runner of the labs as a learner meets it: lab 4 from the first minute to the last."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from labs.runner import doctor, reward, workspace
from labs.runner.checks import checking
from labs.runner.checks.checking import Outcome, Report
from labs.runner.cli import COMMANDS
from labs.runner.cut.catalogue import PATH, Lab, all_labs, lab_number, read_lab
from labs.runner.report import show_report
from labs.runner.workspace import Progress
from tests.labs.conftest import Say, mark_passed
from tests.support.documents import ROOT

LAB = lab_number("4")
HOLES = sum(len(lab.holes) for lab in all_labs())
RIGHT = "return kernels * kernel_us / itl_us"
WRONG = LAB.texts("wrong/graph-is-free")["launch_model.py"]


def mine(lab: Lab = LAB) -> Path:
    return next(iter(workspace.my_files(lab).values()))


def solve() -> None:
    mine().write_text(LAB.reference()["launch_model.py"])


def state(say: Say) -> str:
    found = json.loads(say("list", "--json")[1])
    return str(next(one["state"] for one in found if one["lab"] == LAB.name))


# ---------------------------------------------------------------- from red to green


def test_the_first_call_cuts_lab_0_draws_it_and_names_the_commands_to_run(say: Say) -> None:
    code, said = say()
    assert code == 0
    assert "CPU █" in said
    assert said.index("./lab predict 0") < said.index("./lab watch") < said.index("./lab check")
    assert mine(lab_number("0")).exists()
    assert "0 of" in say()[1]


def test_a_lab_says_predict_then_the_chapter_then_the_file_then_the_check(say: Say) -> None:
    said = say("start", "4")[1]
    places = ["./lab predict 4", LAB.chapter, str(mine()), LAB.holes[0].task, "./lab watch"]
    assert [said.index(place) for place in places] == sorted(said.index(p) for p in places)
    assert "closed  mini_engine/dispatch/ladder.py (lab 8)" in say("start", "5")[1], "a key"


def test_at_green_the_engine_grows_and_what_the_code_does_is_shown(say: Say) -> None:
    lab = lab_number("0")
    say()
    mine(lab).write_text(lab.reference()["one_step.py"])
    code, said = say("check")
    assert code == 0
    assert f"2 of {HOLES} holes are yours" in said
    assert re.search(r"tokens a second before, \d+ now: 6\.\d times as many", said)
    say("start", "5")
    graphs = lab_number("5")
    mine(graphs).write_text(graphs.reference()["graphs.py"])
    code, said = say("check")
    assert code == 0
    found = re.search(r"([\d,]+) tokens a second, before (\d+).*\n.*█.*\nbefore\n  CPU █", said)
    assert found
    assert int(found[1].replace(",", "")) > 3 * int(found[2]), "it is faster now"
    assert "a batch of 3 at rung 4" in said, "what lab 5 shows"
    assert say("check")[1].count("as before") == 1, "and as fast when it is checked again"


def test_a_red_check_shows_what_the_code_does_beside_what_is_right(say: Say) -> None:
    lab = lab_number("5")
    say("start", "5")
    mine(lab).write_text(lab.wrong("stale-padding")["graphs.py"])
    code, said = say("check")
    assert code == 1
    yours, right = re.findall(r"^  (?:yours|right)  the sums of slots.*$", said, re.M)
    assert yours != right


def test_what_is_right_is_held_back_until_a_hole_is_done_and_stands_beside_what_is_wrong() -> None:
    mine, right = "one\n2\n", "one\ntwo\nthree\n"
    told = [line for mark, line in reward.differing(mine, right, earned=False)]
    assert told == ["2"]
    told = [line for mark, line in reward.differing(mine, right, earned=True)]
    assert told == ["2", "two"], "what comes after it is not shown"


def test_an_error_that_a_hole_raises_is_its_own_whatever_else_the_test_uses(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Hole 2 is red, and a test that uses 2 and 4 fails as well."""
    lab, told = lab_number("5"), []
    for within in ("GraphRunner.capture", "GraphRunner.run_at"):
        outcomes = [
            Outcome("test_a_recording_holds_one_forward_that_has_not_run", "passed"),
            Outcome("test_a_rung_without_memory_is_dropped", "failed"),
            Outcome("test_whoever_names_a_rung_gets_that_one", "passed"),
            Outcome("test_a_step_waits_for_nothing", "failed", mine=True, within=within),
        ]
        show_report(
            Report(lab, outcomes), Console(), whose="mine", every=False, progress=Progress()
        )
        told.append(capfd.readouterr().out)
    elsewhere, in_hole_4 = told
    assert "GraphRunner.run_at waits for hole 2" in " ".join(elsewhere.split())
    assert "waits for hole 2" not in in_hole_4


@pytest.mark.usefixtures("home")
def test_at_the_end_of_the_short_path_stand_its_cuts_the_score_and_the_next_question(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in PATH:
        lab = lab_number(number)
        for file, path in workspace.my_files(lab).items():
            workspace.write(path, lab.reference()[file])
    monkeypatch.setattr(workspace, "solved", lambda lab, _: lab.number in PATH)
    reward.at_green(lab_number("8"), workspace.load_progress(), first=True, console=Console())
    told = capfd.readouterr().out
    assert "The short path is done." in told
    cut_ms = [float(found) for found in re.findall(r"^ *([\d.]+) ms █", told, re.M)]
    assert len(cut_ms) == 4
    assert cut_ms == sorted(cut_ms, reverse=True), "each lab cuts the step further"
    assert "0 predictions" in told
    assert "mini_engine explain" in told


@pytest.mark.slow
def test_what_a_lab_with_pytorch_shows_is_the_same_out_of_a_fork() -> None:
    pytest.importorskip("torch")
    program = (
        "from labs.runner import reward\n"
        "from labs.runner.cut.catalogue import lab_number\n"
        "lab, reward.LIMIT_S = lab_number('7b'), 120.0\n"
        "fresh = reward.printed(f'labs.{lab.name}.show', [], {}, lab.environment)\n"
        "print(len(fresh) > 500, reward.shown_by(lab, {}) == fresh)\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True True\n", done.stderr


def test_what_is_right_of_a_file_to_mend_is_what_the_mended_one_does(
    say: Say, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reward, "LIMIT_S", 120.0)
    lab = lab_number("6")
    say("start", "6")
    for file, path in workspace.my_files(lab).items():
        path.write_text(lab.reference()[file])
        if file == "runner_c.py":  # diagnosed, and not mended
            found = re.findall(r'return "[a-z-]+", \d+', lab.reference()[file])
            given = lab.to_mend()[file]
            path.write_text(given.replace('return "the id of a belief", 0', *found))
    outcomes = [Outcome("test_runner_a_hears", "passed"), Outcome("test_runner_c_serves", "failed")]
    reward.at_red(Report(lab, outcomes), Console())
    seen = capfd.readouterr().out
    assert re.search(r"^  yours +c  error", seen, re.M)
    assert re.search(r"^  right +c  answers", seen, re.M)
    assert not re.search(r"^  right +\w  error", seen, re.M)


def test_a_hole_is_done_as_soon_as_its_tests_pass_and_can_be_checked_alone(say: Say) -> None:
    say("start", "4")
    mine().write_text(LAB.cut(LAB.holes[2:])["launch_model.py"])
    said = say("check")[1]
    assert "■■□□□ 2 of 5 holes done: eager_itl_us, full_itl_us" in said
    assert said.count(" µs graph ") == 6, "what lab 4 shows, as far as it is written"
    assert " µs graph " not in say("check")[1], "once"
    code, said = say("check", "--hole", "2")
    assert code == 0
    assert "hole 2 of 5 done" in said
    code, said = say("check", "--hole", "3")
    assert code == 1
    assert "TODO(3)" in said
    assert "TODO(4)" not in said
    assert say("check", "--hole", "9")[0] == 2
    assert state(say) == "started", "one hole is not the lab"


def test_a_hole_whose_tests_use_an_open_one_waits_for_it_and_is_not_called_done(say: Say) -> None:
    lab = lab_number("5")
    say("start", "5")
    mine(lab).write_text(lab.cut(lab.holes[1:2])["graphs.py"])
    said = say("check")[1]
    found = re.search(r"([■▒□]{4}) (\d) of 4 holes done.*", said)
    assert found
    assert found[1][1] == "□"
    assert found[1][3] == "▒"
    assert f"{lab.holes[3].name} waits for hole 2" in found[0]
    assert found[1].count("■") == int(found[2])


def test_a_check_of_another_lab_leaves_the_current_one_and_says_so(say: Say) -> None:
    say("start", "5")
    say("start", "4")
    code, said = say("check", "5")
    assert code == 1
    assert "still in lab 4" in said
    assert workspace.load_progress().current == "4"
    assert "still in lab" not in say("check")[1]


def test_where_a_lab_has_a_place_to_stop_the_check_says_so_and_what_one_has(say: Say) -> None:
    lab = lab_number("10")
    assert lab.rest
    say("start", "10")
    for name, text in lab.cut(lab.holes[lab.rest.hole :]).items():
        workspace.my_files(lab)[name].write_text(text)
    assert lab.rest.have in say("check")[1]


def test_start_alone_goes_on_to_the_lab_that_the_green_one_names(say: Say) -> None:
    say("start", "0")
    mine(lab_number("0")).write_text("# mine\n" + lab_number("0").reference()["one_step.py"])
    assert "./lab start 4" in say("check")[1]
    assert "Lab 4" in say("start")[1]
    assert "Lab 4" in say("start")[1], "which is open"


def test_of_several_files_to_mend_the_first_one_is_looked_at(say: Say) -> None:
    lab = lab_number("6")
    say("start", "6")
    file = workspace.my_files(lab)["runner_a.py"]
    right = 'return "graphs-follow-names", 25'
    file.write_text(file.read_text().replace('return "the id of a belief", 0', right))
    said = say("check")[1]
    assert "✓ runner a is diagnosed" in said
    assert said.count("✗") <= 6
    assert "✗ runner b" not in said


@pytest.mark.usefixtures("patient")
def test_a_private_name_of_the_learners_own_hides_no_misconception(say: Say) -> None:
    lab = lab_number("5")
    say("start", "5")
    text = lab.wrong("stale-padding")["graphs.py"]
    mine(lab).write_text(text.replace("_warm_up", "_first").replace("self.outputs", "self._out"))
    assert lab.misconception("stale-padding").says in say("check")[1]


def test_six_commands_are_in_the_help_and_the_others_behind_all(say: Say) -> None:
    few, all_of_them = say("--help")[1], say("--all")[1]
    assert len(re.findall(r"^  \./lab \w", few, re.M)) == 6
    assert len(re.findall(r"^  \./lab \w", all_of_them, re.M)) == len(COMMANDS)


def test_the_script_beside_the_makefile_is_the_way_in(tmp_path: Path) -> None:
    for name in ("labs", "mini_engine", "lab"):
        (tmp_path / name).symlink_to(ROOT / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / ".venv/.core").touch()
    environment = os.environ | {"LABS_HOME": str(tmp_path / "mine"), "LC_ALL": "C"}
    words = [tmp_path / "lab", "start", "4"]
    done = subprocess.run(words, cwd=tmp_path / ".venv", env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / LAB.name / "launch_model.py").exists()


def test_before_a_line_is_written_a_check_is_red_and_says_each_task_once(say: Say) -> None:
    say("start", "4")
    code, said = say("check")
    assert code == 1
    for hole in LAB.holes:
        assert said.count(f"TODO({hole.number}) {hole.name}: {hole.task}") == 1
    found = json.loads(say("check", "--json")[1])
    assert [int(number) for number in found["todos"]] == [hole.number for hole in LAB.holes]


def test_a_lab_is_passed_edited_failed_and_passed_again(say: Say) -> None:
    say("start", "4")
    solve()
    code, said = say("check")
    assert code == 0
    assert LAB.proves in said
    assert state(say) == "passed"
    mine().write_text(mine().read_text() + "\n# a thought\n")
    assert state(say) == "edited"
    assert "1 of 22" in say("list")[1], "it stays passed until it fails"
    mine().write_text(WRONG)
    assert say("check")[0] == 1
    assert state(say) == "failed"
    solve()
    assert state(say) == "passed", "a text that has passed is brought back"
    mine().write_text(mine().read_text() + "\n# a thought\n")
    assert say("check")[0] == 0
    assert state(say) == "passed"


@pytest.mark.usefixtures("patient")
def test_a_failing_test_names_the_misconception_and_where_to_read(say: Say) -> None:
    say("start", "4")
    mine().write_text(WRONG)
    code, said = say("check")
    assert code == 1
    belief = LAB.misconception("graph-is-free")
    assert belief.says in said
    assert belief.read in said
    assert said.count("the test ") == 1, "one failure in full, the others in a line"


def test_with_all_every_failure_is_told_in_full(say: Say) -> None:
    say("start", "4")
    mine().write_text(WRONG)
    assert say("check", "--all")[1].count("the test ") > 1


# ---------------------------------------------------------------- files that are no answer yet


def test_a_syntax_error_is_told_with_its_place(say: Say) -> None:
    say("start", "4")
    lines = mine().read_text().splitlines()
    mine().write_text("\n".join([*lines, "def broken(:"]))
    code, said = say("check")
    assert code == 1
    assert f"launch_model.py:{len(lines) + 1}: SyntaxError" in said


def test_a_file_as_another_editor_saves_it_is_as_right(say: Say) -> None:
    say("start", "4")
    solve()
    mine().write_bytes(b"\xef\xbb\xbf" + mine().read_bytes().replace(b"\n", b"\r\n"))
    assert say("check")[0] == 0
    assert "the same" in say("diff")[1]


@pytest.mark.parametrize("content", [b"# caf\xe9\n", b"# coding: elvish\n", b"one\ntwo\0\n"])
def test_what_is_no_text_is_named_and_the_list_goes_on(say: Say, content: bytes) -> None:
    mark_passed(LAB, LAB.reference())
    mine().write_bytes(content)
    code, said = say("check")
    assert code in (1, 2)
    assert "launch_model.py" in said
    assert say("list")[0] == 0
    assert say("hint")[0] == 0


def test_unreadable_progress_is_refused_and_left_alone(say: Say) -> None:
    say("start", "4")
    path = workspace.home() / "progress.json"
    states = ('{"checked": 3}', '{"hints": 3}', '{"passed": null}', "[]")
    others = [f'{{"labs": {{"4": {state}}}, "current": "4"}}' for state in states]
    for text in ("{not json", "[]", *others):
        path.write_text(text)
        code, said = say("list")
        assert code == 2
        assert str(path) in said
        assert path.read_text() == text


def test_reset_keeps_what_was_written_and_start_never_overwrites(say: Say) -> None:
    say("start", "4")
    mine().write_text("# hours of work\n")
    assert say("start", "4")[0] == 0
    assert mine().read_text() == "# hours of work\n"
    assert say("reset", "4")[0] == 0
    (backup,) = mine().parent.glob("*.bak")
    assert backup.read_text() == "# hours of work\n"
    assert "TODO(1)" in mine().read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["check"], "start 0"),
        (["start", "99"], "99"),
        (["check", "4"], "start 4"),
        (["hint", "4", "--hole", "9"], "9"),
        (["measure", "4"], "4"),
        (["diff", "4"], "start 4"),
        (["sabotage", "4"], "check 4"),
    ],
)
def test_a_wrong_word_gets_one_line_that_names_it(say: Say, words: list[str], named: str) -> None:
    code, said = say(*words)
    assert code == 2
    assert named in said
    assert len(said.strip().splitlines()) == 1


# ---------------------------------------------------------------- a machine with troubles


def test_a_disk_that_is_full_leaves_no_lab_half_started(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = workspace.write

    def full(path: Path, text: str) -> None:
        if path.name == "progress.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        whole(path, text)

    with monkeypatch.context() as disk:
        disk.setattr(workspace, "write", full)
        code, said = say("start", "6")
    assert code == 2
    assert "progress.json: no space left" in said
    assert not any(workspace.home().rglob("*.py"))


def test_labs_that_are_started_at_once_are_all_written_down(home: Path) -> None:
    words = [sys.executable, "-m", "labs", "start"]
    starting = [subprocess.Popen([*words, n], cwd=ROOT, stdout=subprocess.PIPE) for n in "3478"]
    assert [one.wait(timeout=120) for one in starting] == [0, 0, 0, 0]
    written = json.loads((home / "progress.json").read_text())["labs"]
    assert sorted(written) == ["3", "4", "7", "8"]


def test_no_room_for_temporary_files_is_told_as_that(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("start", "4")
    mine().write_text("import os\nos._exit(1)\n")
    assert "no room" not in say("check")[1]
    monkeypatch.setattr(checking, "ROOM", 2**62)
    assert f"no room for the tests in {tempfile.gettempdir()}" in say("check")[1]


# ---------------------------------------------------------------- help on the way


def test_hints_come_one_at_a_time_and_are_counted_until_the_lab_has_passed(say: Say) -> None:
    say("start", "4")
    hole = LAB.holes[0]
    for level in (1, 2, 3, 3):
        said = say("hint")[1]
        assert [hint in said for hint in hole.hints] == [n < level for n in range(3)]
    say("hint", "--hole", "2")
    say("check")
    solve()
    say("check")
    for words in (["hint"], ["hint", "4", "--hole", "2"]):
        assert LAB.holes[1].hints[1] not in say(*words)[1], "no more than was asked for before"
    found = next(one for one in json.loads(say("list", "--json")[1]) if one["lab"] == LAB.name)
    assert (found["checks"], found["hints"]) == (2, 4)


def test_a_hint_is_for_the_first_open_hole_or_the_one_whose_tests_fail(say: Say) -> None:
    say("start", "4")
    mine().write_text(LAB.cut(LAB.holes[2:])["launch_model.py"])
    assert LAB.holes[2].name in say("hint")[1]
    slip = LAB.reference()["launch_model.py"].replace(RIGHT, "return kernel_us / itl_us")
    mine().write_text(slip)
    assert say("check")[0] == 1
    assert "utilisation" in say("hint")[1]


def test_diff_and_solution_show_the_engines_way_after_green_or_with_yes(say: Say) -> None:
    say("start", "4")
    for word in ("diff", "solution"):
        code, said = say(word)
        assert code == 2
        assert "--yes" in said
        assert RIGHT in say(word, "--yes")[1]
    said = say("solution", "--hole", "3", "--yes")[1]
    assert RIGHT in said
    assert "cpu_late" not in said
    mark_passed(LAB, LAB.reference())
    assert say("diff", "--json")[1].strip() == '[\n  "Yours is the same."\n]'
    assert "cpu_late" in say("solution")[1]


def test_a_hard_lab_says_nowhere_what_to_write(say: Say) -> None:
    for words in (["start", "4", "--hard"], ["check", "4"], ["hint", "4"]):
        said = say(*words)[1]
        assert not any(hole.task in said for hole in LAB.holes)
    assert not any(hole.task in mine().read_text() for hole in LAB.holes)
    assert say("start", "4", "--hard")[0] == 2
    assert say("reset", "4")[0] == 0
    assert LAB.holes[0].task.split()[0] in mine().read_text()


def test_watch_checks_at_every_save_through_renames_and_deletions_until_it_is_stopped(
    say: Say,
) -> None:
    say("start", "4")
    command = [sys.executable, "-u", "-m", "labs", "watch"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as watching:
        assert watching.stdout is not None

        def printed(what: str) -> bool:
            return any(what in line for line in watching.stdout or ())

        assert printed("save to check again")
        kept = mine().read_text()
        mine().unlink()
        assert printed("is not started")
        solved = mine().with_suffix(".new")
        solved.write_text(LAB.reference()["launch_model.py"])
        solved.replace(mine())  # as editors save
        assert printed(LAB.proves)
        mine().write_text(kept)
        assert printed("TODO(1)"), "green does not end it"
        os.killpg(watching.pid, signal.SIGINT)
        rest = watching.stdout.read()
        assert watching.wait(timeout=60) == 130
    assert "Traceback" not in rest


def test_doctor_says_what_is_emulated_here_and_why(say: Say) -> None:
    assert say("doctor")[0] == 0
    found = json.loads(say("doctor", "--json")[1])
    assert bool(found["gpu"]) != any("No NVIDIA GPU" in line for line in found["sentences"])


# ---------------------------------------------------------------- around it


def test_a_python_without_the_packages_says_what_to_type() -> None:
    program = "import sys; sys.modules['rich'] = None; import runpy; sys.argv[1:] = ['hint', '7']; "
    program += "runpy.run_module('labs', run_name='__main__')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "./lab hint 7" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("home")
def test_the_list_comes_without_numpy_and_torch() -> None:
    program = (
        "import sys, labs.runner.cli as cli; cli.main(['list', '--json'])\n"
        "sys.exit(str({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


def test_plain_pytest_works_on_one_lab_and_refuses_two(tmp_path: Path) -> None:
    def pytest_on(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        environment = os.environ | {"LABS_HOME": str(tmp_path)} | env
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert pytest_on(f"labs/{LAB.name}", LAB_IMPL="reference").returncode == 0
    assert pytest_on(f"labs/{LAB.name}", LAB_IMPL="wrong/graph_is_free").returncode == 1
    assert "./lab start 4" in pytest_on(f"labs/{LAB.name}").stderr
    assert "one lab a run" in pytest_on("labs").stderr


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (("minutes = 45\n", ""), "minutes"),
        (('name = "utilisation"', 'name = "utilization"'), "utilization"),
        (("needs = ", "needs "), "at line"),
        (("[[hole]]\n", "[[hole]]\nhintz = 1\n"), "hintz"),
    ],
)
def test_a_lab_that_is_described_wrongly_says_which_field(
    tmp_path: Path, damage: tuple[str, str], field: str
) -> None:
    folder = tmp_path / LAB.name
    folder.mkdir()
    text = (LAB.folder / "lab.toml").read_text()
    assert damage[0] in text
    (folder / "lab.toml").write_text(text.replace(*damage))
    with pytest.raises(ValueError, match=f"{LAB.name}/lab.toml: .*{field}"):
        read_lab(folder).cut()


@pytest.mark.parametrize(
    ("capability", "labs"),
    [("7.5", "labs 7b, 13, 14 and 15b"), ("8.9", "without PDL"), ("9.0", "with PDL")],
)
def test_doctor_names_the_labs_that_a_card_can_measure(capability: str, labs: str) -> None:
    gpu = {"name": "a card", "driver_version": "580", "compute_cap": capability}
    (sentence,) = doctor.sentences({"torch": "2", "triton": "3"}, gpu)
    assert labs in sentence
