"""The runner of the labs as a learner meets it: lab 1 from the first minute to the last."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labs.runner import commands, play, workspace
from labs.runner.checks.checking import Report, check_files
from labs.runner.cli import COMMANDS, main
from labs.runner.cut.catalogue import Lab, all_labs, lab_number, read_lab
from tests.support.documents import ROOT

LAB = lab_number(1)
Say = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _a_learner_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command into the runner. Returns the exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def mine(lab: Lab = LAB) -> Path:
    return next(iter(workspace.my_files(lab).values()))


def solve(lab: Lab = LAB) -> None:
    for file, text in lab.reference().items():
        workspace.my_files(lab)[file].write_text(text)


# ---------------------------------------------------------------- the first minute


def test_the_first_word_cuts_lab_1_and_names_the_one_command_to_run(say: Say) -> None:
    code, said = say()
    assert code == 0
    assert "python -m labs check" in said
    assert LAB.chapter in said
    assert mine().exists()
    code, said = say()
    assert code == 0
    assert "0 of" in said
    assert "You are in lab 1" in said


def test_before_a_line_is_written_a_check_is_red_and_says_each_task_once(say: Say) -> None:
    say()
    code, said = say("check")
    assert code == 1
    assert "Traceback" not in said
    for hole in LAB.holes:
        assert said.count(f"TODO({hole.number}) {hole.name}: {hole.task}") == 1


def test_after_it_passes_it_says_what_was_proven_and_what_comes_next(say: Say) -> None:
    say()
    solve()
    code, said = say("check")
    assert code == 0
    assert f"You have shown: {LAB.proves}" in said
    assert "python -m labs demo" in said
    code, said = say("list", "--json")
    assert code == 0
    assert json.loads(said)[0]["state"] == "passed"
    mine().write_text(mine().read_text() + "\n# a thought\n")
    assert json.loads(say("list", "--json")[1])[0]["state"] == "edited"
    listed = say("list")[1]
    assert "~ changed since it passed" in listed
    assert "1 of" in listed, "it stays passed until it fails"
    mine().write_text(LAB.texts("wrong/graph_is_free")["launch_model.py"])
    assert say("check")[0] == 1
    assert json.loads(say("list", "--json")[1])[0]["state"] == "failed"
    solve()
    assert say("check")[0] == 0
    assert json.loads(say("list", "--json")[1])[0]["state"] == "passed"


def test_a_failing_test_names_the_misconception_and_where_to_read(say: Say) -> None:
    say()
    mine().write_text(LAB.texts("wrong/graph_is_free")["launch_model.py"])
    code, said = say("check")
    assert code == 1
    belief = LAB.misconception("graph-is-free")
    assert belief.says in said
    assert belief.read in said
    assert said.count("    expected ") == 1, "one failure in full, the others in a line"
    assert say("check", "--all")[1].count("    expected ") > 1


def test_a_known_wrong_answer_or_the_reference_can_be_checked_by_name(say: Say) -> None:
    assert say("check", "1", "--impl", "reference")[0] == 0
    assert say("check", "1", "--impl", "wrong/graph-is-free")[0] == 1
    code, said = say("check", "1", "--impl", "wrong/nothing")
    assert code == 2
    assert "wrong/graph-is-free" in said


def test_a_check_for_machines_is_json_red_or_green(say: Say) -> None:
    say()
    code, said = say("check", "--json")
    assert code == 1
    assert len(json.loads(said)["todos"]) == len(LAB.holes)


# ---------------------------------------------------------------- safety


def test_a_syntax_error_is_one_line_with_its_place(say: Say) -> None:
    say()
    lines = mine().read_text().splitlines()
    mine().write_text("\n".join([*lines, "def broken(:"]))
    code, said = say("check")
    assert code == 1
    assert f"launch_model.py:{len(lines) + 1}: SyntaxError" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
def test_a_file_as_another_editor_saves_it_is_as_right(say: Say, ending: bytes) -> None:
    say()
    solve()
    mark = b"\xef\xbb\xbf"
    mine().write_bytes(mark + mine().read_bytes().replace(b"\n", ending))
    assert say("check")[0] == 0
    assert "are the same" in say("diff")[1]


def test_a_text_that_passed_and_is_brought_back_has_passed_as_before(say: Say) -> None:
    say()
    solve()
    assert say("check")[0] == 0
    right = mine().read_text()
    mine().write_text(right.replace("return kernels * kernel_us / itl_us", "return itl_us"))
    assert say("check")[0] == 1
    assert json.loads(say("list", "--json")[1])[0]["state"] == "failed"
    mine().write_text(right)
    assert json.loads(say("list", "--json")[1])[0]["state"] == "passed"
    assert "your own code" in say("show")[1]


def test_a_text_that_passed_and_fails_now_is_red(say: Say) -> None:
    """Because the lab has changed: it asks for more."""
    say()
    solve()
    assert say("check")[0] == 0
    workspace.note(LAB, progress := workspace.load_progress(), passed=False, in_doubt=0)
    workspace.save_progress(progress)
    assert json.loads(say("list", "--json")[1])[0]["state"] == "failed"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"# caf\xe9\n", "launch_model.py: not UTF-8 text: save it as UTF-8"),
        (b"# coding: elvish\n", "launch_model.py: not UTF-8 text: save it as UTF-8"),
        (b"one\ntwo\0\n", "launch_model.py:2: a null byte"),
        (None, "launch_model.py: is a directory"),
    ],
)
def test_what_is_no_text_is_named_and_the_list_goes_on(
    say: Say, content: bytes | None, says: str
) -> None:
    say()
    solve()
    assert say("check")[0] == 0
    mine().unlink()
    if content is None:
        mine().mkdir()
    else:
        mine().write_bytes(content)
    for word in ("check", "diff", "sabotage"):
        code, said = say(word)
        assert code in (1, 2), word
        assert says in said or "is not green" in said
    assert "0 of 21" not in say("list")[1]
    assert say("hint")[0] == 0


def test_a_name_that_is_gone_is_said_not_traced(say: Say) -> None:
    say()
    mine().write_text(mine().read_text().replace("def utilisation", "def utilization"))
    code, said = say("check")
    assert code == 1
    assert "cannot import name 'utilisation'" in said
    assert "Traceback" not in said


def test_an_endless_loop_is_stopped_and_the_test_it_hung_in_is_named(say: Say) -> None:
    say()
    solve()
    loop = "def utilisation(kernels, kernel_us, itl_us):\n    while True:\n        pass\n"
    mine().write_text(mine().read_text() + "\n\n" + loop)
    report = check_files(replace(LAB, test_s=2), workspace.my_files(LAB))
    assert not report.passed
    assert "stopped after 2 s in “utilisation counts kernels and nothing else”" in report.stopped


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's RLIMIT_AS")
def test_a_huge_allocation_ends_as_a_failed_test_that_says_so(say: Say) -> None:
    say()
    solve()
    huge = "def utilisation(kernels, kernel_us, itl_us):\n    return bytearray(10**14)[0]\n"
    mine().write_text(mine().read_text() + "\n\n" + huge)
    code, said = say("check")
    assert code == 1
    assert "MemoryError" in said
    assert f"{LAB.memory_gb:g} GB" in said


def test_a_process_that_dies_is_told_with_the_test_it_died_in(say: Say) -> None:
    say()
    solve()
    crash = "def utilisation(kernels, kernel_us, itl_us):\n    import os\n    os._exit(11)\n"
    mine().write_text(mine().read_text() + "\n\n" + crash)
    code, said = say("check")
    assert code == 1
    assert "in “utilisation counts kernels and nothing else” with code 11" in said


def test_reset_keeps_what_was_written_and_no_tracked_file_changes(say: Say) -> None:
    before = LAB.reference()
    say()
    mine().write_text("# hours of work\n")
    assert say("start", "1")[0] == 0
    assert mine().read_text() == "# hours of work\n", "start keeps what is there"
    code, said = say("reset", "1")
    assert code == 0
    (backup,) = mine().parent.glob("*.bak")
    assert backup.name in said
    assert backup.read_text() == "# hours of work\n"
    assert "TODO(1)" in mine().read_text()
    assert LAB.reference() == before


def test_an_engine_that_changed_since_is_reported_by_its_hash(say: Say) -> None:
    say()
    progress = workspace.load_progress()
    progress.of(LAB).source_hash = "an older one"
    workspace.save_progress(progress)
    code, said = say("check")
    assert code == 1
    assert "has changed since yours was cut" in said


def test_unreadable_progress_is_refused_and_left_alone(say: Say) -> None:
    say()
    path = workspace.home() / "progress.json"
    path.write_text("{not json")
    code, said = say("list")
    assert code == 2
    assert str(path) in said.replace("\n", "")
    assert path.read_text() == "{not json"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check"], "no lab is started yet: .venv/bin/python -m labs start 1"),
        (["start", "99"], "there is no lab 99"),
        (["check", "1"], "lab 1 is not started: .venv/bin/python -m labs start 1"),
        (["hint", "1", "--hole", "9"], "given 9"),
        (["measure", "1"], "nothing to measure"),
        (["predict", "1", "--because", "x"], "--because is the reason of an answer"),
        (["check", "1", "--debug", "--impl", "reference"], "leave out --impl reference"),
    ],
)
def test_a_wrong_word_gets_one_line_that_says_what_to_do(
    say: Say, words: list[str], says: str
) -> None:
    code, said = say(*words)
    assert code == 2
    assert says in said
    assert len(said.strip().splitlines()) == 1


# ---------------------------------------------------------------- help on the way


def test_hints_come_one_at_a_time_and_stay_readable_after_passing(say: Say) -> None:
    say()
    hole = LAB.holes[0]
    for level in (1, 2, 3, 3):
        code, said = say("hint")
        assert code == 0
        assert [hint in said for hint in hole.hints] == [n < level for n in range(3)]
    solve()
    say("check")
    assert all(hint in say("hint", "1", "--hole", "1", "--all")[1] for hint in hole.hints)


def test_the_list_counts_the_checks_until_the_first_green_and_the_hints(say: Say) -> None:
    say()

    def counts() -> tuple[int, int]:
        lab = json.loads(say("list", "--json")[1])[0]
        return lab["checks"], lab["hints"]

    assert counts() == (0, 0)
    for words in (("check",), ("hint",), ("check",), ("hint", "--hole", "2"), ("hint",)):
        say(*words)
    assert counts() == (2, 3)
    solve()
    for _ in range(2):  # one that turns green, and one after it
        assert say("check")[0] == 0
    assert counts() == (3, 3)
    rows = [line.split() for line in say("list")[1].splitlines()]
    assert ["Launch", "overhead", str(LAB.minutes), "3", "3", "cpu"] in [row[2:] for row in rows]


def test_a_hint_is_for_the_first_hole_that_is_still_open(say: Say) -> None:
    say()
    mine().write_text(LAB.cut(LAB.holes[2:])["launch_model.py"])
    assert LAB.holes[2].name in say("hint")[1]


def test_a_hint_when_all_is_written_is_for_the_hole_whose_tests_fail(say: Say) -> None:
    say()
    right = LAB.reference()["launch_model.py"]
    slip = right.replace("return kernels * kernel_us / itl_us", "return kernel_us / itl_us")
    assert slip != right
    mine().write_text(slip)
    assert say("check")[0] == 1
    assert "utilisation" in say("hint")[1]
    assert "eager_itl_us" in say("hint", "--hole", "1")[1], "and any other can be asked for"


def test_diff_and_solution_show_the_engines_way_when_asked_twice(say: Say) -> None:
    say()
    for word in ("diff", "solution"):
        code, said = say(word)
        assert code == 2
        assert "lab 1 has not passed yet" in said
        assert "--yes" in said
        assert "return kernels * kernel_us / itl_us" not in said
    code, said = say("diff", "--yes")
    assert code == 0
    assert "return kernels * kernel_us / itl_us" in said
    code, said = say("solution", "--hole", "3", "--yes")
    assert code == 0
    assert "return kernels * kernel_us / itl_us" in said
    assert "cpu_late" not in said
    solve()
    say("check")
    assert "are the same" in say("diff")[1]
    assert "cpu_late" in say("solution")[1]


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no program patch here")
def test_patch_takes_a_diff_and_changes_the_learners_file_alone(
    say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    say()
    before = (ROOT / LAB.sources["launch_model.py"]).read_text()
    said = say("diff", "--yes")[1]
    done = subprocess.run(["patch", "-p0"], input=said, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert mine().read_text() == before == (ROOT / LAB.sources["launch_model.py"]).read_text()


def test_a_hard_lab_says_nowhere_what_to_write(say: Say) -> None:
    for words in (["start", "1", "--hard"], ["check", "1"], ["hint", "1"]):
        said = say(*words)[1]
        assert not any(hole.task in said for hole in LAB.holes)
    assert not any(hole.task in mine().read_text() for hole in LAB.holes)
    assert "TODO(1)" in mine().read_text()
    assert say("start", "1", "--hard")[0] == 2
    assert say("reset", "1")[0] == 0
    assert LAB.holes[0].task.split()[0] in mine().read_text()


def test_a_hint_of_a_lab_that_has_passed_says_so_and_is_not_counted(say: Say) -> None:
    say()
    assert "has passed" not in say("hint")[1]
    solve()
    say("check")
    for _ in range(2):  # and shows no more than was asked for before
        said = say("hint")[1]
        assert "Lab 1 has passed" in said
        assert "hint 1 of 3" in said
        assert "hint 2 of 3" not in said


def test_commands_are_printed_on_one_line_however_narrow(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert ".venv/bin/python -m labs check" in say()[1]
    assert ".venv/bin/python -m labs hint" in say("check")[1]


def test_from_another_folder_a_command_is_printed_as_it_is_typed_there(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "course" / "figures")
    assert "  ../../.venv/bin/python -m labs check" in say()[1]


def test_a_python_without_the_packages_says_what_to_type() -> None:
    program = "import sys; sys.modules['rich'] = None; import runpy; sys.argv[1:] = ['hint', '3']; "
    program += "runpy.run_module('labs', run_name='__main__')"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Type: .venv/bin/python -m labs hint 3" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_watch_checks_at_every_save_through_renames_and_deletions_until_it_is_stopped(
    say: Say,
) -> None:
    say()
    command = [sys.executable, "-u", "-m", "labs", "watch"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as watching:
        assert watching.stdout is not None

        def told(what: str) -> bool:
            return any(what in line for line in watching.stdout or ())

        assert told("save to check again")
        kept = mine().read_text()
        mine().unlink()
        assert told("is not started")
        solved = mine().with_suffix(".new")
        solved.write_text(LAB.reference()["launch_model.py"])
        solved.replace(mine())  # as editors save
        assert told("You have shown")
        mine().write_text(kept)
        assert told("TODO(1)"), "green does not end it"
        os.killpg(watching.pid, signal.SIGINT)
        rest = watching.stdout.read()
        assert watching.wait(timeout=60) == 130
    assert "Traceback" not in rest


def test_a_hint_that_is_asked_for_during_a_check_counts(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests take a while, and somebody may have a second terminal."""
    say()

    def meanwhile(*args: Any, **options: Any) -> Report:
        say("hint")
        return check_files(*args, **options)

    monkeypatch.setattr(commands, "check_files", meanwhile)
    for number in (1, 2):
        say("check")
        state = workspace.load_progress().of(LAB)
        assert (state.checks, state.hints) == (number, {"1": number})


def test_demo_runs_the_engine_with_the_solved_file_in_its_place(
    capfd: pytest.CaptureFixture[str],
) -> None:
    main([])
    solve()
    text = mine().read_text().replace("return kernels * kernel_us / itl_us", "return 0.5 + 0.25")
    mine().write_text(text)
    probe = "import mini_engine.predict.launch_model as m; print('mine:', m.utilisation(1, 1, 9))"
    assert play.run("timeit", ["-n1", "-r1", probe], play.merged([LAB])) == 0
    assert "mine: 0.75" in capfd.readouterr().out
    assert main(["demo", "capacity", "--gpu", "h200"]) == 0
    assert "No lab about the engine is solved yet" in capfd.readouterr().out
    solve()
    assert main(["check"]) == 0
    assert main(["demo", "capacity", "--gpu", "h200"]) == 0
    said = capfd.readouterr().out
    assert "Your code of lab 1 runs" in said
    assert "h200" in said
    mine().write_text(text)
    assert main(["check"]) == 1
    assert main(["demo", "capacity", "--gpu", "h200"]) == 0
    said = capfd.readouterr().out
    assert "Left out: lab 1, whose last check failed" in said
    assert "Your code of lab 1 runs" not in said


def test_doctor_says_what_is_emulated_here_and_why(say: Say) -> None:
    code, said = say("doctor")
    assert code == 0
    assert "numpy" in said
    found = json.loads(say("doctor", "--json")[1])
    assert bool(found["gpu"]) != any("No NVIDIA GPU" in line for line in found["sentences"])


def test_every_command_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for name, *_ in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert len(capsys.readouterr().out) > 80


# ---------------------------------------------------------------- around it


def test_the_runner_starts_without_numpy_and_torch() -> None:
    program = (
        "import sys, labs.runner.cli, labs.runner.show\n"
        "labs.runner.show.all_labs()\n"
        "engine = {name for name in sys.modules if name.startswith('mini_engine.')}\n"
        "engine -= {f'mini_engine.cli{one}' for one in ('', '.ending', '.terminal')}\n"
        "engine -= {'mini_engine.files'}\n"
        "print(engine | {'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_plain_pytest_works_on_one_lab_and_refuses_two(tmp_path: Path) -> None:
    def pytest_on(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        environment = os.environ | {"LABS_HOME": str(tmp_path)} | env
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert pytest_on(f"labs/{LAB.name}", LAB_IMPL="reference").returncode == 0
    assert pytest_on(f"labs/{LAB.name}", LAB_IMPL="wrong/graph_is_free").returncode == 1
    assert "labs start 1" in pytest_on(f"labs/{LAB.name}").stderr
    assert "one lab a run" in pytest_on("labs").stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (("minutes = 45\n", ""), "minutes"),
        (('name = "utilisation"', 'name = "utilization"'), "there is no function utilization"),
        (("needs = ", "needs "), "at line"),
        (("[[hole]]\n", "[[hole]]\nhintz = 1\n"), "hintz"),
    ],
)
def test_a_lab_that_is_described_wrongly_says_which_field(
    tmp_path: Path, damage: tuple[str, str], says: str
) -> None:
    folder = tmp_path / LAB.name
    folder.mkdir()
    text = (LAB.folder / "lab.toml").read_text()
    assert damage[0] in text
    (folder / "lab.toml").write_text(text.replace(*damage))
    with pytest.raises(ValueError, match=f"{LAB.name}/lab.toml: .*{says}"):
        read_lab(folder).cut()


def test_labs_are_made_of_files_that_git_tracks() -> None:
    assert all((ROOT / path).exists() for lab in all_labs() for path in lab.sources.values())
    assert "labs/mine/" in (ROOT / ".gitignore").read_text()
