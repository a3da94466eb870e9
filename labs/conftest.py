"""`pytest labs/lab05_capture_replay` straight away: on the learner's file, or on LAB_IMPL.

`python -m labs check` says more; this is for who wants pytest's own options (`-x`, `--pdb`, `-k`).
LAB_IMPL is `mine` (default), `reference` or `wrong/NAME`. One lab a run: labs put different files
in the place of the same modules.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from labs.runner import workspace
from labs.runner.catalogue import Lab, read_lab
from labs.runner.session import CATCHES, Teller
from labs.runner.substitute import substitute


def pytest_configure(config: pytest.Config) -> None:
    if any(isinstance(plugin, Teller) for plugin in config.pluginmanager.get_plugins()):
        return  # the runner has done all this
    config.addinivalue_line("markers", CATCHES)
    lab = _asked_for(config)
    if lab is None:
        raise pytest.UsageError("one lab a run: pytest labs/lab01_launch_overhead")
    os.environ.update(lab.environment)
    which = os.environ.get("LAB_IMPL", "mine")
    files = workspace.my_files(lab)
    if which == "mine" and not workspace.started(lab):
        raise pytest.UsageError(f"lab {lab.number} is not started: make lab N={lab.number}")
    if which != "mine":
        folder = Path(tempfile.mkdtemp(prefix="lab-"))
        files = {file: folder / file for file in lab.sources}
        for file, text in lab.texts(which).items():
            files[file].write_text(text)
    sys.dont_write_bytecode = True
    substitute({lab.module(file): path for file, path in files.items()})


def _asked_for(config: pytest.Config) -> Lab | None:
    """The one lab that the words of the command line lie in."""
    folders = set()
    for word in config.args:
        path = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        folders.add(path if path.is_dir() else path.parent)
    (folder, *others) = folders
    return read_lab(folder) if not others and (folder / "lab.toml").exists() else None
