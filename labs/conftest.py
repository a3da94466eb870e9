"""Lets plain pytest run a lab: `pytest labs/lab05_capture_replay`.

`./lab check` explains more; use pytest for its own options (`-x`, `--pdb`, `-k`).
LAB_IMPL says whose code is tested: `mine` (default), `reference` or `wrong/NAME`. Run one lab at a
time, because labs put different files in the place of the same modules.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from labs.runner import workspace
from labs.runner.checks.session import CATCHES, Reporter
from labs.runner.cut.catalogue import Lab, read_lab
from labs.runner.cut.substitute import substitute


def pytest_configure(config: pytest.Config) -> None:
    if any(isinstance(plugin, Reporter) for plugin in config.pluginmanager.get_plugins()):
        return  # labs.runner.checks.session has set up everything
    config.addinivalue_line("markers", CATCHES)
    lab = _asked_for(config)
    if lab is None:
        raise pytest.UsageError("one lab a run: pytest labs/lab04_launch_overhead")
    os.environ.update(lab.environment)
    which = os.environ.get("LAB_IMPL", "mine")
    files = workspace.my_files(lab)
    if which == "mine":
        try:
            workspace.refuse_unready(lab, workspace.load_progress())
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
    if which != "mine":
        folder = Path(tempfile.mkdtemp(prefix="lab-"))
        files = {file: folder / file for file in lab.sources}
        for file, text in lab.texts(which).items():
            files[file].write_text(text, encoding="utf-8")
    sys.dont_write_bytecode = True
    substitute({lab.module(file): path for file, path in files.items()})


def _asked_for(config: pytest.Config) -> Lab | None:
    """The one lab whose folder holds every path of the command line."""
    folders = set()
    for word in config.args:
        path = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        folders.add(path if path.is_dir() else path.parent)
    (folder, *others) = folders
    return read_lab(folder) if not others and (folder / "lab.toml").exists() else None
