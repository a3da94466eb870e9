"""The site, built once in a run, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course.site.__main__ import build

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by one worker: half a minute is too long for each (tests/support/distribution.py)."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # all workers of a run share this folder
        building = tmp_path_factory.getbasetemp().parent / "building-the-site"
        building.touch(exist_ok=False)
    into = tmp_path_factory.mktemp("site") / "book"
    assert build(into) == 0, "Sphinx warns: see above"
    return into


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium here: install one (apt install chromium) to drive the pages")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        with driver.chromium.launch(executable_path=program, args=flags) as opened:
            yield opened
