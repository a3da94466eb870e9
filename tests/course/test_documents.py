"""The reader of documents sees what it should; otherwise its checks would check nothing."""

from __future__ import annotations

import pytest

from tests.support.documents import anchors, fences, missing_lines, symbol_source

TEXT = """# A b: `c` & d

```sh
one --x \\
  --y
# a remark
two
```

```text
out
```

```python
x = 1
```

words

```text
a drawing
```
"""


def test_a_text_fence_right_after_a_command_is_its_output() -> None:
    shell, python, drawing = fences(TEXT)
    assert (shell.info, shell.shows) == ("sh", "out\n")
    assert shell.commands == ["one --x    --y", "two"]
    assert (python.info, python.shows) == ("python", None)
    assert (drawing.info, drawing.shows) == ("text", None)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [("a\nc\n", []), ("a\n…\nc", []), ("c\na", ["a"]), ("d", ["d"]), ("a ", [])],
)
def test_shown_lines_must_be_printed_in_order(shown: str, missing: list[str]) -> None:
    assert missing_lines(shown, "a\nb\nc\n") == missing


def test_an_excerpt_is_looked_up_by_symbol() -> None:
    assert symbol_source("tests/course/test_documents.py:TEXT").startswith("TEXT = ")
    assert "def inner" not in symbol_source("tests/support/documents.py:Fence.commands")
    with pytest.raises(LookupError, match="has no Fence"):
        symbol_source("tests/support/documents.py:Fence.nothing")


def test_anchors_are_those_of_a_forge() -> None:
    assert anchors(TEXT) == {"a-b-c--d"}
