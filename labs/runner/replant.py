"""Puts one changed place into a text and leaves all else as it was written.

In:  somebody's Python, and the same with one mistake, in which a whole function was written anew
     (`ast.unparse`: other line breaks, other quotes, no comments).
Out: the first text with the one statement or expression of the second that differs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def as_written(mine: str, changed: str) -> str:
    """`changed` itself, where the two differ in more than one place, or cannot be joined."""
    wanted = _meaning(ast.parse(changed))
    for old, new in _pairs(ast.parse(mine), ast.parse(changed)):
        if isinstance(old, ast.expr | ast.stmt):
            written = ast.unparse(new)
            for words in (written, f"({written})"):
                text = _replaced(mine, old, words)
                if _means(text, wanted):
                    return text
    return changed


def _pairs(old: ast.AST, new: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The nodes that differ, the smallest first."""
    if type(old) is type(new):
        olds, news = list(_children(old)), list(_children(new))
        if len(olds) == len(news):
            differ = [
                pair
                for pair in zip(olds, news, strict=True)
                if _meaning(pair[0]) != _meaning(pair[1])
            ]
            if len(differ) == 1:
                yield from _pairs(*differ[0])
    yield old, new


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not _is_words(child):
            yield child


def _is_words(node: ast.AST) -> bool:
    """A docstring, which is indented anew where a function is written anew."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _meaning(tree: ast.AST) -> str:
    """The tree without its docstrings, as text."""
    words = [node.value for node in ast.walk(tree) if _is_words(node)]  # type: ignore[attr-defined]
    said = [constant.value for constant in words]
    for constant in words:
        constant.value = ""
    found = ast.dump(tree)
    for constant, value in zip(words, said, strict=True):
        constant.value = value
    return found


def _means(text: str, wanted: str) -> bool:
    try:
        return _meaning(ast.parse(text)) == wanted
    except SyntaxError:
        return False


def _replaced(text: str, node: ast.expr | ast.stmt, words: str) -> str:
    """The text with `words` in the place of the node; columns of a tree count bytes."""
    if node.end_lineno is None or node.end_col_offset is None:
        return text
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    indented = words.replace("\n", "\n" + " " * node.col_offset)
    return (before + indented.encode() + after).decode()
