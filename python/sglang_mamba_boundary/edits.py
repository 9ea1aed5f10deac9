"""Edits of a text by place, and the reading of one method's text.

What `loop.py` and `penalty.py` share: both match a method by its syntax tree
and then exchange a few byte ranges of it, so every other byte stays.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .outcome import Refused

REMEDY = "use a release that this package knows, or report this text"


@dataclass(frozen=True)
class Edit:
    """`text` in place of what stands from one place up to another.

    Lines are 1-based, columns are bytes, as in a syntax tree. A traceback through
    a line of `text` shows the original's line `shown`.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    shown: int


@dataclass(frozen=True)
class WovenText:
    """The woven source, and per line of it the line of the original (1-based)."""

    source: str
    original_line: tuple[int, ...]


class Mismatch(Exception):
    """The text is not of the shape that is known; `refusal` says where."""

    def __init__(self, sought: str, found: str):
        self.refusal = Refused(sought, found, REMEDY)
        super().__init__(str(self.refusal))


def insert_after(node: ast.expr, text: str) -> Edit:
    end = node.end_lineno, node.end_col_offset
    return Edit(*end, *end, text, shown=node.end_lineno)


def replace(node: ast.expr, text: str) -> Edit:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return Edit(*start, *end, text, shown=node.lineno)


def parse_method(source: str) -> ast.FunctionDef:
    """The tree of one method's text; lines and byte columns are those of the text.

    Raises SyntaxError or ValueError where the text is not exactly one function.
    """
    # An indented method parses only inside a block; the line that opens it is taken off again.
    indented = source[:1] in (" ", "\t")
    body = ast.parse("if True:\n" + source if indented else source).body
    if indented:
        body = body[0].body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        raise ValueError("the text is not exactly one function")
    return ast.increment_lineno(body[0], -1) if indented else body[0]


def match_method(source: str, names: tuple[str, ...]) -> ast.FunctionDef:
    """`parse_method` of a method of one of these names. Raises Mismatch."""
    sought = f"a function {' or '.join(names)}"
    try:
        function = parse_method(source)
    except (SyntaxError, ValueError) as error:
        raise Mismatch(sought, f"text that is no function: {error}") from None
    if function.name not in names:
        raise Mismatch(sought, f"a function {function.name}")
    return function


def calls(tree: ast.AST, attribute: str) -> list[ast.Call]:
    """The calls of `something.attribute(...)` in a tree."""
    return [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == attribute
    ]


def method_calls(source: str, names: tuple[str, ...], attribute: str) -> bool:
    """Whether this text is a method of one of these names, and calls that attribute."""
    try:
        return bool(calls(match_method(source, names), attribute))
    except Mismatch:
        return False


def only(found: list, sought: str):
    """The one node of a list of nodes. Raises Mismatch where there is not one."""
    if len(found) != 1:
        lines = ", ".join(str(node.lineno) for node in found)
        raise Mismatch(
            sought, f"{len(found)} (lines {lines} of the function)" if found else "none"
        )
    return found[0]


def apply(source: str, edits: list[Edit]) -> WovenText:
    lines = [line.encode() for line in source.split("\n")]
    origin = list(range(1, len(lines) + 1))
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        first, last = edit.line - 1, edit.end_line - 1
        new = lines[first][: edit.column] + edit.text.encode()
        new = (new + lines[last][edit.end_column :]).split(b"\n")
        kept = edit.end_line if first == last else edit.shown
        lines[first : last + 1] = new
        origin[first : last + 1] = [edit.shown] * (len(new) - 1) + [kept]
    return WovenText(b"\n".join(lines).decode(), tuple(origin))
