"""Small mistakes in a function: text in, texts out.

In:  the text of a file and the name of one of its functions. Out: a `Mutant` for each small change
that somebody could have written by mistake: a comparison or an operator turned, a constant off by
one, a condition or a statement dropped, two arguments swapped, `max` for `min`, a keyword or an end
of a slice left out. Messages of errors, strings and annotations stay as they are.

A mutant that a lab's tests do not notice shows what they let pass.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from labs.runner.cut.cutter import functions, lines_of

# fmt: off
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}
PAIRS = [("min", "max"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil"),
         ("argmin", "argmax"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("amin", "amax")]
# fmt: on
OTHER_NAMES = dict(PAIRS) | {right: left for left, right in PAIRS}
SYMMETRIC = {"min", "max", "minimum", "maximum", "lcm", "gcd", "allclose", "array_equal", "equal"}
HEADED = (ast.If, ast.For, ast.While, ast.With)  # statements with others below them


@dataclass(frozen=True)
class Mutant:
    """One mistake. `change` is the statement before and after; it names the mutant."""

    function: str
    change: str
    text: str  # of the whole file


@cache
def mutants(source: str, name: str) -> tuple[Mutant, ...]:
    """Every small mistake in the body of this function, in the order of its lines.

    Raises KeyError if the file has no such function.
    """
    function, lines = functions(source)[name], source.splitlines()
    found, seen = [], Counter[str]()
    for change, mutated, before, after in _changes(function):
        seen[change] += 1
        nth = f" (number {seen[change]})" if seen[change] > 1 else ""
        place = _in_place(lines, function, before, after, _program(ast.unparse(mutated)))
        text = place or _rewritten(lines, function, mutated)
        found.append(Mutant(name, change + nth, text))
    return tuple(found)


# ---------------------------------------------------------------- parts


def _rewritten(lines: list[str], old: ast.FunctionDef, new: ast.FunctionDef) -> str:
    """The file with one function written anew: its comments are lost."""
    first = (old.end_lineno or old.lineno) - len(lines_of(old, lines))
    text = textwrap.indent(ast.unparse(new), " " * old.col_offset).splitlines()
    return "\n".join([*lines[:first], *text, *lines[old.end_lineno :]]) + "\n"


def _in_place(
    lines: list[str], function: ast.FunctionDef, before: ast.stmt, after: ast.AST, wanted: str
) -> str | None:
    """The file with one statement changed where it stands, if the function is then as wanted."""
    first, last = before.lineno, before.end_lineno or before.lineno
    headed = isinstance(before, HEADED) and isinstance(after, type(before))
    if headed:
        last = before.body[0].lineno - 1  # type: ignore[attr-defined]
    new = " " * before.col_offset + _headline(after)
    if headed and lines[first - 1].lstrip().startswith("elif "):
        new = new.replace("if ", "elif ", 1)
    end = function.end_lineno or 0
    begin = end - len(lines_of(function, lines))
    changed = [*lines[begin : first - 1], new, *lines[last:end]]
    try:
        same = _program(textwrap.dedent("\n".join(changed))) == wanted
    except SyntaxError:
        return None
    return "\n".join([*lines[:begin], *changed, *lines[end:]]) + "\n" if same else None


def _program(text: str) -> str:
    """What a file does, wherever the lines of its docstrings begin: `ast.unparse` moves them."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _is_text(node.body[0]):
            node.body[0] = ast.Expr(ast.Constant(ast.get_docstring(node)))
    return ast.dump(tree)


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef, ast.stmt, ast.AST]]:
    """Each change: its name, the function that has it, and the statement before and after."""
    nodes = list(ast.walk(function))
    order = {id(node): place for place, node in enumerate(nodes)}
    parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
    body = function.body[1:] if _is_text(function.body[0]) else function.body
    for node in [found for statement in body for found in _walk(statement)]:
        for variant in range(len(_variants(node, parents[id(node)]))):
            mutated = copy.deepcopy(function)
            twins = list(ast.walk(mutated))
            twin, parent = twins[order[id(node)]], twins[order[id(parents[id(node)])]]
            statement = node
            while not isinstance(statement, ast.stmt):
                statement = parents[id(statement)]
            after = twins[order[id(statement)]]
            replacement = _variants(twin, parent)[variant]
            _replace(parent, twin, replacement)
            now = replacement if statement is node else after
            change = f"{_headline(statement)}  =>  {_headline(now)}"
            yield change, ast.fix_missing_locations(mutated), statement, now


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in which a mistake can be made, from the top of the page to its end."""
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "msg", "decorator_list"):
            continue
        for part in child if isinstance(child, list) else [child]:
            if isinstance(part, ast.AST):
                yield from _walk(part)


def _headline(node: ast.AST) -> str:
    """A statement on one line, without what stands below it."""
    shown = copy.deepcopy(node)
    if isinstance(shown, ast.stmt) and hasattr(shown, "body"):
        shown.body = [ast.Expr(ast.Constant(...))]
        for other in ("orelse", "finalbody", "handlers"):
            if getattr(shown, other, None):
                setattr(shown, other, [])
        if isinstance(shown, ast.Try):
            shown.finalbody = shown.body
    lines = ast.unparse(ast.fix_missing_locations(shown)).splitlines()
    if hasattr(shown, "body") and isinstance(shown, ast.stmt):
        lines = [line for line in lines if line.strip() != "..."]
    return " ".join(line.strip() for line in lines)


def _replace(parent: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for name, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, name, new)
        elif isinstance(value, list):
            value[:] = [new if part is old else part for part in value]


def _variants(node: ast.AST, parent: ast.AST) -> list[ast.AST]:
    """What could stand in the place of a node by mistake."""
    if isinstance(node, ast.stmt):
        return _statements(node)
    if isinstance(node, ast.Compare):
        return [_with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])
                for i, op in enumerate(node.ops) for other in COMPARISONS[type(op)]]  # fmt: skip
    if isinstance(node, ast.BinOp):
        other = OPERATORS.get(type(node.op))
        return [_with(node, op=other())] if other and not _is_text(node.left) else []
    if isinstance(node, ast.BoolOp):
        turned = _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        return [turned, *_one_less(node)]
    if isinstance(node, ast.UnaryOp):
        return [] if isinstance(node.op, ast.Invert) else [node.operand]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Constant):
        return [ast.Constant(value) for value in _constants(node.value)]
    if isinstance(node, ast.comprehension):
        return [_with(node, ifs=[]) for _ in node.ifs[:1]]
    if isinstance(node, ast.Slice):
        ends = [_with(node, lower=None)] if node.lower else []
        ends += [_with(node, upper=None)] if node.upper else []
        return [*ends, *([_with(node, step=None)] if node.step else [])]
    if isinstance(node, ast.Name | ast.Attribute):
        return _other_name(node, parent)
    return _calls(node) if isinstance(node, ast.Call) else []


def _statements(node: ast.stmt) -> list[ast.AST]:
    """A statement left out, where what is left can still run."""
    kept: list[ast.AST] = [ast.Pass()]
    if isinstance(node, ast.If):
        return [*kept, _with(node, test=ast.Constant(True))]
    if isinstance(node, ast.Expr):
        return [] if isinstance(node.value, ast.Constant) else kept
    if isinstance(node, ast.AugAssign):
        other = OPERATORS.get(type(node.op))
        return [*kept, *([_with(node, op=other())] if other else [])]
    if isinstance(node, ast.Assign):
        stored = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        return kept if stored else []
    if isinstance(node, ast.Return):
        return kept if node.value is None else []
    if isinstance(node, ast.With):
        named = any(item.optional_vars for item in node.items)
        return [] if named else [ast.If(ast.Constant(True), node.body, [])]
    if isinstance(node, ast.Break):
        return [ast.Continue()]
    return [ast.Pass()] if isinstance(node, ast.Continue | ast.Assert | ast.Delete) else []


def _calls(node: ast.Call) -> list[ast.AST]:
    """Two neighbouring arguments swapped, or a keyword left out."""
    found: list[ast.AST] = []
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    args = node.args
    for i in range(len(args) - 1):
        same = ast.dump(args[i]) == ast.dump(args[i + 1])
        if not same and name not in SYMMETRIC and not isinstance(args[i + 1], ast.Starred):
            found.append(_with(node, args=[*args[:i], args[i + 1], args[i], *args[i + 2 :]]))
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            found.append(_with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]]))
    return found


def _other_name(node: ast.Name | ast.Attribute, parent: ast.AST) -> list[ast.AST]:
    """`max` for `min`, where it is called or handed on."""
    if isinstance(node, ast.Name):
        other = OTHER_NAMES.get(node.id)
        called = isinstance(parent, ast.Call) and parent.func is node
        return [ast.Name(other, ast.Load())] if other and called else []
    other = OTHER_NAMES.get(node.attr)
    return [_with(node, attr=other)] if other and isinstance(parent, ast.Call) else []


def _constants(value: object) -> list[bool | int | float]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, *([0] if value == 1 else [])]
    if isinstance(value, float):
        return [value * 2 if value else 1.0]
    return []


def _one_less(node: ast.BoolOp) -> list[ast.AST]:
    """The same without one of its conditions."""
    if len(node.values) == 2:
        return [*node.values]
    rest = [[v for v in node.values if v is not left] for left in node.values]
    return [_with(node, values=values) for values in rest]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node, one level deep, with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant | ast.JoinedStr) and isinstance(
        getattr(value, "value", ""), str
    )
