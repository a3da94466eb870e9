"""A pytest plugin: leave out the tests that a file lists, by their whole names, one a line.

    python -m pytest -p tests.support.passed_before --passed-before FILE

So a run that was cut goes on. pytest's own --deselect takes the beginning of a name, and would
leave out test_a_later with test_a.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--passed-before", type=Path, metavar="FILE", help="names of tests, a line each"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file: Path | None = config.getoption("--passed-before")
    if file is None:
        return
    passed = set(file.read_text(encoding="utf-8").splitlines())
    before = [item for item in items if item.nodeid in passed]
    config.hook.pytest_deselected(items=before)
    items[:] = [item for item in items if item.nodeid not in passed]
