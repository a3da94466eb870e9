"""The walls of the house: who may import whom. Read from the source with `ast`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "mini_engine"
FACE = ("__main__.py", "cli/")
CHECKPOINTS = "checkpoints/"  # training scripts: run by hand, imported by nobody
MAX_LINES = 300


def room(path: Path) -> str:
    """face, sim, cuda or policy."""
    inside = path.relative_to(ENGINE).as_posix()
    if inside.startswith(FACE):
        return "face"
    return next((wing for wing in ("sim", "cuda") if inside.startswith(f"{wing}/")), "policy")


def sources() -> list[Path]:
    found = [p for p in ENGINE.rglob("*.py") if CHECKPOINTS not in p.as_posix()]
    assert len(found) > 20
    return sorted(found)


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file, by its full name."""
    return imports_of(path.read_text(), path.relative_to(ROOT).with_suffix("").parts[:-1])


def imports_of(source: str, package: tuple[str, ...]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def touches(names: set[str], *modules: str) -> set[str]:
    return {n for n in names for m in modules if n == m or n.startswith(f"{m}.")}


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ENGINE).as_posix())
def test_no_room_imports_what_it_must_not(path: Path) -> None:
    names, where = imports(path), room(path)
    assert not touches(names, "labs"), "mini_engine must not import labs"
    if where == "policy":
        wings = touches(names, "mini_engine.sim", "mini_engine.cuda", "mini_engine.cli")
        assert not wings, "policy must not import a wing or the face"
        assert not touches(names, "torch", "triton"), "policy must run without torch"
    if where == "sim":
        assert not touches(names, "torch", "triton", "transformers"), "sim must not import torch"
        assert not touches(names, "mini_engine.cuda", "mini_engine.cli"), "one wing, no face"
    if where == "cuda":
        assert not touches(names, "mini_engine.sim", "mini_engine.cli"), "one wing, no face"


def test_the_engine_knows_scheduler_dispatch_and_metrics_and_no_other_room() -> None:
    used = {name.split(".")[1] for name in touches(imports(ENGINE / "engine.py"), "mini_engine")}
    assert used <= {"scheduler", "dispatch", "metrics"}


@pytest.mark.parametrize(
    ("source", "forbidden"),
    [
        ("from mini_engine.sim import device", "mini_engine.sim"),
        ("import mini_engine.cuda.graphs as g", "mini_engine.cuda"),
        ("def f():\n    from . import sim", "mini_engine.sim"),
        ("from torch.nn import functional", "torch"),
    ],
)
def test_the_reader_of_imports_sees_every_way_to_write_one(source: str, forbidden: str) -> None:
    assert touches(imports_of(source, ("mini_engine",)), forbidden)


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ENGINE).as_posix())
def test_a_room_reads_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_the_demo_runs_without_torch() -> None:
    program = (
        "import sys; import mini_engine.cli as cli\n"
        "for name in cli.COMMANDS: cli.load(name)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "print('without torch')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "without torch", done.stderr
