"""The popular loop has exactly the four faults that its page says, and the page's mends mend them.

The mends are read from the page: in each answer, lines with a minus go and lines with a plus come.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Collection

import pytest

from tests.support.documents import ROOT, fences, missing_lines

pytest.importorskip("torch")

FILE = ROOT / "course/deeper/popular_capture_loop.py"
PAGE = (ROOT / "course/deeper/find-the-faults.md").read_text()
ANSWERS = re.findall(r"<details>.*?</details>", PAGE, re.DOTALL)
ALL = (1, 2, 3, 4)
DTYPE, KEY = "capture: RuntimeError: Expected tensor for argument #1 'indices'", "KeyError: 3"


def mend(source: str, answer: str) -> str:
    """The source with the answer's mend in it, indented as what it replaces."""
    (patch,) = (f.body for f in fences(answer) if f.body.startswith("- "))
    lines = [(line[0], line[2:]) for line in patch.splitlines()]
    old = [text for sign, text in lines if sign == "-"]
    new = [text for sign, text in lines if sign == "+"]
    found = re.findall(r"^( +)" + r"\n +".join(map(re.escape, old)) + r"$", source, re.MULTILINE)
    assert len(found) == 1, f"{old} stands in {FILE.name} {len(found)} times"
    (indent,) = found
    before, after = ("\n".join(indent + text for text in some) for some in (old, new))
    return source.replace(before, after)


def printed(mended: Collection[int], *, also: tuple[str, str] = ("", "")) -> str:
    """What the file prints with some of its faults mended (1 to 4)."""
    source = FILE.read_text()
    for number in mended:
        source = mend(source, ANSWERS[number - 1])
    source = source.replace(*also) if also[0] else source
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, FILE.name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


def wrong(text: str) -> dict[int, str]:
    """step -> who was answered wrongly."""
    return {int(n): who for n, who in re.findall(r"^(\d).*wrong: (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("number", ALL)
def test_the_faults_show_one_after_the_other_as_the_page_says(number: int) -> None:
    text = printed(range(1, number))
    if number == 1:
        assert text.startswith(DTYPE)  # the page's own command has printed the whole line
        return
    (shown,) = (f.body for f in fences(ANSWERS[number - 1]) if "wrong: " in f.body or KEY in f.body)
    assert not missing_lines(shown, text), text


def test_with_all_four_mended_the_loop_writes_what_eager_writes() -> None:
    text = printed(ALL)
    assert not wrong(text)
    assert "Error" not in text
    steps = re.findall(r"^\d.{23}(.{18})(.*)$", text, re.MULTILINE)
    assert len(steps) == 9
    assert all(expected.split() == written.split() for expected, written in steps)


def test_each_fault_alone_has_a_symptom_of_its_own() -> None:
    alone = {fault: printed(set(ALL) - {fault}) for fault in ALL}
    assert alone[1].startswith(DTYPE)
    assert alone[2].rstrip().endswith(KEY)
    assert wrong(alone[2]) == {}
    assert wrong(alone[3]) == dict.fromkeys(range(5, 10), "eve")
    assert wrong(alone[4]) == dict.fromkeys((8, 9), "fay")


def test_half_a_mend_of_the_dtype_moves_the_error_on() -> None:
    text = printed((), also=("self.ids = torch.zeros(max(sizes))", INTEGER_IDS))
    assert "IndexError: tensors used as indices must be long, int, byte or bool" in text


INTEGER_IDS = "self.ids = torch.zeros(max(sizes), dtype=torch.long)"


def test_with_its_freed_memory_poisoned_the_moved_cache_makes_everybody_wrong() -> None:
    poisoned = (
        "self.model.grow(slots)",
        "old = self.model.cache; self.model.grow(slots); old.fill_(torch.nan)",
    )
    seen = wrong(printed((1, 2, 3), also=poisoned))
    assert seen == {7: "bob eve", 8: "bob eve fay", 9: "bob eve fay"}
