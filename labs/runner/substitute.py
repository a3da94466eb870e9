"""Put other files in the place of the engine's modules, for one process.

In:  module name -> file. Out: from then on `import mini_engine.sim.graphs` loads the given file, in
the lab's tests and in every part of the engine. Nothing on disk changes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


class Substitutes:
    """A finder of modules that is asked before all others."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        return importlib.util.spec_from_file_location(fullname, file) if file else None


def substitute(files: Mapping[str, Path]) -> None:
    """Install them. Raises RuntimeError if one of the modules has already been imported."""
    late = sorted(set(files) & set(sys.modules))
    if late:
        raise RuntimeError(f"{', '.join(late)} imported before it could be substituted")
    sys.meta_path.insert(0, Substitutes(files))  # type: ignore[arg-type]
