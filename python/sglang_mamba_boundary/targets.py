"""The methods of the engine that are woven, for the live weave and the patch alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import engines, fix, loop, penalty, selection
from .edits import WovenText
from .outcome import Refused


@dataclass(frozen=True)
class Target:
    """A method to weave, the first of `methods` that its class has.

    `members` of `fix.py` join the class; the last of them is what the text calls.
    `reached_by` are methods of the class, each with what it must call, without which
    the woven text would never run.
    """

    module: str
    holder: str
    methods: tuple[str, ...]
    members: tuple[str, ...]
    weave_source: Callable[[str], WovenText | Refused]
    carries_act: Callable[[str], bool]
    reached_by: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        """The module's file, relative to the folder that holds the package."""
        return f"{self.module.replace('.', '/')}.py"


LOOP = Target(
    engines.SCHEDULER_MODULE,
    engines.SCHEDULER_CLASS,
    (loop.LOOP,),
    fix.MEMBERS,
    loop.weave_source,
    loop.carries_act,
)
# For the policies that act within the selection; it adds nothing to the class.
SELECTION = Target(
    engines.SCHEDULER_MODULE,
    engines.SCHEDULER_CLASS,
    selection.METHODS,
    (),
    selection.weave_source,
    selection.carries_act,
    selection.REACHED_BY,
)
PENALTY = Target(
    engines.BATCH_MODULE,
    engines.BATCH_CLASS,
    penalty.METHODS,
    fix.BATCH_MEMBERS,
    penalty.weave_source,
    penalty.carries_act,
)
