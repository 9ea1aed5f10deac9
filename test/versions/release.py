"""One release: its files, and what the weave and the probe make of them."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sglang_mamba_boundary import engines, targets
from sglang_mamba_boundary.fixed_text import fix_file
from sglang_mamba_boundary.git import Stopped
from sglang_mamba_boundary.members import member_source
from sglang_mamba_boundary.probe import Verdict, probe_source
from sglang_mamba_boundary.targets import Target

TARGETS = (targets.LOOP, targets.PENALTY)


@dataclass(frozen=True)
class Release:
    version: str
    root: Path

    @cached_property
    def number(self) -> engines.Release:
        return engines.parse_release(self.version)

    def stock(self, target: Target) -> str:
        return (self.root / target.file).read_text()

    def fixed(self, target: Target) -> str:
        return fix_file(self.stock(target), target, self.number)

    def member_source(self, target: Target) -> str:
        return member_source(self.number, target.members)

    @cached_property
    def stock_verdict(self) -> Verdict:
        return probe_source(self.stock(targets.LOOP))

    @cached_property
    def fixed_verdict(self) -> Verdict | Stopped:
        try:
            return probe_source(self.fixed(targets.LOOP))
        except Stopped as refusal:
            return refusal

    def notes(self) -> list[str]:
        """What the fix reads or does otherwise than on the newest release."""
        notes = []
        for attribute in ("mamba_last_track_seqlen", "enable_unified_memory"):
            read, read_in_newest = (
                _chain(attribute, member_source(release, targets.LOOP.members))
                for release in (self.number, engines.NEWEST)
            )
            if read is None:
                notes.append(f"no `{attribute}`")
            elif read != read_in_newest:
                notes.append(f"reads `{read}`")
        lost = getattr(self.fixed_verdict, "overlap_lost", ())
        return notes + [f"no overlap for {subject}" for subject in lost]


def _chain(attribute: str, source: str) -> str | None:
    found = re.search(rf"[\w.]+\.{attribute}\b", source)
    return found and found.group()
