"""The installed engine's own loop as text, without importing the engine."""

import ast
from importlib.util import find_spec
from pathlib import Path


def loop_text() -> str:
    """`Scheduler.event_loop_overlap` with decorators and indentation, as in the file."""
    package = Path(find_spec("sglang").submodule_search_locations[0])
    text = (package / "srt/managers/scheduler.py").read_text()
    scheduler = _named(ast.parse(text), "Scheduler")
    loop = _named(scheduler, "event_loop_overlap")
    first = min(node.lineno for node in (loop, *loop.decorator_list))
    return "\n".join(text.split("\n")[first - 1 : loop.end_lineno]) + "\n"


def _named(tree, name):
    return next(node for node in tree.body if getattr(node, "name", None) == name)
