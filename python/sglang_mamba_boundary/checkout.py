"""An SGLang source tree as `git am` would find it: layout, committed bytes, release.

Separate from `export.py`, which knows the patch and not where sources come from.
The release is told by what the sources themselves show, since a version file in
a checkout is a leftover of its last build. Nothing here writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from . import engines, fix, git
from .git import Stopped
from .members import member_source
from .targets import LOOP, PENALTY

PACKAGE = engines.ENGINE
SCHEDULER, BATCH = LOOP.file, PENALTY.file

# A checkout keeps its package below python/, a wheel at the top.
_CHECKOUT, _WHEEL = "python/", ""


@dataclass(frozen=True)
class Trait:
    """Text by which `file` shows to be of `since` or newer, and if older, by which."""

    since: engines.Release
    file: str
    newer: str
    older: str = ""


# One for each release at which `engines.EDITS` changes the text of the fix.
TRAITS = (
    Trait((0, 5, 13), BATCH, r"\bself\.inflight_middle_chunks\b", r"\bis_chunked\b"),
    Trait((0, 5, 15), SCHEDULER, r"\.flush_opportunistic\("),
    Trait((0, 5, 16), SCHEDULER, r"\bself\.enable_unified_memory\b"),
    Trait(
        (0, 5, 19),
        BATCH,
        r"\.kv\.mamba_last_track_seqlen\b",
        r"\bself\.mamba_last_track_seqlen\b",
    ),
)


@dataclass(frozen=True)
class Checkout:
    """A source tree; `prefix` stands before the package's paths in its patches."""

    root: Path
    prefix: str
    tracked: bool

    @property
    def has_tests(self) -> bool:
        """Whether its layout is one that has a place for registered tests."""
        return self.prefix == _CHECKOUT

    def committed(self, path: str) -> bytes | None:
        """The bytes that a patch of `path` meets; None where there is no such file."""
        if not self.tracked:
            return self._present(path)
        entry = git.read(self.root, "ls-tree", "--full-tree", "HEAD", "--", path)
        if not entry:
            return None
        return git.read(self.root, "cat-file", "blob", entry.split()[2].decode())

    def is_executable(self, path: str) -> bool:
        file = self.root / path
        return file.is_file() and bool(file.stat().st_mode & 0o100)

    def text(self, path: str) -> str:
        """A file of the package for searching in it; empty where there is none."""
        return (self.committed(self.prefix + path) or b"").decode(errors="replace")

    def require_unmodified(self, path: str) -> None:
        """Raises Stopped where `git am` would meet something else than HEAD's file."""
        if self._present(path) != self.committed(path):
            raise Stopped(
                f"{path} in the working tree as in HEAD, which the patch is for",
                "an uncommitted change of it",
                "commit, stash or remove that change and export again",
            )

    def require_clean_index(self) -> None:
        """Raises Stopped where `git am` would refuse for staged changes."""
        if not self.tracked:
            return
        names = git.read(self.root, "diff-index", "--cached", "--name-only", "HEAD")
        if names:
            raise Stopped(
                "an index that equals HEAD, without which `git am` applies nothing",
                f"staged changes of {', '.join(names.decode().splitlines()[:3])}",
                "commit or unstage them and export again",
            )

    def _present(self, path: str) -> bytes | None:
        file = self.root / path
        return file.read_bytes() if file.is_file() else None


def open_checkout(source: Path) -> Checkout:
    """The SGLang checkout or unpacked wheel at `source`. Raises Stopped."""
    root = Path(source).resolve()
    sought = "an SGLang checkout or an unpacked wheel"
    remedy = f"name the folder that holds {_CHECKOUT}{PACKAGE} or {PACKAGE}"
    if not root.is_dir():
        raise Stopped(sought, f"no folder {source}", remedy)
    prefixes = [p for p in (_CHECKOUT, _WHEEL) if (root / p / PACKAGE).is_dir()]
    if not prefixes:
        found = f"neither {_CHECKOUT}{PACKAGE} nor {PACKAGE} in {source}"
        raise Stopped(sought, found, remedy)
    return Checkout(root, prefixes[0], (root / ".git").exists())


def find_release(checkout: Checkout) -> tuple[engines.Release, str]:
    """The release whose fix these sources need, and the words for it. Raises Stopped."""
    shown = _shown_release(checkout)
    version = _told_version(checkout)
    told = engines.parse_release(version or engines.dotted(shown))
    # A version below what the sources show was left by an earlier build or tag.
    if version is None or told < shown != engines.OLDEST:
        return shown, f"{engines.dotted(shown)} or newer"
    if told < engines.OLDEST:
        raise Stopped(
            f"{PACKAGE} {engines.dotted(engines.OLDEST)} or newer",
            f"{PACKAGE} {version}",
            "export from a newer checkout",
        )
    names = fix.MEMBERS + fix.BATCH_MEMBERS
    if member_source(told, names) != member_source(shown, names):
        raise Stopped(
            f"sources that read like the version that they state, {version}",
            f"sources that read like {engines.dotted(shown)}",
            "remove a version file that is wrong; a release newer than "
            f"{engines.dotted(engines.NEWEST)} may need a newer fix",
        )
    return shown, version


def _shown_release(checkout: Checkout) -> engines.Release:
    shown, lacking = engines.OLDEST, None
    for trait in TRAITS:
        text = checkout.text(trait.file)
        newer = re.search(trait.newer, text)
        if newer and not lacking:
            shown = trait.since
        elif newer or not re.search(trait.older, text):
            # Newer in one place and older in another, or neither.
            odd = trait if not newer else lacking
            raise Stopped(
                f"/{odd.newer}/ in {odd.file}, as in "
                f"{engines.dotted(odd.since)} and newer",
                "no such text, and not what older releases have instead",
                "use a release that this package knows, or report these sources",
            )
        else:
            lacking = lacking or trait
    return shown


def _told_version(checkout: Checkout) -> str | None:
    root, package = checkout.root, checkout.root / checkout.prefix / PACKAGE
    told = [_described(root)] if checkout.tracked else []
    files = [package / "_version.py", package / "version.py", root / "PKG-INFO"]
    files += sorted(root.glob(f"{PACKAGE}-*.dist-info/METADATA"))
    for file in files:
        text = file.read_text(errors="replace") if file.is_file() else ""
        told += re.findall(r"""^__version__.*= *['"](\S+?)['"]""", text, re.MULTILINE)
        told += re.findall(r"^Version: (\S+)", text, re.MULTILINE)
    # 0.0.0 stands where a build could not tell either.
    known = [v for v in told if engines.parse_release(v) not in (None, (0, 0, 0))]
    return known[0] if known else None


def _described(root: Path) -> str:
    try:
        tag = git.read(root, "describe", "--tags", "--match", "v[0-9]*", "HEAD")
    except Stopped:  # no tag, as in a shallow clone
        return ""
    return tag.decode().strip().removeprefix("v")
