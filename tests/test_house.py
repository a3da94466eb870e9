"""The walls of the house: which room may import which, and why. Read from the source with `ast`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "mini_engine"
MAX_LINES = 500
ROOMS = {"engine", "dispatch", "model", "step", "validate", "serving", "plots", "cli"}
ROOMS |= {"checkpoints", "sim", "cuda", "bench", "endpoint", "fleet"}
TORCH = ("torch", "triton", "transformers")


@dataclass(frozen=True)
class Wall:
    """What stands around a room: which other rooms it may import, and whether torch."""

    room: str  # a module's name, or the beginning of it: the longest that fits counts
    doors: tuple[str, ...]  # rooms, by the names of their walls
    reason: str
    torch: bool = False


FILES = "mini_engine.files"
GROUND = ("mini_engine.dispatch", "mini_engine.model", FILES)
STEP, VALIDATE = "mini_engine.step", "mini_engine.validate"
FLOORS = (*GROUND, "mini_engine.engine", STEP, VALIDATE)
CUDA, KERNELS = "mini_engine.cuda", "mini_engine.cuda.kernels"
BENCH = "mini_engine.bench"
TIMELINES = ("mini_engine.sim.trace", "mini_engine.sim.recorded")
CUT, CHECKS, MISTAKES = (f"labs.runner.{room}" for room in ("cut", "checks", "mistakes"))
RESULT_FILES = ("rows", "intervals", "bars", "evidence", "stages")
RESULTS = tuple(f"{BENCH}.{file}" for file in RESULT_FILES)
WINGS = ("mini_engine.sim", *TIMELINES, "mini_engine.serving", "mini_engine.plots", CUDA, KERNELS)
SERVER, ENDPOINT, FLEET = (f"mini_engine.{room}" for room in ("server", "endpoint", "fleet"))
FACES = ("mini_engine.cli", "mini_engine", SERVER)
ENGINE_ROOMS = (*FLOORS, *WINGS, BENCH, *RESULTS, ENDPOINT, FLEET, *FACES)

WALLS = (
    Wall("mini_engine.dispatch", (), "which graph runs a batch depends on its shape alone"),
    Wall("mini_engine.model", (FILES,), "what a model is depends on its files alone"),
    Wall(FILES, (), "how a file is read and written depends on no room"),
    Wall(
        "mini_engine.engine",
        ("mini_engine.dispatch", "mini_engine.model"),
        "who runs next is decided without knowing how long it takes or on what",
    ),
    Wall(STEP, GROUND, "a prediction needs figures and shapes, and no engine"),
    Wall(VALIDATE, (*GROUND, STEP), "what others measured is held against predictions alone"),
    Wall("mini_engine.serving", FLOORS, "a simulated server runs on the step model alone"),
    Wall("mini_engine.plots", (*FLOORS, *TIMELINES, *RESULTS), "a figure is a function of data"),
    Wall("mini_engine.sim", (*FLOORS, *TIMELINES), "the simulated GPU runs on a laptop, in numpy"),
    *(
        Wall(room, (FILES, *TIMELINES), "a timeline is data, whoever recorded it")
        for room in TIMELINES
    ),
    Wall(CUDA, (*FLOORS, KERNELS), "the engine serves without what measures it", torch=True),
    Wall(KERNELS, (), "a kernel is read, compiled and tested by itself", torch=True),
    Wall(
        BENCH,
        (*FLOORS, CUDA, KERNELS, *TIMELINES, *RESULTS),
        "it measures the engine, and nothing else",
        torch=True,
    ),
    *(
        Wall(room, (*GROUND, *RESULTS), "results are read where there is no torch")
        for room in RESULTS
    ),
    Wall(
        ENDPOINT,
        (*FLOORS, *WINGS[:1], "mini_engine.serving", CUDA, SERVER),
        "clients are served by an engine, or by a prediction of one; it imports no torch itself",
    ),
    Wall(
        FLEET,
        (*FLOORS, "mini_engine.serving", SERVER),
        "a fleet is many simulated servers, and no client's endpoint",
    ),
    Wall("mini_engine.cli", ENGINE_ROOMS, "the face shows the engine, and no lab", torch=True),
    Wall("mini_engine.__main__", ("mini_engine.cli",), "it only opens the face"),
    Wall(SERVER, (*FLOORS, "mini_engine.serving"), "the face in Python predicts, and runs nothing"),
    Wall("mini_engine", (SERVER,), "on the ground floor there are rooms, and no code"),
    Wall(CUT, (), "what a lab is depends on its files alone"),
    Wall(CHECKS, (CUT,), "a check is told the texts, and asks no learner for files", torch=True),
    Wall(MISTAKES, (CUT, CHECKS), "a mistake is known by what a check says of it"),
    Wall(
        "labs",
        (*ENGINE_ROOMS, CUT, CHECKS, MISTAKES, "tests.support"),
        "labs cut the engine",
        torch=True,
    ),
    Wall("tests.support", (), "the tests' helpers"),
    *(Wall(room, (), "outside") for room in ("tests", "course", "notebooks")),
)


@cache
def wall_of(module: str) -> Wall | None:
    """The wall that stands around a module; None for a module of somebody else."""
    around = [wall for wall in WALLS if inside(module, wall.room)]
    return max(around, key=lambda wall: len(wall.room), default=None)


def inside(module: str, *rooms: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(source: str, module: str, *, package: bool = False) -> set[str]:
    """Every module that a source imports, wherever in the file, by its full name."""
    parts = module.split(".") if package else module.split(".")[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, [base, node.module]))
            # in `from mini_engine import bench` the room is what is imported
            names |= {f"{origin}.{alias.name}" for alias in node.names}
    return names


def breaches(source: str, module: str, *, package: bool = False) -> list[str]:
    """What a module imports and its wall forbids, in words."""
    wall, found = wall_of(module), []
    assert wall
    for name in sorted(imports_of(source, module, package=package)):
        other = wall_of(name)
        closed = other and other.room not in (wall.room, *wall.doors)
        if closed or (inside(name, *TORCH) and not wall.torch):
            found.append(f"{module} must not import {name}: {wall.reason}")
    return found


def sources() -> list[Path]:
    found = [*ENGINE.rglob("*.py")]
    found += [p for p in (ROOT / "labs").rglob("*.py") if "/mine/" not in p.as_posix()]
    assert len(found) > 200
    return sorted(found)


def test_no_room_imports_what_it_must_not() -> None:
    for path in sources():
        package = path.name == "__init__.py"
        assert not breaches(path.read_text(), module_of(path), package=package)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mini_engine.sim.trace", "def late():\n    import numpy, torch"),
        ("mini_engine.engine.engine", "from ..sim import device"),
        ("mini_engine.cuda.kernels.norm", "from mini_engine.cuda.model import Model"),
        ("mini_engine", "from mini_engine.engine.engine import Engine"),
        ("labs.runner.cli", "from course import draw"),
    ],
)
def test_a_wall_that_is_broken_is_noticed(module: str, source: str) -> None:
    (breach, *_) = breaches(source, module)
    wall = wall_of(module)
    assert wall
    assert wall.reason in breach


def test_a_file_reads_in_one_sitting() -> None:
    of_the_engine = [p for p in sources() if not re.search(r"/lab\d\db?_", p.as_posix())]
    lines = {str(p): len(p.read_text().splitlines()) for p in of_the_engine}
    assert {path for path, many in lines.items() if many > MAX_LINES} == set()


def rooms_and_files(folder: Path) -> tuple[set[str], set[str]]:
    seen = [p for p in folder.iterdir() if p.name not in ("__pycache__", "mine")]
    return {p.name for p in seen if p.is_dir()}, {p.name for p in seen if p.is_file()}


def test_the_ground_floors_hold_rooms_and_no_loose_files() -> None:
    rooms, files = rooms_and_files(ENGINE)
    assert rooms == ROOMS
    assert files == {"__init__.py", "__main__.py", "README.md", "files.py", "py.typed", "server.py"}
    rooms, files = rooms_and_files(ENGINE / "cuda")
    assert rooms == {"graphs", "kernels"}
    assert rooms_and_files(ROOT / "labs" / "runner")[0] == {"cut", "checks", "mistakes"}
    rooms, files = rooms_and_files(ROOT / "labs")
    assert {room for room in rooms if not re.match(r"lab\d\db?_", room)} == {
        "runner",
        "measuring",
        "support",
    }
    assert files == {"__init__.py", "__main__.py", "README.md", "conftest.py"}


def test_every_test_lives_in_the_room_of_what_it_tests() -> None:
    rooms, files = rooms_and_files(ROOT / "tests")
    assert files == {"__init__.py", "conftest.py", "test_house.py", "test_files.py"}
    engine, _ = rooms_and_files(ENGINE)
    assert rooms <= engine | {"labs", "course", "support"}
    for room, of in (("cuda", ENGINE / "cuda"), ("labs", ROOT / "labs"),
                     ("labs/runner", ROOT / "labs" / "runner")):  # fmt: skip
        assert rooms_and_files(ROOT / "tests" / room)[0] <= rooms_and_files(of)[0] | {"answers"}


def test_the_demo_runs_without_torch() -> None:
    program = (
        "import sys; import mini_engine.cli as cli\n"
        "for name in cli.COMMANDS: cli.load(name)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "print('without torch')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "without torch", done.stderr


def test_the_tests_that_take_longest_begin_and_are_called_what_they_were_called() -> None:
    from tests.support.distribution import LONGEST, place_of

    for place, way in enumerate(LONGEST):
        file, _, name = way.partition("::")
        assert f"\ndef {name or 'test_'}" in (ROOT / file).read_text(), way
        assert place_of(f"{way}_and_more[1]") == place < place_of("tests/test_house.py::test_a")


def test_who_serves_clients_and_plans_fleets_does_so_in_few_lines() -> None:
    files = [path for room in ("endpoint", "fleet") for path in (ENGINE / room).glob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 1100
