"""Text in, text out: the source of `event_loop_overlap` with the fix in it.

One guard matches the loop wholly by its syntax tree; only then four insertions
are made, so every byte of the engine's own text stays. Nothing here imports
the engine or knows whether the text comes from a live function or a checkout.
"""

from __future__ import annotations

import ast

from . import edits
from .edits import Edit, Mismatch, WovenText, calls, insert_after, only
from .outcome import Refused

LOOP = "event_loop_overlap"
SELECTION = "get_next_batch_to_run"
POP = "pop_and_process"
FLAG = "published_early"
# Where a policy consumes the result within the selection, it says so here.
NOTED = f"self.{FLAG}"
ACT = "publish_pending_mamba_prefill"

_COMMENT = "# Publish a tracked Mamba prefill before a batch captures its old slots."


def weave_source(source: str, flag: str = FLAG) -> WovenText | Refused:
    """Weave the text of one `event_loop_overlap`, decorators and indentation included.

    `flag` holds whether the pending result was consumed early: FLAG or NOTED.
    """
    try:
        insertions = _match(edits.match_method(source, (LOOP,)), source, flag)
    except Mismatch as mismatch:
        return mismatch.refusal
    return edits.apply(source, insertions)


def carries_act(source: str) -> bool:
    """Whether the loop of this text calls the fix already, woven or from upstream."""
    return edits.method_calls(source, (LOOP,), ACT)


def _match(function: ast.FunctionDef, source: str, flag: str) -> list[Edit]:
    names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    if FLAG in names or calls(function, ACT):
        raise Mismatch("a loop without the fix", "the fix's own names")

    loop = only(
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
        raise Mismatch(
            f"the assignment from self.{SELECTION} on a line of its own, ended by \\n",
            f"the line {lines[at - 1]!r}",
        )
    while lines[at - 2].lstrip().startswith("#"):
        at -= 1
    act = f"{indent}{_COMMENT}\n{indent}{flag} = self.{ACT}({POP})\n\n"
    return [
        Edit(at, 0, at, 0, act, shown=selection.lineno),
        insert_after(first.test, f" and not {flag}"),
        insert_after(second.test, f" and not {flag}"),
    ]


def _match_closure(function: ast.FunctionDef) -> None:
    closure = only(
        [s for s in function.body if isinstance(s, ast.FunctionDef) and s.name == POP],
        f"one closure {POP}",
    )
    if ast.unparse(closure.args) or len(calls(closure, "popleft")) != 1:
        raise Mismatch(f"a closure {POP}() that pops one result", ast.unparse(closure))


def _match_selection(function: ast.FunctionDef, loop: ast.While) -> ast.Assign:
    only(calls(function, SELECTION), f"one call of self.{SELECTION}")
    selection = only(
        [
            s
            for s in loop.body
            if isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Call)
            and s.value in calls(s, SELECTION)
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
    only(paused, f"one paused-engine `continue` above self.{SELECTION}")
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
        raise Mismatch(
            f"two `if` statements that begin with {POP}(), and no other use of it",
            f"{len(sites)} such statements and {len(uses)} uses",
        )
    sites.sort(key=lambda site: site.lineno)
    launch = only(calls(loop, "run_batch"), "one call of self.run_batch")
    order = [selection.lineno, sites[0].lineno, launch.lineno, sites[1].lineno]
    if order != sorted(order):
        raise Mismatch(
            "selection, first pop, launch, second pop, in this order",
            f"them on lines {', '.join(map(str, order))} of the function",
        )
    return sites


def _match_sites(loop: ast.While, first: ast.If, second: ast.If) -> None:
    """Exactly one of the two runs in a turn, and skipping it skips nothing else."""
    before, after = ast.unparse(first.test), ast.unparse(second.test)
    if not isinstance(first.test, ast.Name) or after != f"not {before}":
        raise Mismatch("pop sites under `x` and `not x`", f"`{before}` and `{after}`")
    if first not in loop.body:
        raise Mismatch("the first pop site directly in the loop", "it nested")
    holders = [s for s in loop.body if isinstance(s, ast.If) and s.body == [second]]
    if not holders or ast.unparse(holders[0].test) != "self.last_batch":
        raise Mismatch(
            "the second pop site alone under `if self.last_batch`", "it elsewhere"
        )
    for site in (first, second):
        skipped = [*site.body[1:], *site.orelse]
        if not all(map(_is_opportunistic_flush, skipped)):
            raise Mismatch(
                f"nothing but {POP}() and the opportunistic flush at a pop site",
                f"`{ast.unparse(site)}`",
            )


def _is_opportunistic_flush(statement: ast.stmt) -> bool:
    called = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
    return (
        isinstance(statement, ast.If)
        and ast.unparse(statement.test).endswith(".enable_unified_memory")
        and called == calls(statement, "flush_opportunistic")
    )
