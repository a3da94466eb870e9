"""evidence.py: what a measurement file must say, what is refused, and what it never tells."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mini_engine.bench import evidence
from mini_engine.bench.evidence import (
    Measurement,
    check_same_machine,
    load_evidence,
    new_measurement,
    read_measurement,
    write_measurement,
)

ON_A_GPU = Measurement(
    kind="bench", emulated=False, gpu="NVIDIA H200", driver="570.1", torch="2.11.0+cu130",
    triton="3.6.0", date="2026-11-21T09:00:00+00:00", commit="abc1234",
    command="python -m mini_engine bench --quick", figures={"rows": [{"itl_us": 1.0}]},
)  # fmt: skip


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep/down/bench.json"
    write_measurement(path, ON_A_GPU)
    assert load_evidence(path) == ON_A_GPU
    assert [p.name for p in path.parent.iterdir()] == ["bench.json"]


def test_what_the_emulator_wrote_is_read_and_is_no_evidence(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_measurement(path, new_measurement("bench", "cpu", "a line", {"rows": [1]}))
    assert read_measurement(path).emulated
    with pytest.raises(ValueError, match="no evidence"):
        load_evidence(path)


@pytest.mark.parametrize("name", [one.name for one in fields(Measurement)])
@pytest.mark.parametrize("value", [None, [7]])
def test_a_field_that_is_missing_or_of_another_type_is_named(
    name: str, value: object, tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    write_measurement(path, ON_A_GPU)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ValueError, match=rf"bench.json: {name}"):
        read_measurement(path)


@pytest.mark.parametrize("name", ["kind", "emulated", "gpu", "torch", "triton", "commit"])
def test_figures_of_two_machines_do_not_share_a_file(name: str) -> None:
    other = replace(ON_A_GPU, **{name: True if name == "emulated" else "another"})
    with pytest.raises(ValueError, match=rf"measured with {name} "):
        check_same_machine(Path("x.json"), ON_A_GPU, other)
    later = replace(ON_A_GPU, date="2027", command="bench", figures={})
    check_same_machine(Path("x.json"), ON_A_GPU, later)


def test_where_git_did_not_travel_the_environment_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_output", lambda _: "")  # as git in a folder without .git
    monkeypatch.delenv(evidence.COMMIT, raising=False)
    assert evidence._commit(tmp_path) == "unknown"
    for commit in ("abc1234", "abc1234+"):
        monkeypatch.setenv(evidence.COMMIT, commit)
        assert evidence._commit(tmp_path) == commit
    monkeypatch.setattr(evidence, "_output", lambda words: "" if "status" in words else "fed4321")
    assert evidence._commit(tmp_path) == "fed4321"  # a repository knows better


def test_a_written_file_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    reason = f"OSError: {Path(__file__).resolve()} is gone"
    write_measurement(path, new_measurement("bench", "cpu", f"bench -o {path}", {"why": reason}))
    text = path.read_text()
    for private in (str(tmp_path), str(Path(__file__).parent), str(Path.home()) + "/"):
        assert private not in text
    assert len(socket.gethostname()) < 5 or socket.gethostname() not in text
    assert "bench -o x.json" in text


@pytest.mark.parametrize(
    ("tool", "torch_sees", "told"),
    [
        ("NVIDIA H200", "another", "NVIDIA H200"),
        (evidence.UNKNOWN, "NVIDIA H200", "NVIDIA H200"),
        (evidence.UNKNOWN, "", evidence.UNKNOWN),
    ],
)
def test_without_nvidia_smi_the_gpu_is_named_by_pytorch(
    tool: str, torch_sees: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: bool(torch_sees), get_device_name=lambda: torch_sees
    )
    monkeypatch.setattr(evidence, "_gpu", lambda _: tool)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    assert evidence.gpu_name() == told
    monkeypatch.delitem(sys.modules, "torch")
    assert evidence.gpu_name() == tool
