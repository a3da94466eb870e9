"""Empty packages in the place of those that only work needs, so that `--help` is there at once.

In:  nothing. Out: from now on numpy, rich, matplotlib, ... are imported without being read: every
     name in them is an object that does nothing.

The help of a command stands in the file that does its work, and that file imports what the work
needs: 0.1 s for numpy alone. A process that was started for `--help` prints it and ends, and so
never notices. No other process may call this.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

HEAVY = (
    "matplotlib", "numpy", "rich", "safetensors", "tokenizers", "torch", "transformers",
    "concurrent", "multiprocessing", "statistics", "subprocess", "tempfile",  # milliseconds each
)  # fmt: skip
OURS = (
    "mini_engine.plots", "mini_engine.sim.generate", "mini_engine.serving.replay",
    "mini_engine.serving.report", "mini_engine.serving.ladder_cost", "mini_engine.serving.sizing",
    "mini_engine.step.curves", "mini_engine.validate.validate", "mini_engine.step.step_model",
    "mini_engine.bench.evidence", "mini_engine.bench.table", "mini_engine.bench.summary",
    "mini_engine.bench.others_table", "mini_engine.bench.bars", "mini_engine.cli.bench_file",
)  # fmt: skip


class Nothing(type):
    """A class whose attributes, items, calls and unions are such classes, too: what a module does
    with a name while it is imported. A subclass of it is an empty class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING

    def __getitem__(cls, _key: object) -> Any:
        return NOTHING

    def __call__(cls, *_words: object, **_options: object) -> Any:
        return NOTHING

    def __or__(cls, _other: object) -> Any:
        return NOTHING


NOTHING = Nothing("NOTHING", (), {})


class _Package(types.ModuleType):
    """A module in which every name is `NOTHING`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING


class _StandIns:
    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name in OURS or name.partition(".")[0] in HEAVY:
            # a loader in all but name: importlib.abc takes 20 ms to import
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Package(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def stand_in() -> None:
    """Put them in the place of the real ones, for the rest of this process."""
    sys.meta_path.insert(0, _StandIns())
