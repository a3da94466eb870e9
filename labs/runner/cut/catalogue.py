"""What a lab is: reads and checks its `lab.toml`.

In: a folder `labs/labNN_name`, NN for the chapter that it belongs to, with a letter where it is not
the first of that chapter. Out: a `Lab` with its holes, hints and misconceptions.

    title = "Capture and replay"
    builds = "capture, replay, static buffers, the shape key"
    chapter = "course/05-capture-and-replay.md"
    notebook = "notebooks/01-eager-against-graph.ipynb"   # optional
    needs = "cpu"                     # cpu | gpu: a gpu lab is still solved in emulation
    without = "emulator"              # what stands in for a GPU: interpreter, emulator, logs
    minutes = 60
    rest = { hole = 3, minutes = 35, have = "…" }   # optional: where one may stop, and with what
    after = ["4"]                     # labs that come before it
    limit_s = 60                      # wall time for all its tests; then they are stopped
    test_s = 8                        # CPU time of one test; more is taken for an endless loop
    memory_gb = 4
    packages = ["torch", "triton"]    # besides the core's
    compiles = true                   # optional: its tests call torch.compile
    environment = { TRITON_INTERPRET = "1" }
    source = ["mini_engine/sim/graphs.py"]
    proves = "One sentence: what passing shows."
    [[hole]]
    name = "GraphRunner.run_at"       # with several sources, `source` says in which
    writes = ["run_at", "_record"]    # where `name` is a class: the methods to be written
    calls = ["run"]                   # by which tests reach it, if not by its name
    removes = ["StaticInputs.stage"]  # what only this hole uses and the learner is not shown
    task = "Pad to the rung, copy the batch in, replay, slice."
    hints = ["a question", "a pointer", "nearly the code"]
    [[misconception]]
    id = "rebind-input"               # as in --impl wrong/rebind-input and @pytest.mark.catches
    says = "A graph reads addresses. …"
    read = "course/05-capture-and-replay.md#static-buffers"
    [[misconception.edit]]            # of the engine's file: who believes it writes this (edits.py)
    in = "GraphRunner.run_at"
    old = "buffer.copy_(rows)"
    new = "buffer = rows"

A hole with `mend = "runner_a.py"` in the place of `name` is not cut: that source is given with a
fault, and the learner mends it. `[[hole.edit]]` are the edits that mend it, `real` says at green
which engine had the fault.

`tests/labs/answers/labNN_name.toml` has another right answer: for each file the bodies of functions
by their names and, as `also`, what stands beside them.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from labs.runner.cut.cutter import CutError, changed, cut, fill, functions, splice, without
from labs.runner.cut.edits import Edit, edits

LABS = Path(__file__).parent.parent.parent
ROOT = LABS.parent
PATH = ("0", "4", "5", "6", "7", "8", "15b")  # the short path; the others are branches of it
NO_WORDS = "as the docstring and the tests want it."
ANSWERS = ROOT / "tests" / "labs" / "answers"


@dataclass(frozen=True)
class Hole:
    """One thing to write. `number` counts from 1 in the order of lab.toml."""

    number: int
    name: str
    task: str
    hints: tuple[str, ...]
    file: str  # the learner's file, without its folder: "graphs.py"
    broken: bool = False  # the file is given with a fault: the learner mends instead of writing
    writes: tuple[str, ...] = ()  # full names of the functions to be written
    removes: tuple[str, ...] = ()  # functions that are taken out of the learner's file
    calls: tuple[str, ...] = ()  # names by which tests reach it, if not by its own
    mends: tuple[Edit, ...] = ()  # of a broken file: what makes it right
    real: str = ""  # of a broken file: the engine that had this fault, and what it did; for green

    @property
    def todo(self) -> tuple[int, str]:
        return self.number, self.task


@dataclass(frozen=True)
class Misconception:
    """A belief that a wrong answer holds and that a test refutes."""

    id: str
    says: str
    read: str
    edits: tuple[Edit, ...]  # what makes that wrong answer of the engine's files


@dataclass(frozen=True)
class Rest:
    """A place to stop for the day: all holes up to `hole` are done, after about `minutes`."""

    hole: int
    minutes: int
    have: str  # what the learner has by then, in a sentence


@dataclass(frozen=True)
class Lab:
    """One lab, as its folder describes it."""

    number: str  # of its chapter, "6"; of the second lab of that chapter "6b"
    folder: Path
    title: str
    chapter: str
    needs: str
    minutes: int
    proves: str
    sources: dict[str, str]  # the learner's file name -> path of the engine's file
    holes: tuple[Hole, ...]
    misconceptions: tuple[Misconception, ...]
    rest: Rest | None = None
    section: str = ""  # of the chapter, where that is enough to read
    builds: str = ""  # in a few words, for the map of the labs
    notebook: str = ""
    without: str = ""
    limit_s: float = 60
    test_s: float = 8
    memory_gb: float = 4
    packages: tuple[str, ...] = ()
    compiles: bool = False
    after: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def test_file(self) -> Path:
        return self.folder / "test_lab.py"

    def misconception(self, id: str) -> Misconception:
        return next(m for m in self.misconceptions if m.id == id)

    def module(self, file: str) -> str:
        """The module that the learner's file stands for: `mini_engine.sim.graphs`."""
        return self.sources[file].removesuffix(".py").replace("/", ".")

    @property
    def sittings(self) -> str:
        """`60`, or `35+25` where one may rest."""
        first = self.rest.minutes if self.rest else 0
        return f"{first}+{self.minutes - first}" if first else str(self.minutes)

    @property
    def of_the_engine(self) -> bool:
        """Does the learner's code stand for modules of the engine, and not only the lab's own?"""
        return any(path.startswith("mini_engine/") for path in self.sources.values())

    def without_words(self) -> Lab:
        """The same lab for those who want it hard: its TODOs do not say what to do."""
        return replace(self, holes=tuple(replace(hole, task=NO_WORDS) for hole in self.holes))

    # -- texts of the files, by implementation ---------------------------------------------------

    def reference(self) -> dict[str, str]:
        """The learner's file name -> the engine's own text, with what is to be mended mended."""
        texts = self._sources()
        for hole in self.holes:
            texts = self._edited(texts, hole.mends, f"hole {hole.number}")
        return texts

    def cut(self, holes: tuple[Hole, ...] | None = None) -> dict[str, str]:
        """The same with holes: all of them, or those given."""
        texts, given = self.reference(), self._sources()
        for hole in self.holes if holes is None else holes:
            try:
                if hole.broken:
                    texts[hole.file] = given[hole.file]
                else:
                    text = without(texts[hole.file], hole.removes)
                    texts[hole.file] = cut(text, dict.fromkeys(hole.writes, hole.todo))
            except CutError as error:
                raise CutError(f"{self.name}/lab.toml: hole {hole.number}: {error}") from error
        return texts

    def definitions(self) -> list[tuple[Hole, list[str]]]:
        """Each hole with the functions to be written, or those that its mend changes."""
        given, reference = self._sources(), self.reference()
        return [
            (hole, list(functions(changed(given[hole.file], reference[hole.file]))))
            if hole.broken
            else (hole, list(hole.writes))
            for hole in self.holes
        ]

    def covered(self) -> list[tuple[Hole, list[str]]]:
        """As `definitions`, with the functions that the cut takes out: all that a hole tests."""
        return [(hole, [*names, *hole.removes]) for hole, names in self.definitions()]

    def to_mend(self) -> dict[str, str]:
        """The files that the learner is given broken: file name -> text."""
        given = self._sources()
        return {hole.file: given[hole.file] for hole in self.holes if hole.broken}

    def wrong(self, id: str) -> dict[str, str]:
        """The reference with the edits of a misconception."""
        return self._edited(self.reference(), self.misconception(id).edits, f"misconception {id}")

    def _edited(self, texts: dict[str, str], edits: Iterable[Edit], whose: str) -> dict[str, str]:
        """Raises CutError, with lab, hole or misconception, and text, for an edit that does not
        fit."""
        try:
            for edit in edits:
                texts = edit.applied(texts)
        except CutError as error:
            raise CutError(f"{self.name}/lab.toml: {whose}: {error}") from error
        return texts

    def _sources(self) -> dict[str, str]:
        return {
            file: (ROOT / path).read_text(encoding="utf-8") for file, path in self.sources.items()
        }

    def texts(self, implementation: str) -> dict[str, str]:
        """`reference`, `hole/2`, `wrong/rebind-input`, `second`: file name -> text."""
        kind, _, which = implementation.partition("/")
        if kind == "reference":
            return self.reference()
        if kind == "hole" and which.isdigit() and 1 <= int(which) <= len(self.holes):
            return self.cut((self.holes[int(which) - 1],))
        beliefs = [m.id for m in self.misconceptions]
        if kind == "wrong" and which.replace("_", "-") in beliefs:
            return self.wrong(which.replace("_", "-"))
        if kind == "second":  # into the cut files: it has nothing of the engine's own way
            texts = self.cut()
            answer = tomllib.loads((ANSWERS / f"{self.name}.toml").read_text(encoding="utf-8"))
            for file, written in answer.items():
                also = written.pop("also", "")
                bodies = {name: body.splitlines() for name, body in written.items()}
                texts[file] = splice(fill(texts[file], bodies), also)
            return texts
        known = ["mine", "reference", *(f"wrong/{id}" for id in beliefs)]
        raise ValueError(f"lab {self.number} has no {implementation!r}: {', '.join(known)}")


@cache
def all_labs() -> tuple[Lab, ...]:
    """Every lab in the order of study, which is the order of the folders."""
    return tuple(read_lab(path.parent) for path in sorted(LABS.glob("lab[0-9][0-9]*_*/lab.toml")))


def lab_number(number: str) -> Lab:
    """The lab with this number. Raises ValueError if there is none."""
    labs = {lab.number: lab for lab in all_labs()}
    if number not in labs:
        raise ValueError(f"there is no lab {number}, only {', '.join(labs)}")
    return labs[number]


def keys_beside(lab: Lab) -> dict[str, str]:
    """Files that the learner's import and that are what other labs write: path -> their lab."""
    trees = [ast.parse(text) for text in lab.cut().values()]
    imported = {
        node.module for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    return {
        path: other.number
        for other in all_labs() if other.number != lab.number
        for file, path in other.sources.items()
        if other.module(file) in imported and path not in lab.sources.values()
    }  # fmt: skip


def read_lab(folder: Path) -> Lab:
    """Read `lab.toml`. A missing, misspelt or misplaced field raises ValueError that names it."""
    place = f"{folder.name}/lab.toml"
    try:
        data = tomllib.loads((folder / "lab.toml").read_text(encoding="utf-8"))
        return _lab(folder, data)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{place}: {error}") from error
    except KeyError as error:
        raise ValueError(f"{place}: field {error} is missing") from error
    except (TypeError, CutError) as error:
        raise ValueError(f"{place}: {error}") from error


def _lab(folder: Path, data: dict[str, Any]) -> Lab:
    sources, holes = data.pop("source"), data.pop("hole")
    sources = [sources] if isinstance(sources, str) else sources
    files = {Path(path).name: path for path in sources}
    misconceptions = data.pop("misconception")
    return Lab(
        number=re.sub(r"^0+(?=\d)", "", folder.name[3:].partition("_")[0]),
        folder=folder,
        sources=files,
        holes=tuple(_hole(i, hole, files) for i, hole in enumerate(holes, start=1)),
        misconceptions=tuple(
            Misconception(edits=edits(item.pop("edit")), **item) for item in misconceptions
        ),
        rest=Rest(**data.pop("rest")) if "rest" in data else None,
        packages=tuple(data.pop("packages", ())),
        after=tuple(data.pop("after", ())),
        **data,
    )


def _hole(number: int, data: dict[str, Any], files: dict[str, str]) -> Hole:
    unknown = set(data) - {"name", "mend", "task", "hints", "source", "writes", "removes", "calls",
                           "edit", "real"}  # fmt: skip
    if unknown:
        raise CutError(f"hole {data.get('name')}: unknown field {', '.join(sorted(unknown))}")
    broken = "mend" in data
    name = data["mend" if broken else "name"]
    source = name if broken else data.get("source") or next(iter(files.values()))
    file = Path(source).name
    if file not in files:
        raise CutError(f"hole {name}: {source} is not a source of this lab")
    methods = tuple(f"{name}.{method}" for method in data.get("writes", ()))
    return Hole(
        number, name, data["task"], tuple(data["hints"]), file, broken,
        methods or (() if broken else (name,)), tuple(data.get("removes", ())),
        tuple(data.get("calls", ())), edits(data.get("edit", ())), data.get("real", ""),
    )  # fmt: skip
