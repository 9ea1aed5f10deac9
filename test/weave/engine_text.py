"""Methods of the installed engine as text, without importing the engine."""

import ast
from importlib.util import find_spec
from pathlib import Path


def loop_text() -> str:
    """`Scheduler.event_loop_overlap` with decorators and indentation, as in the file."""
    return method_text("srt/managers/scheduler.py", "Scheduler", "event_loop_overlap")


def method_text(file: str, holder: str, method: str) -> str:
    """A method with decorators and indentation, as in that file of the package."""
    package = Path(find_spec("sglang").submodule_search_locations[0])
    text = (package / file).read_text()
    function = _named(_named(ast.parse(text), holder), method)
    first = min(node.lineno for node in (function, *function.decorator_list))
    return "\n".join(text.split("\n")[first - 1 : function.end_lineno]) + "\n"


def _named(tree, name):
    return next(node for node in tree.body if getattr(node, "name", None) == name)
