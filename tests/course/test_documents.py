"""The reader of documents sees what it should, and the Python that runs their commands does what
Python does; otherwise the checks would check nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import fences, missing_lines
from tests.support.warm_python import warm_python

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


# ---------------------------------------------------------------- tests/support/warm_python.py

SAYS = "import os, sys; print(sys.argv, os.getcwd(), os.environ.get('HERE'), __name__, sys.path[0])"


@pytest.mark.parametrize(
    "words",
    [
        ["-c", f"{SAYS}; print('no', file=sys.stderr); sys.exit(3)", "a b", "--c"],
        ["-c", "import os; print('before', flush=True); os.kill(os.getpid(), 9)"],
        ["-m", "says", "a b"],
    ],
)
def test_the_warm_python_does_what_python_does(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    environment = {**os.environ, "HERE": "there"}
    one, other = (
        subprocess.run(
            [python, *words], cwd=tmp_path, env=environment, input="in", capture_output=True,
            text=True,
        )
        for python in (sys.executable, warm_python())
    )  # fmt: skip
    assert (other.returncode, other.stdout) == (one.returncode, one.stdout)
    assert other.stderr == one.stderr
