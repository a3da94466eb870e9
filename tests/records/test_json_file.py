"""json_file.py: what is no JSON is refused in one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mini_engine.records.json_file import parse_json, read_json, read_json_object


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "not JSON: Expecting property name"),
        (b"", "not JSON: Expecting value"),
        (b'"\xff"', "not JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 10**5 + b"]" * 10**5, "nested too deeply"),
        (b'{"a":' * 10**5, "nested too deeply"),
        (b"9" * 10**4, "not JSON: Exceeds the limit"),
        (b'[{"a": 1, "b": 2, "a": 1}]', "'a' stands twice in an object"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' stands twice in an object"),
    ],
)
def test_what_is_no_json_is_refused_by_the_files_name(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some.json: .*{says}"):
        read_json(path)


def test_a_file_that_never_ends_is_refused_after_its_first_bytes() -> None:
    with pytest.raises(ValueError, match="/dev/zero: larger than 1,000 bytes"):
        read_json(Path("/dev/zero"), max_bytes=1000)


def test_an_object_is_told_from_a_list(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('[{"a": 1}]')
    assert read_json(path) == [{"a": 1}]
    with pytest.raises(ValueError, match=r"some.json: expected a JSON object \{...\}, found list"):
        read_json_object(path)


def test_text_is_parsed_under_a_name_of_its_own() -> None:
    assert parse_json('{"a": "é"}', "line 3") == parse_json('{"a": "é"}'.encode(), "line 3")
    with pytest.raises(ValueError, match="line 3: not JSON"):
        parse_json("nothing", "line 3")


def test_a_field_may_repeat_where_the_reader_says_so(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('{"a": 1, "a": 2}')
    assert read_json(path, repeats=True) == {"a": 2}
