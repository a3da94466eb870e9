"""A Python with only the packages that a GPU machine without a network has: what runs there?

`packages_only(folder)` makes a virtual environment that sees the standard library, the packages of
`ON_THE_MACHINE`, and what those need; of everything else installed here it sees nothing. Which
packages a package needs is asked of its metadata, so nothing is listed twice.
"""

from __future__ import annotations

import sysconfig
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What the Python of a data-centre image with PyTorch has, and `make gpu` may need: no more.
ON_THE_MACHINE = (
    "torch",
    "triton",
    "transformers",
    "numpy",
    "matplotlib",
    "rich",
    "safetensors",
    "tokenizers",
    "pytest",
    "hypothesis",
)


def with_what_they_need(names: tuple[str, ...] = ON_THE_MACHINE) -> set[str]:
    """The names and, by their metadata, everything they need; what is not installed is left out."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        wanted = map(Requirement, needs)
        waiting += [
            canonicalize_name(need.name)
            for need in wanted
            if need.marker is None or need.marker.evaluate({"extra": ""})
        ]
    return found


def packages_only(folder: Path) -> Path:
    """The Python of a new environment in `folder` that sees these packages alone."""
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in with_what_they_need():
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            origin = Path(str(distribution(name).locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(origin)
    return folder / "bin" / "python"


def stub(folder: Path, name: str, source: str) -> None:
    """A module of this name, to be found before any other: put the folder into PYTHONPATH."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(source, "utf-8")
    (folder / name / "__main__.py").write_text(f"import {name}\n", "utf-8")
