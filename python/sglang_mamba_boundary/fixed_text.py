"""The fix written into the text of the engine's files: text in, text out.

The woven methods come from `loop.py` and `penalty.py` and the members from
`members.py`, as for the live weave. Separate from `export.py`, which turns
texts into a patch.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass

from . import engines
from .git import Stopped
from .members import member_source
from .outcome import Refused
from .targets import Target

_REMEDY = "use a release that this package knows"


@dataclass(frozen=True)
class _Place:
    """Where the method stands: `lines[first:end]`, and what else the file defines."""

    lines: list[str]
    first: int
    end: int
    members: set[str]
    names: set[str]

    @property
    def method(self) -> str:
        return "\n".join(self.lines[self.first : self.end]) + "\n"

    def replaced(self, method: str, below: tuple[str, ...] = ()) -> str:
        """The file's text with that method, and `below` directly below it."""
        end = self.end
        # Comments that close the method stay with it.
        while self.lines[end : end + 1] and self.lines[end].lstrip().startswith("#"):
            end += 1
        new = [method.removesuffix("\n"), *self.lines[self.end : end], *below]
        return "\n".join([*self.lines[: self.first], *new, *self.lines[end:]])


def weave_file(text: str, target: Target) -> str:
    """The file's text with the woven method alone. Raises Stopped."""
    place = _locate(text, target)
    return place.replaced(_weave(place, target))


def fix_file(text: str, target: Target, release: engines.Release) -> str | None:
    """The file's text with the fix; None where it has it already. Raises Stopped."""
    place = _locate(text, target)
    if target.carries_act(place.method) and target.members[-1] in place.members:
        return None
    woven = _weave(place, target)
    members = member_source(release, target.members)
    taken = place.members.intersection(target.members)
    if taken:
        raise Stopped(
            f"a class {target.holder} without members of these names",
            ", ".join(sorted(taken)),
            "remove them, or export from a checkout without them",
        )
    if "logger." in members and "logger" not in place.names:
        raise Stopped(
            f"the name logger in {target.file}, which the fix uses",
            "none at its top level",
            _REMEDY,
        )
    # Between methods one empty line stands, where fix.py has two.
    body = members.replace("\n\n\n", "\n\n").removesuffix("\n")
    return place.replaced(woven, ("", textwrap.indent(body, "    ")))


def _weave(place: _Place, target: Target) -> str:
    woven = target.weave_source(place.method)
    if isinstance(woven, Refused):
        raise Stopped(woven.sought, woven.found, woven.remedy)
    return woven.source


def _locate(text: str, target: Target) -> _Place:
    try:
        module = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise Stopped(
            f"{target.file} to parse", str(error), "repair the file"
        ) from None
    classes = [
        s for s in module if isinstance(s, ast.ClassDef) and s.name == target.holder
    ]
    body = classes[0].body if len(classes) == 1 else []
    methods = [s for s in body if isinstance(s, ast.FunctionDef)]
    named = [[m for m in methods if m.name == name] for name in target.methods]
    found = next(filter(None, named), [])
    if len(found) != 1:
        raise Stopped(
            f"one class {target.holder} with one method "
            f"{' or '.join(target.methods)} in {target.file}",
            f"{len(classes)} such classes, and {len(found)} such methods in one",
            _REMEDY,
        )
    first = min(node.lineno for node in (found[0], *found[0].decorator_list))
    return _Place(
        text.split("\n"), first - 1, found[0].end_lineno, _names(body), _names(module)
    )


def _names(body: list[ast.stmt]) -> set[str]:
    functions = {s.name for s in body if isinstance(s, ast.FunctionDef)}
    targets = [t for s in body if isinstance(s, ast.Assign) for t in s.targets]
    return functions | {t.id for t in targets if isinstance(t, ast.Name)}
