"""files.py: what is no JSON, or of another type, is refused by file and field; files are whole."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from mini_engine import files
from mini_engine.files import check_folder, check_out, read_json, read_object, typed, write_whole

# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "content", [b"{", b"", b'"\xff"', b"[" * 10**5 + b"]" * 10**5, b'{"a":' * 10**5, b"9" * 10**4]
)
def test_what_is_no_json_is_refused_by_the_files_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"some\.json"):
        read_json(path)


def test_an_object_is_told_from_a_list(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('[{"a": 1}]')
    assert read_json(path) == [{"a": 1}]
    with pytest.raises(ValueError, match=r"some\.json"):
        read_object(path)


# ---------------------------------------------------------------- typed


@dataclass(frozen=True)
class Inner:
    value: float

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError(f"value {self.value} is below 0")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    mode: Literal["FULL", "NONE"] = "FULL"
    inner: Inner | None = None
    ids: int | list[int] = 0
    rows: tuple[Inner, ...] = ()
    words: dict[str, str] = field(default_factory=dict)
    anything: Any = None


def test_an_object_becomes_the_dataclass_with_all_that_stands_in_it() -> None:
    read = typed(
        Outer,
        {
            "name": "a", "count": 2, "mode": "NONE", "inner": {"value": 3}, "ids": [1, 2],
            "rows": [{"value": 1}, {"value": 2.5}], "words": {"b": "c"}, "anything": [{}],
        },
        "f",
    )  # fmt: skip
    assert read == Outer(
        "a", 2, "NONE", Inner(3.0), [1, 2], (Inner(1.0), Inner(2.5)), {"b": "c"}, [{}]
    )
    assert type(read.rows[0].value) is float, "a whole number is a number too"
    assert typed(Outer, {"name": "a", "count": 2, "ids": 4, "inner": None}, "f").ids == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": 3}, "f: name is 3"),
        ({"name": None}, "f: name is missing"),
        ({"count": True}, "f: count is True"),
        ({"count": 1.5}, "f: count is 1.5"),
        ({"mode": "BOTH"}, "f: mode is 'BOTH'"),
        ({"inner": {"value": float("nan")}}, "f: inner: value is nan"),
        ({"inner": {"value": 10**400}}, "f: inner: value is 1000"),
        ({"inner": {"value": -1}}, "f: inner: value -1.0 is below 0"),
        ({"inner": []}, r"f: inner is \[\]"),
        ({"ids": [1, "2"]}, r"f: ids\[1\] is '2'"),
        ({"rows": [{"value": "x"}]}, r"f: rows\[0\]: value is 'x'"),
        ({"words": {"b": 1}}, "f: words: b is 1"),
        ({"nane": 1}, "f: 'nane' .*name"),
        ({"name": ["x" * 1000]}, "f: name is "),
    ],
)
def test_a_value_of_another_type_is_refused_by_file_field_and_value(
    change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=f"^{says}") as error:
        typed(Outer, {"name": "a", "count": 2} | change, "f")
    assert len(str(error.value)) < 200


def test_other_fields_are_passed_over_only_on_demand() -> None:
    assert typed(Inner, {"value": 1, "other": 2}, "f", more=True) == Inner(1.0)
    with pytest.raises(ValueError, match="other"):
        typed(Inner, {"value": 1, "other": 2}, "f")
    with pytest.raises(ValueError, match=r"f is \[\]"):
        typed(Inner, [], "f")


# ---------------------------------------------------------------- writing


def test_a_file_is_written_with_its_folders_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep/down/a.txt"
    write_whole(path, "µs\n")
    write_whole(path, b"again")
    assert path.read_bytes() == b"again"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "raised", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_full_disk_or_an_interrupt_leaves_the_old_file(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(files.os, "replace", fails)
    with pytest.raises(type(raised)) as error:
        write_whole(path, "new")
    assert isinstance(raised, KeyboardInterrupt) or "a.txt" in str(error.value)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_where_nothing_can_be_written_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, endings in (
        (tmp_path / "a.txt", (".png", ".svg")),
        (tmp_path, ()),
        (tmp_path / "file/a.png", ()),
    ):
        with pytest.raises(ValueError, match=str(tmp_path)):
            check_out(path, endings)
    assert check_out(tmp_path / "new/a.png", (".png",)) == tmp_path / "new/a.png"
    assert check_folder(tmp_path / "new") == tmp_path / "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
