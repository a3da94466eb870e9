"""Migrate a learner's code from files cut from an older engine into files cut from this one.

    migrate(fresh, old, holes)  file name -> text, before and after: text in, text out
    broken_imports(text)        what a text imports from the engine that is no longer there

Everything is found by name, so no list of renamed files is needed. The bodies of the lab's holes
move over, together with whatever they use that the new files lack: functions, methods, classes,
constants and imports. What finds no place is named in the result; the caller keeps the old files,
so nothing is lost.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from labs.runner.cut.catalogue import ROOT, Hole
from labs.runner.cut.cutter import body_of, fill, functions, is_unwritten, lines_of, splice

OURS = ("mini_engine", "labs")  # packages in which a module may have moved


@dataclass
class Migrated:
    """The new texts, and what became of the old ones."""

    texts: dict[str, str]
    holes: list[str] = field(default_factory=list)  # functions whose body moved over
    helpers: list[str] = field(default_factory=list)  # what these use, moved with them
    remarks: list[str] = field(default_factory=list)  # what the learner should look at
    used: set[str] = field(default_factory=set)  # old files that have a hole of this lab


def migrate(
    fresh: Mapping[str, str], old: Mapping[str, str], holes: Iterable[tuple[Hole, Sequence[str]]]
) -> Migrated:
    """The fresh cut with the code of the old files in it.

    `holes` pairs each hole with the functions that it consists of: one, or several in a file that
    is given broken. If several old files define a function, the first counts.
    """
    done = Migrated(dict(fresh))
    bodies: dict[tuple[str, str], dict[str, list[str]]] = {}  # (new file, old file) -> bodies
    for hole, names in holes:
        for name in names:
            candidates = [hole.file] if hole.broken else old
            origin = next((f for f in candidates if name in functions(old.get(f, ""))), None)
            if origin is None:
                continue
            done.used.add(origin)
            body = body_of(old[origin], name)
            if is_unwritten(old[origin], name) or body == body_of(fresh[hole.file], name):
                continue
            body = [re.sub(r"TODO\(\d+\)", f"TODO({hole.number})", line) for line in body]
            bodies.setdefault((hole.file, origin), {})[name] = body
    for (file, origin), written in bodies.items():
        done.holes += written
        done.remarks += _changed_parameters(old[origin], fresh[file], written)
        text = fill(done.texts[file], written)
        done.texts[file] = splice(text, _additions(old[origin], text, written, done))
    for text in done.texts.values():
        gone = broken_imports(text)
        done.remarks += [f"{name}, which your code imports, no longer exists" for name in gone]
    placed = set().union(*map(_definitions, done.texts.values()))
    for file in old:
        lost = sorted(_definitions(old[file]) - placed)
        if file not in fresh and file not in done.used:
            done.remarks.append(f"{file} has no hole of this lab and stays where it is")
        elif lost:
            done.remarks.append(f"nothing in the new files is called {', '.join(lost)} ({file})")
    return done


def _changed_parameters(old: str, fresh: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        mine, new = (
            [n.arg for n in ast.walk(functions(text)[name].args) if isinstance(n, ast.arg)]
            for text in (old, fresh)
        )
        if mine != new:
            yield f"{name} now takes ({', '.join(new)}); yours took ({', '.join(mine)})"


def _definitions(text: str) -> set[str]:
    """The full names of the functions, methods and classes of a text."""
    classes = {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    return classes | set(functions(text))


# ---------------------------------------------------------------- what the moved code uses


@dataclass(frozen=True)
class Unit:
    """A statement that may move over: of the module, or of a class that `owner` names."""

    owner: str
    node: ast.stmt


def _additions(old: str, text: str, names: Iterable[str], done: Migrated) -> str:
    """A fragment with all that these functions of `old` use, directly or not, and `text` lacks."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    taken: list[Unit] = []
    missing = _missing(old, text, classes)
    looked_at: list[ast.AST] = [functions(old)[name] for name in names]
    for node in looked_at:  # grows on the way
        variables = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        attributes = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        for unit in missing:
            if unit not in taken and bound(unit.node) & (attributes if unit.owner else variables):
                taken.append(unit)
                looked_at.append(unit.node)
    lines, fragment = old.splitlines(), [""]
    for unit in sorted(taken, key=missing.index):  # in the learner's order
        name = ", ".join(sorted(bound(unit.node)))
        node = unit.node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            module = module_of(node.module or "", node.names[0].name)
            if module is None:
                done.remarks.append(f"{name}, which came from {node.module}, no longer exists")
                continue
            node.module = module
        if unit.owner:
            fragment += [f"class {unit.owner}:", *lines_of(node, lines)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            fragment.append(ast.unparse(node))
        else:
            fragment += lines_of(node, lines)
        done.helpers.append(f"{unit.owner}.{name}" if unit.owner else name)
    return "\n".join(fragment) + "\n"


def _missing(old: str, text: str, classes: Mapping[str, ast.ClassDef]) -> list[Unit]:
    """The statements of `old` whose names `text` does not have, imports one name at a time."""
    found = []
    known = set().union(*map(bound, ast.parse(text).body))
    for node in ast.parse(old).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            there = _members(classes[node.name])
            found += [Unit(node.name, member) for member in node.body if not bound(member) & there]
            continue
        parts: list[ast.stmt] = [node]
        if isinstance(node, ast.ImportFrom):
            parts = [ast.ImportFrom(node.module, [alias], node.level) for alias in node.names]
        elif isinstance(node, ast.Import):
            parts = [ast.Import([alias]) for alias in node.names]
        found += [Unit("", part) for part in parts if not bound(part) & known]
    return found


def _members(node: ast.ClassDef) -> set[str]:
    """What a class defines, and the attributes that its methods assign."""
    stored = {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    return stored.union(*map(bound, node.body))


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement defines in the module or class that it stands in."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    names = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return names.union(*map(bound, inner))


# ---------------------------------------------------------------- what the engine has today


def broken_imports(text: str) -> list[str]:
    """What a text imports from the engine or the labs and what is not there, as `module.name`."""
    missing = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            missing += [alias.name for alias in node.names if not exists(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [alias.name for alias in node.names]
            missing += [f"{node.module}.{n}" for n in names if not exists(node.module, n)]
    return missing


def module_of(module: str, name: str) -> str | None:
    """Where `name` of a module stands today: there, or in the one module that defines it now."""
    if exists(module, name):
        return module
    definition = re.compile(rf"^(?:def|class) {name}\b|^{name}\b[^=\n]*=[^=]", re.MULTILINE)
    found = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in sorted((ROOT / "mini_engine").rglob("*.py"))
        if definition.search(path.read_text(encoding="utf-8"))
    ]
    return found[0] if len(found) == 1 else None


def exists(module: str, name: str = "") -> bool:
    """Does a module exist and define this name? A package of somebody else's counts as there."""
    if module.partition(".")[0] not in OURS:
        return True
    place = ROOT / module.replace(".", "/")
    package = (place / "__init__.py").exists()  # a folder of data may bear a module's name
    file = place / "__init__.py" if package else place.with_suffix(".py")
    if not name or not file.exists():
        return file.exists() or (place.is_dir() and exists(f"{module}.{name}"))
    return name == "*" or name in names_in(file) or exists(f"{module}.{name}")


@cache
def names_in(file: Path) -> set[str]:
    """What a file of Python defines or imports at its top level."""
    return set().union(*map(bound, ast.parse(file.read_text(encoding="utf-8")).body))
