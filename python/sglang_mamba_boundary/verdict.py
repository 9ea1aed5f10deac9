"""What the probe can say about a loop, as values with the evidence in them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stale:
    """Affected: in each case of `evidence` a batch captured slots that changed later."""

    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"affected: {'; '.join(self.evidence)}"


@dataclass(frozen=True)
class Stable:
    """Not affected: no batch captured slots that changed later, in any case.

    Each result was processed once, in order. `overlap_lost` names what is
    processed before the next launch although it publishes nothing;
    `loses_overlap` says that this is everything.
    """

    evidence: tuple[str, ...]
    overlap_lost: tuple[str, ...] = ()
    loses_overlap: bool = False

    def __str__(self) -> str:
        lost = ""
        if self.loses_overlap:
            lost = "; but the loop never overlaps"
        elif self.overlap_lost:
            lost = f"; overlap is given up for {', '.join(self.overlap_lost)}"
        return f"not affected: {'; '.join(self.evidence)}{lost}"


@dataclass(frozen=True)
class Broken:
    """Not seen affected, but results are lost, doubled or reordered: not to be used."""

    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"broken: {'; '.join(self.evidence)}"


@dataclass(frozen=True)
class CannotTell:
    """No verdict. The fields say why, in the order a reader needs them."""

    sought: str
    found: str
    remedy: str = "use a release that this package knows, or report this loop"
    state: str = "whether the engine is affected is open"

    def __str__(self) -> str:
        return (
            f"looked for {self.sought}; found {self.found}; {self.state}; {self.remedy}"
        )


Verdict = Stale | Stable | Broken | CannotTell
