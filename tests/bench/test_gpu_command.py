"""`python -m mini_engine gpu`: rehearsed without a GPU, and cut wherever it may be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from mini_engine.bench import prompts  # noqa: E402
from mini_engine.bench import warm as warm_room  # noqa: E402
from mini_engine.bench.chain import KERNELS  # noqa: E402
from mini_engine.bench.evidence import read_measurement, write_measurement  # noqa: E402
from mini_engine.bench.first_run import ARMS, BATCHES, COMPILED, MODELS, SECONDS, TESTS, first_run  # noqa: E402
from mini_engine.bench.stages import DONE, State, read_state  # noqa: E402
from mini_engine.bench.summary import EMULATED, MOST_LINES  # noqa: E402
from mini_engine.bench.variants import VARIANTS  # noqa: E402
from mini_engine.cli import main  # noqa: E402
from tests.support.warm_python import warm_python  # noqa: E402

ROOT = Path(__file__).parents[2]
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
NAMES = [stage.name for stage in first_run("cpu")]


def rehearsal(folder: Path) -> list[str]:
    return [
        warm_python(),
        "-m",
        "mini_engine",
        "gpu",
        "--device",
        "cpu",
        "--minutes",
        "30",
        "-o",
        str(folder),
    ]


def state(folder: Path) -> State:
    return read_state(folder) or State({}, {})


def test_a_rehearsal_that_is_cut_at_stage_boundaries_goes_on_to_its_end(tmp_path: Path) -> None:
    """The whole run on the emulator, killed when a stage has ended: at each boundary in `make
    slow`, at one of them in `make test`, for each costs a start."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for finished in range(1, len(NAMES)) if SLOW else (6,):
        before = state(tmp_path).outcomes
        process = subprocess.Popen(
            rehearsal(tmp_path), cwd=ROOT, env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while len(state(tmp_path).outcomes) < finished:
            assert process.poll() is None, process.communicate()[0].decode()[-2000:]
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        after = state(tmp_path).outcomes
        assert list(after) == NAMES[:finished]
        assert {name: after[name] for name in before} == before  # what was done stays as it was
    last = subprocess.run(
        rehearsal(tmp_path), cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert last.returncode == 0, last.stderr
    outcomes = state(tmp_path).outcomes
    assert {name: one.status for name, one in outcomes.items()} == dict.fromkeys(NAMES, DONE), {
        name: one.note for name, one in outcomes.items()
    }
    lines = last.stdout.splitlines()
    assert lines[0] == EMULATED
    assert len(lines) <= MOST_LINES
    rows = read_measurement(tmp_path / "bench.json").figures["rows"]
    assert {row["variant"] for row in rows} >= {*ARMS, *COMPILED}
    assert (tmp_path / "step.json").exists()
    assert "registers" in (tmp_path / "kernels.txt").read_text()  # lab 13's machine code


def test_kernels_are_compiled_in_processes_of_their_own_and_a_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    lines: list[list[str]] = []

    def run(words: list[str], **_more: Any) -> subprocess.CompletedProcess[str]:
        if "warm" in words:  # git is asked, too
            lines.append(words[1:])
        return subprocess.CompletedProcess(words, int("graph-9" in words), "compiled\n", "")

    monkeypatch.setattr(warm_room.subprocess, "run", run)
    words = ["gpu", "warm", "--device", "cpu", "--shape", "tiny", "--steps", "2"]
    assert main([*words, "--arms", "graph-5,graph-9"]) == 1
    assert "1 of 2 were not compiled" in capsys.readouterr().err
    assert {line[line.index("--arms") + 1] for line in lines} == {"graph-5", "graph-9"}
    alone = lines[0][lines[0].index("gpu") :]
    assert main(alone) == 0  # what such a process runs
    assert main(["gpu", "warm", "--device", "cpu", "--arms", "graph-5-pdl"]) == 0
    assert "programmatic dependent launch is a GPU's" in capsys.readouterr().err


def test_a_rehearsal_is_no_evidence(tmp_path: Path, capsys: Any) -> None:
    words = ["gpu", "environment", "--device", "cpu", "-o", str(tmp_path / "environment.json")]
    assert main(words) == 0
    assert read_measurement(tmp_path / "environment.json").emulated
    assert main(["gpu", "publish", "-o", str(tmp_path)]) == 2
    assert "the CPU emulator wrote it, so it is no evidence" in capsys.readouterr().err


def test_a_chain_that_was_cut_goes_on_with_the_kernel_that_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "chain.json"
    words = ["gpu", "chain", "--device", "cpu", "--rounds", "2", "--steps", "1", "-o", str(out)]
    assert main(words) == 0
    whole = read_measurement(out)
    links = whole.figures["links"]
    assert [link["kernel"] for link in links] == list(KERNELS)
    cut = {**whole.figures, "links": links[:-1]}
    write_measurement(out, replace(whole, figures=cut))
    assert main(words) == 0
    again = read_measurement(out).figures["links"]
    assert again[:-1] == links[:-1]
    assert again[-1]["kernel"] == KERNELS[-1]


def test_prompts_in_our_kernel_and_in_sdpa_run_in_one_process_with_a_floor_beside_them(
    tmp_path: Path,
) -> None:
    """As a rehearsal; on a GPU other steps, and the same rows."""
    out = tmp_path / "prefill.json"
    words = ["gpu", "prefill", "--device", "cpu", "--rounds", "2", "-o", str(out)]
    assert main(words) == 0
    found = read_measurement(out)
    assert found.emulated
    rows = found.figures["rows"]
    assert [(row["case"], row["what"]) for row in rows] == [
        (case.name, what) for case in prompts.REHEARSAL for what in ("attention", "body")
    ]
    for row in rows:
        assert row["ours_us"]["median"] > row["floor_us"] > 0
        assert row["times"]["low"] <= row["times"]["median"] <= row["times"]["high"]
        assert row["errors"]["ours"] < 0.02  # bf16 keeps 8 bits, and the values are of size 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--stages", "arms,cahin"], "--stages cahin: expected some of environment, calibrate,"),
        (["--minutes", "0"], "--minutes 0: expected more than 0"),
        (["report", "-o", "nowhere"], "nowhere: no run here: `python -m mini_engine gpu` makes"),
        (["publish", "-o", "nowhere"], "nowhere: no run here: `python -m mini_engine gpu` makes"),
        (["chain", "--rounds", "3"], "3 rounds: give an even number"),
    ],
)
def test_bad_input_is_one_clear_line(words: list[str], line: str, capsys: Any) -> None:
    assert (
        main(["gpu", *words, *([] if words[0] in ("report", "publish") else ["--device", "cpu"])])
        == 2
    )
    error = capsys.readouterr().err
    assert line in error
    assert "Traceback" not in error


# ---------------------------------------------------------------- what it would run on a GPU


def words_of(name: str, folder: Path) -> list[list[str]]:
    (stage,) = [stage for stage in first_run("cuda") if stage.name == name]
    return [list(words) for words in stage.commands(folder)]


def test_on_a_gpu_the_default_set_ends_within_nine_minutes() -> None:
    stages = first_run("cuda")
    assert SECONDS == 9 * 60
    assert [stage.name for stage in stages] == NAMES
    assert sum(stage.seconds for stage in stages[:-1]) < SECONDS  # the last has what is left


def test_the_arms_of_a_first_run_exist_and_stand_in_the_order_of_what_they_tell(
    tmp_path: Path,
) -> None:
    (arms,) = words_of("arms", tmp_path)
    assert arms[arms.index("--arms") + 1].split(",") == list(ARMS)
    assert arms[arms.index("--shape") + 1] == ",".join(MODELS)
    assert set(ARMS) | set(COMPILED) <= set(VARIANTS)
    (rest,) = [words for words in words_of("rest", tmp_path) if "bench" in words]
    assert rest[rest.index("--batch") + 1] == ",".join(map(str, BATCHES))


def test_tests_that_were_cut_go_on_with_those_that_have_not_passed(tmp_path: Path) -> None:
    (before,) = words_of("pytest", tmp_path)
    assert tuple(before[-len(TESTS) :]) == TESTS
    assert all((ROOT / folder).is_dir() for folder in TESTS)
    suite = tmp_path / "test_it.py"
    suite.write_text("def test_a(): pass\ndef test_b(): assert False\ndef test_ab(): pass\n")
    log = ["test_it.py::test_a PASSED [ 33%]", "test_it.py::test_b FAILED [ 66%]"]
    (tmp_path / "pytest.txt").write_text("\n".join(log))
    (words,) = words_of("pytest", tmp_path)
    assert words[: len(before)] == before
    more = words[len(before) :]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "test_it.py", *more],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "test_a " not in done.stdout
    assert "1 failed, 1 passed, 1 deselected" in done.stdout
