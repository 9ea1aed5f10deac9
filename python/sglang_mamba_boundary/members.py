"""The text of the fix's members for one release, and the members themselves."""

from __future__ import annotations

import ast
import inspect
import linecache

from . import engines, fix


def member_source(release: engines.Release, names=fix.MEMBERS) -> str:
    """The members of `fix.py` of these names as they stand for `release`, unindented.

    Raises ValueError where an edit of `engines.EDITS` does not match exactly once.
    """
    source = inspect.getsource(fix)
    for edit in engines.EDITS:
        if edit.since <= release < edit.until:
            source = _apply(edit, source)
    parts = [
        ast.get_source_segment(source, statement)
        for statement in ast.parse(source).body
        if _name(statement) in names
    ]
    return "\n\n\n".join(parts) + "\n"


def members(release: engines.Release, names=fix.MEMBERS) -> dict[str, object]:
    """Name and value of what becomes a member of the class in `release`."""
    source = member_source(release, names)
    if source == member_source(engines.NEWEST, names):
        return {name: getattr(fix, name) for name in names}
    file = f"<{names[-1]} for {engines.ENGINE} {engines.dotted(release)}>"
    # Known to linecache, so that a traceback through a variant shows its lines.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"logger": fix.logger, "__name__": fix.__name__}
    exec(compile(source, file, "exec", dont_inherit=True), namespace)
    return {name: namespace[name] for name in names if name in namespace}


def _name(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.FunctionDef):
        return statement.name
    if isinstance(statement, ast.Assign):
        return statement.targets[0].id
    return None


def _apply(edit: engines.Edit, source: str) -> str:
    before, *after_start = source.split(edit.start)
    if len(after_start) != 1 or edit.end not in after_start[0]:
        raise ValueError(f"{edit} does not match the fix exactly once")
    _, end, rest = after_start[0].partition(edit.end)
    return before + edit.after + end + rest
