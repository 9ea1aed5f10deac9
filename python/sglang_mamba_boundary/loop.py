"""Text in, text out: the source of `event_loop_overlap` with the fix in it.

One guard matches the loop wholly by its syntax tree; only then four insertions
are made, so every byte of the engine's own text stays. Nothing here imports
the engine or knows whether the text comes from a live function or a checkout.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from .outcome import Refused

LOOP = "event_loop_overlap"
SELECTION = "get_next_batch_to_run"
POP = "pop_and_process"
FLAG = "published_early"
ACT = "publish_pending_mamba_prefill"

_COMMENT = "# Publish a tracked Mamba prefill before a batch captures its old slots."
_GUARD = f" and not {FLAG}"
_REMEDY = "use a release that this package knows, or report this loop"


@dataclass(frozen=True)
class Insertion:
    """`text` goes in before byte `column` of line `line` (1-based) of the source.

    A traceback through a line of it shows the original's line `shown`.
    """

    line: int
    column: int
    text: str
    shown: int


@dataclass(frozen=True)
class WovenLoop:
    """The woven source, and per line of it the line of the original (1-based)."""

    source: str
    original_line: tuple[int, ...]


class _Mismatch(Exception):
    def __init__(self, sought: str, found: str):
        self.refusal = Refused(f"{sought} in {LOOP}", found, _REMEDY)
        super().__init__(str(self.refusal))


def weave_source(source: str) -> WovenLoop | Refused:
    """Weave the text of one `event_loop_overlap`, decorators and indentation included."""
    try:
        edits = _match(_parse(source), source)
    except _Mismatch as mismatch:
        return mismatch.refusal
    return _insert(source, edits)


def carries_act(source: str) -> bool:
    """Whether the loop of this text calls the fix already, woven or from upstream."""
    try:
        tree = _parse(source)
    except _Mismatch:
        return False
    return bool(_calls(tree, ACT))


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


def _parse(source: str) -> ast.FunctionDef:
    try:
        function = parse_method(source)
    except (SyntaxError, ValueError) as error:
        raise _Mismatch("one function", f"text that is not one: {error}") from None
    if function.name != LOOP:
        raise _Mismatch(f"a function {LOOP}", f"a function {function.name}")
    return function


def _match(function: ast.FunctionDef, source: str) -> list[Insertion]:
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    if FLAG in names or _calls(function, ACT):
        raise _Mismatch("a loop without the fix", "the fix's own names")

    loop = _only(
        [s for s in function.body if isinstance(s, ast.While)], "one `while` loop"
    )
    _match_closure(function)
    selection = _match_selection(function, loop)
    first, second = _match_pops(function, loop, selection)
    _match_sites(loop, first, second)

    lines = source.split("\n")
    at = selection.lineno
    indent = lines[at - 1][: selection.col_offset]
    if indent.strip() or "\r" in source:
        raise _Mismatch(
            f"the assignment from self.{SELECTION} on a line of its own, ended by \\n",
            f"the line {lines[at - 1]!r}",
        )
    while lines[at - 2].lstrip().startswith("#"):
        at -= 1
    act = f"{indent}{_COMMENT}\n{indent}{FLAG} = self.{ACT}({POP})\n\n"
    return [
        Insertion(at, 0, act, selection.lineno),
        *(_after(site.test, _GUARD) for site in (first, second)),
    ]


def _after(node: ast.expr, text: str) -> Insertion:
    return Insertion(node.end_lineno, node.end_col_offset, text, node.end_lineno)


def _match_closure(function: ast.FunctionDef) -> None:
    closure = _only(
        [s for s in function.body if isinstance(s, ast.FunctionDef) and s.name == POP],
        f"one closure {POP}",
    )
    if ast.unparse(closure.args) or len(_calls(closure, "popleft")) != 1:
        raise _Mismatch(f"a closure {POP}() that pops one result", ast.unparse(closure))


def _match_selection(function: ast.FunctionDef, loop: ast.While) -> ast.Assign:
    _only(_calls(function, SELECTION), f"one call of self.{SELECTION}")
    selection = _only(
        [
            s
            for s in loop.body
            if isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Call)
            and s.value in _calls(s, SELECTION)
        ],
        f"one assignment from self.{SELECTION} directly in the loop",
    )
    paused = [
        s
        for s in loop.body[: loop.body.index(selection)]
        if isinstance(s, ast.If)
        and "self._engine_paused" in ast.unparse(s.test)
        and isinstance(s.body[-1], ast.Continue)
    ]
    _only(paused, f"one paused-engine `continue` above self.{SELECTION}")
    return selection


def _match_pops(
    function: ast.FunctionDef, loop: ast.While, selection: ast.Assign
) -> list[ast.If]:
    """The two `if` statements that hold the pop sites, in the order of the text."""
    uses = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == POP]
    sites = [
        s
        for s in ast.walk(loop)
        if isinstance(s, ast.If) and ast.unparse(s.body[0]) == f"{POP}()"
    ]
    if len(uses) != 2 or len(sites) != 2:
        raise _Mismatch(
            f"two `if` statements that begin with {POP}(), and no other use of it",
            f"{len(sites)} such statements and {len(uses)} uses",
        )
    sites.sort(key=lambda site: site.lineno)
    launch = _only(_calls(loop, "run_batch"), "one call of self.run_batch")
    order = [selection.lineno, sites[0].lineno, launch.lineno, sites[1].lineno]
    if order != sorted(order):
        raise _Mismatch(
            "selection, first pop, launch, second pop, in this order",
            f"them on lines {', '.join(map(str, order))} of the function",
        )
    return sites


def _match_sites(loop: ast.While, first: ast.If, second: ast.If) -> None:
    """Exactly one of the two runs in a turn, and skipping it skips nothing else."""
    before, after = ast.unparse(first.test), ast.unparse(second.test)
    if not isinstance(first.test, ast.Name) or after != f"not {before}":
        raise _Mismatch("pop sites under `x` and `not x`", f"`{before}` and `{after}`")
    if first not in loop.body:
        raise _Mismatch("the first pop site directly in the loop", "it nested")
    holders = [s for s in loop.body if isinstance(s, ast.If) and s.body == [second]]
    if not holders or ast.unparse(holders[0].test) != "self.last_batch":
        raise _Mismatch(
            "the second pop site alone under `if self.last_batch`", "it elsewhere"
        )
    for site in (first, second):
        skipped = [*site.body[1:], *site.orelse]
        if not all(map(_is_opportunistic_flush, skipped)):
            raise _Mismatch(
                f"nothing but {POP}() and the opportunistic flush at a pop site",
                f"`{ast.unparse(site)}`",
            )


def _is_opportunistic_flush(statement: ast.stmt) -> bool:
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return (
        isinstance(statement, ast.If)
        and ast.unparse(statement.test).endswith(".enable_unified_memory")
        and calls == _calls(statement, "flush_opportunistic")
    )


def _calls(tree: ast.AST, attribute: str) -> list[ast.Call]:
    return [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == attribute
    ]


def _only(found: list, sought: str):
    if len(found) != 1:
        lines = ", ".join(str(node.lineno) for node in found)
        raise _Mismatch(
            sought, f"{len(found)} (lines {lines} of the function)" if found else "none"
        )
    return found[0]


def _insert(source: str, edits: list[Insertion]) -> WovenLoop:
    lines = [line.encode() for line in source.split("\n")]
    origin = list(range(1, len(lines) + 1))
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        text, at = edit.text.encode(), edit.line - 1
        whole_lines = text.count(b"\n")
        lines[at] = lines[at][: edit.column] + text + lines[at][edit.column :]
        origin[at:at] = [edit.shown] * whole_lines
    return WovenLoop(b"\n".join(lines).decode(), tuple(origin))
