"""No document, docstring or setting names a path or a module that does not exist."""

from __future__ import annotations

import pytest

from tests.support.references import readable, stale, stale_in


def test_every_path_and_module_that_the_repository_names_exists() -> None:
    found = {file: gone for file in readable() if (gone := stale_in(file))}
    assert not found, "\n".join(f"{file}: {', '.join(gone)}" for file, gone in found.items())


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("See `mini_engine/sim/graphs.py`, the labs/*/README.md and torch/cuda/graphs.py.", []),
        ("```sh\nless tests/nowhere/test_x.py\n```", ["tests/nowhere/test_x.py"]),
        ("[a lab](../labs/lab99_nowhere/README.md)", ["../labs/lab99_nowhere/README.md"]),
        ("`sim/graphs.py:GraphRunner.fly`", ["sim/graphs.py:GraphRunner.fly"]),
        (":mod:`mini_engine.graphs`, of tests.nowhere", ["mini_engine.graphs", "tests.nowhere"]),
    ],
)
def test_what_does_not_exist_is_noticed(text: str, gone: list[str]) -> None:
    assert stale(text) == gone
