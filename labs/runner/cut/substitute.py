"""Put other files in the place of the engine's modules, for one process.

In:  module name -> file. Out: from then on `import mini_engine.sim.graphs` loads the given file, in
the lab's tests and in every part of the engine. Nothing on disk changes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


class Substitutes:
    """A finder of modules that is asked before all others."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Uncached(fullname, str(file))
        )


class _Uncached(SourceFileLoader):
    """Compiles anew each time: two saves within a second may leave size and time as they were."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path} has no bytecode")


def substitute(files: Mapping[str, Path]) -> None:
    """Install them. Raises RuntimeError if one of the modules has already been imported."""
    late = sorted(set(files) & set(sys.modules))
    if late:
        raise RuntimeError(f"{', '.join(late)} imported before it could be substituted")
    sys.meta_path.insert(0, Substitutes(files))  # type: ignore[arg-type]
