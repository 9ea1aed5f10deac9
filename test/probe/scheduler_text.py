"""Texts of a `scheduler.py`: an engine's own, and with another loop or more members."""

import ast
from importlib.util import find_spec
from pathlib import Path

from sglang_mamba_boundary import edits, loop, members

FILE = "srt/managers/scheduler.py"


def installed() -> str:
    package = Path(find_spec("sglang").submodule_search_locations[0])
    return (package / FILE).read_text()


def loop_of(text: str) -> str:
    """`event_loop_overlap` with decorators and indentation, as it stands in `text`."""
    first, last = _lines(text)
    return "".join(text.splitlines(True)[first - 1 : last])


def with_loop(text: str, replacement: str) -> str:
    """`text` with `replacement`, the loop and maybe more members, for its loop."""
    first, last = _lines(text)
    lines = text.splitlines(True)
    return "".join(lines[: first - 1]) + replacement + "".join(lines[last:])


def as_members(source: str) -> str:
    """Unindented definitions as they stand in a class."""
    lines = source.splitlines(True)
    return "\n" + "".join("    " + line if line.strip() else line for line in lines)


def with_fix(text: str, woven: edits.WovenText, release) -> str:
    """`text` with the woven loop and the fix's members for `release`."""
    return with_loop(text, woven.source + as_members(members.member_source(release)))


def _lines(text: str) -> tuple[int, int]:
    scheduler = _named(ast.parse(text), "Scheduler")
    function = _named(scheduler, loop.LOOP)
    return (
        min(node.lineno for node in (function, *function.decorator_list)),
        function.end_lineno,
    )


def _named(tree, name):
    return next(node for node in tree.body if getattr(node, "name", None) == name)
