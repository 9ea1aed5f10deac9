"""Everything that a description states, gathered before a word of it is written."""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sglang_mamba_boundary import git
from sglang_mamba_boundary.checkout import open_checkout
from sglang_mamba_boundary.export import Exported, export
from sglang_mamba_boundary.git import Stopped
from sglang_mamba_boundary.outcome import AlreadyFixed, Refused
from upstream import Stop, records, trial
from upstream.records import Records
from upstream.trial import Trial

PACKAGE = "sglang-mamba-boundary"


@dataclass(frozen=True)
class Evidence:
    """``commit`` and ``tree`` are of the checkout that the patch was made for."""

    exported: Exported
    commit: str
    tree: str
    trial: Trial
    records: Records
    package: str
    python: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.exported.patch).hexdigest()

    @property
    def notes(self) -> list[str]:
        """What a reader of the description should hear at once."""
        notes = [*self.exported.notes]
        if self.trial.tests.not_run:
            notes.append(f"tests not run on the checkout: {self.trial.tests.not_run}")
        if self.trial.lint_failed:
            notes.append(f"lint not passed: {self.trial.lint_failed}")
        return notes


def gather(source: Path, author: str, say: Callable[[str], None]) -> Evidence:
    """Raises Stop."""
    kept = records.read()
    try:
        if not open_checkout(source).tracked:
            raise Stop(
                "an SGLang checkout under git",
                f"no git repository at {source}",
                "clone SGLang, or use `mamba-boundary export` for an unpacked wheel",
            )
        say("making the patch, verified on a copy")
        exported = _exported(source, author)
        commit, tree = (
            git.read(source, "rev-parse", name).decode().strip()
            for name in ("HEAD", "HEAD^{tree}")
        )
        return Evidence(
            exported=exported,
            commit=commit,
            tree=tree,
            trial=trial.run(source, exported, say),
            records=kept,
            package=version(PACKAGE),
            python=platform.python_version(),
        )
    except Stopped as stopped:
        told = stopped.refusal
        raise Stop(told.sought, told.found, told.remedy) from None


def _exported(source: Path, author: str) -> Exported:
    outcome = export(source, author=author)
    if isinstance(outcome, Refused):
        raise Stop(outcome.sought, outcome.found, outcome.remedy)
    if isinstance(outcome, AlreadyFixed):
        raise Stop(
            "a checkout without the fix", str(outcome), "there is nothing to send"
        )
    return outcome
