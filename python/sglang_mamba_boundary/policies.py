"""The policies that put the fix into the loop, as data: what each weaves and adds.

`flush` is the fix itself. Every other policy keeps its act under another name, for
what it leaves to it, and replaces some members by its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from . import engines, late, loop, publish, rebind, targets
from .engines import Release
from .members import members
from .targets import Target

# The act of the policy flush, where another policy has taken its name.
FLUSH = "flush_pending_mamba_prefill"

_NOTED_LOOP = replace(
    targets.LOOP, weave_source=partial(loop.weave_source, flag=loop.NOTED)
)


@dataclass(frozen=True)
class Policy:
    """`obstacles` are members that say why this policy does not act in a server, each
    with the policy that is followed then; `own` are its modules, later over earlier."""

    name: str
    since: Release = engines.OLDEST
    targets: tuple[Target, ...] = (targets.LOOP, targets.PENALTY)
    own: tuple[tuple[object, tuple[str, ...]], ...] = ()
    obstacles: tuple[tuple[str, str], ...] = ()

    def members(self, target: Target, release: Release) -> dict[str, object]:
        """Name and value of what joins the class of `target`."""
        found = members(release, target.members)
        if self.own and loop.ACT in found:
            found[FLUSH] = found[loop.ACT]
            for module, names in self.own:
                found |= {name: getattr(module, name) for name in names}
        return found


_AHEAD = (publish, (publish.AHEAD,))
_LATE_TARGETS = (_NOTED_LOOP, targets.SELECTION, targets.PENALTY)
_TO_FLUSH = (late.OBSTACLE, "flush")

# Each was tried on the releases since `since` only. They need more of one than the fix
# does: donated states, copies deferred to the forward, no decode of what ends anyway.
_TRIED: Release = (0, 5, 23)

POLICIES = {
    policy.name: policy
    for policy in (
        Policy("flush"),
        Policy(
            "publish",
            _TRIED,
            own=((publish, publish.MEMBERS),),
            obstacles=((publish.OBSTACLE, "flush"),),
        ),
        Policy(
            "late",
            _TRIED,
            _LATE_TARGETS,
            own=(_AHEAD, (late, late.MEMBERS)),
            obstacles=(_TO_FLUSH,),
        ),
        Policy(
            "rebind",
            _TRIED,
            _LATE_TARGETS,
            own=(_AHEAD, (late, late.MEMBERS), (rebind, rebind.MEMBERS)),
            obstacles=(_TO_FLUSH, (rebind.OBSTACLE, "late")),
        ),
    )
}
