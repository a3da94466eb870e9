"""A page of reference for one module, from its source: nothing is imported, nothing is run.

In:  a Python file. Out: Markdown: what the module says of itself, then its public classes, methods
and functions with their signatures and what their docstrings say.
"""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_page(path: Path, shown: Path) -> str:
    """`shown` is the path as the repository has it."""
    tree = ast.parse(path.read_text())
    dotted = ".".join(shown.with_suffix("").parts).removesuffix(".__init__")
    parts = [
        f"# {dotted}\n",
        f"Source: `{shown.as_posix()}`\n",
        prose(ast.get_docstring(tree) or ""),
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            parts += _class(node)
        elif isinstance(node, Function) and not node.name.startswith("_"):
            parts += _function(node, "##")
    return "\n".join(parts) + "\n"


def prose(docstring: str) -> str:
    """A docstring as Markdown: indented lines are code, the rest is text that means what it says.

    What Markdown would take for markup in running text (`*`, `_`, `<`, `|`, `[`) is escaped, except
    between backticks.
    """
    out, code = [], False
    for line in docstring.splitlines():
        indented = line.startswith("    ") or (code and not line.strip())
        if indented != code:
            out.append("```text" if indented else "```")
            code = indented
        out.append(line[4:] if code else _escaped(line))
    if code:
        out.append("```")
    return "\n".join(out).replace("```text\n", "\n```text\n").replace("\n\n```\n", "\n```\n") + "\n"


def _escaped(line: str) -> str:
    pieces = line.split("`")
    for index in range(0, len(pieces), 2):  # outside backticks
        for sign in "\\*_<>[]|$#":
            pieces[index] = pieces[index].replace(sign, f"\\{sign}")
    return "`".join(pieces)


def _class(node: ast.ClassDef) -> list[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)]
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    body = [f"    {field}" for field in fields] or ["    ..."]
    parts = [
        f"## {_escaped(node.name)}\n",
        _code([head, *body]),
        prose(ast.get_docstring(node) or ""),
    ]
    for item in node.body:
        if isinstance(item, Function) and (
            item.name == "__init__" or not item.name.startswith("_")
        ):
            parts += _function(item, "###", node.name)
    return parts


def _function(node: Function, level: str, owner: str = "") -> list[str]:
    name = f"{owner}.{node.name}" if owner else node.name
    decorators = [f"@{ast.unparse(d)}" for d in node.decorator_list]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"def {node.name}({ast.unparse(node.args)}){returns}: ..."
    if len(signature) > 100:
        rows = textwrap.wrap(ast.unparse(node.args), 92)
        signature = "\n".join(
            [f"def {node.name}(", *(f"    {row}" for row in rows), f"){returns}: ..."]
        )
    return [
        f"{level} {_escaped(name)}\n",
        _code([*decorators, signature]),
        prose(ast.get_docstring(node) or ""),
    ]


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```\n"])
