"""Files are written whole or not at all, and one is told before the work where they cannot go."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from mini_engine.plots.canvas import canvas
from mini_engine.records import whole_file
from mini_engine.records.whole_file import check_folder, check_out, write_whole


def test_a_file_is_written_with_its_folders_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep/down/a.txt"
    write_whole(path, "µs\n")
    write_whole(path, b"again")
    assert path.read_bytes() == b"again"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()


def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole_file.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_file.os, "replace", pressed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole(Path("/dev/full"), "more")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_link_to_a_file_that_is_not_there_yet_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new/target")
    write_whole(check_out(link), "new")
    assert link.is_symlink()
    assert (tmp_path / "new/target").read_text() == "new"
    link.unlink()
    link.symlink_to("/proc/a.txt")
    with pytest.raises(ValueError, match="/proc: cannot be written to"):
        check_out(link)


@pytest.mark.parametrize("letter", ["x", "é", "字"])
def test_a_name_may_be_as_long_as_the_disk_allows(letter: str, tmp_path: Path) -> None:
    path = tmp_path / (letter * (255 // len(letter.encode())))
    write_whole(check_out(path), "new")
    write_whole(path, "again")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["again"]


def test_a_file_stays_as_private_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o600)
    write_whole(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_where_nothing_can_be_written_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, endings, why in (
        (tmp_path / "a.txt", (".png", ".svg"), "expected a name that ends in .png or .svg"),
        (tmp_path, (), "a folder, expected a file's name"),
        (tmp_path / "file/a.png", (), "file: a file, expected a folder"),
        (Path("/proc/a.png"), (), "/proc: cannot be written to"),
    ):
        with pytest.raises(ValueError, match=why):
            check_out(path, endings)
    assert check_out(tmp_path / "new/a.png", (".png",)) == tmp_path / "new/a.png"
    assert check_folder(tmp_path / "new") == tmp_path / "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("ending", "begins"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_what_its_name_says_and_the_same_each_time(
    ending: str, begins: bytes, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        with canvas(path, (4, 3), title="a finding", caption="of what") as figure:
            figure.subplots().plot([1, 2])
    one, other = (path.read_bytes() for path in paths)
    assert one == other
    assert one.startswith(begins)


def test_a_picture_of_another_kind_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.txt: expected a name that ends in \.png or"):
        with canvas(tmp_path / "a.txt", (4, 3), title="a", caption="b"):
            raise AssertionError("drawn")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
