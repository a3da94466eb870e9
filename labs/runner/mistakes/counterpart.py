"""The other side of a fragment: what the source has in its place. Text in, text out."""

from __future__ import annotations

import ast

from labs.runner.cut.cutter import find, lines_of, name_of


def counterpart(source: str, fragment: str) -> str:
    """A fragment with what the source itself has in the places that the given one replaces.

    Definitions that the source lacks are left out. Spliced into a third file, the result undoes
    there what the given fragment does.
    """
    lines, tree = source.splitlines(), ast.parse(source)
    out: list[str] = []
    for node in ast.parse(fragment).body:
        old = find(tree, name_of(node))
        if old is None:
            continue
        if not (isinstance(node, ast.ClassDef) and isinstance(old, ast.ClassDef)):
            out += lines_of(old, lines)
            continue
        members = [found for member in node.body if (found := find(old, name_of(member)))]
        out += [f"class {node.name}:", *(line for m in members for line in lines_of(m, lines))]
        out += [] if members else ["    pass"]
    return "\n".join(out) + "\n"
