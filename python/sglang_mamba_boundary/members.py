"""The text of the fix's members for one release, and the members themselves."""

from __future__ import annotations

import ast
import inspect
import linecache

from . import engines, fix


def member_source(release: engines.Release) -> str:
    """The members of `fix.py` as they stand for `release`, unindented, in order.

    Raises ValueError where an edit of `engines.EDITS` does not match exactly once.
    """
    source = _own_source()
    for edit in engines.EDITS:
        if edit.since <= release < edit.until:
            source = _apply(edit, source)
    return source


def members(release: engines.Release) -> dict[str, object]:
    """Name and value of what becomes a member of `Scheduler` in `release`."""
    source = member_source(release)
    if source == _own_source():
        return {name: getattr(fix, name) for name in fix.MEMBERS}
    file = f"<{fix.__name__} for {engines.ENGINE} {engines.dotted(release)}>"
    # Known to linecache, so that a traceback through a variant shows its lines.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    namespace = {"logger": fix.logger, "__name__": fix.__name__}
    exec(compile(source, file, "exec", dont_inherit=True), namespace)
    return {name: namespace[name] for name in fix.MEMBERS if name in namespace}


def _own_source() -> str:
    source = inspect.getsource(fix)
    parts = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef):
            name = statement.name
        elif isinstance(statement, ast.Assign):
            name = statement.targets[0].id
        else:
            continue
        if name in fix.MEMBERS:
            parts.append(ast.get_source_segment(source, statement))
    return "\n\n\n".join(parts) + "\n"


def _apply(edit: engines.Edit, source: str) -> str:
    before, *after_start = source.split(edit.start)
    if len(after_start) != 1 or edit.end not in after_start[0]:
        raise ValueError(f"{edit} does not match the fix exactly once")
    _, end, rest = after_start[0].partition(edit.end)
    return before + edit.after + end + rest
