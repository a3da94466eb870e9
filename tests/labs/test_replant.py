"""One changed place goes into a text; comments, line breaks and docstrings stay."""

import ast

import pytest

from labs.runner.replant import as_written

MINE = '''"""A module — with words."""


class Much:
    def more(self, a, b):
        """Two lines,

        and a third.
        """
        # a comment
        if a is None or b > 3:  # another
            return "ä", (a + b) * 2
        total = sum(
            one for one in b
        )
        self.kept = total
        return total
'''


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("b > 3", "b >= 3"),
        ("a is None or b > 3", "True"),
        ("(a + b)", "(a - b)"),
        ("self.kept = total", "pass"),
        ("(a + b) * 2", "(a + b) * 3"),
        ("b > 3", "b < 4 or a"),
    ],
)
def test_a_function_that_was_written_anew_gives_back_only_what_changed(was: str, now: str) -> None:
    wrong = MINE.replace(was, now)
    assert as_written(MINE, ast.unparse(ast.parse(wrong))) == wrong


def test_two_changes_at_once_are_taken_as_they_come() -> None:
    changed = ast.unparse(ast.parse(MINE.replace("b > 3", "b < 3").replace("= total", "= 0")))
    mended = as_written(MINE, changed)
    assert ast.dump(ast.parse(mended).body[1].body[0].body[1]) == ast.dump(  # type: ignore[attr-defined]
        ast.parse(changed).body[1].body[0].body[1]  # type: ignore[attr-defined]
    )
