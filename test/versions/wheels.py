"""Sources of each released engine, fetched once without its dependencies.

The cache lies outside the repository, in `$XDG_CACHE_HOME` or `~/.cache`. What
stands in it under its final name is complete: a wheel is renamed to it after
its checksums were verified, a source tree after all files were written.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from sglang_mamba_boundary import engines

VERSIONS = (
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
BY_AGE = {"oldest": VERSIONS[0], "middle": "0.5.17", "newest": VERSIONS[-1]}


class NoWheel(Exception):
    """The sources of a release cannot be had."""

    def __init__(self, version: str, found: str):
        self.version, self.found = version, found
        super().__init__(
            f"looked for a wheel of {engines.ENGINE} {version}; found {found}; "
            f"the cache {cache()} holds nothing of it; "
            "check the connection to the package registry, or select other releases"
        )


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sglang-mamba-boundary" / "wheels"


def select(releases: str) -> tuple[str, ...]:
    """Versions from `all`, or from names and versions with commas between them."""
    if releases == "all":
        return VERSIONS
    chosen = tuple(BY_AGE.get(name, name) for name in releases.split(","))
    for version in chosen:
        if version not in VERSIONS:
            names = ", ".join(("all", *BY_AGE, *VERSIONS))
            raise ValueError(f"{version!r} is none of the releases {names}")
    return chosen


def release_root(version: str) -> Path:
    """A folder that holds the Python sources of a release, from `sglang/` on; read only."""
    root = cache() / version
    if not root.exists():
        wheel = _wheel(version)
        with _workplace() as work:
            with zipfile.ZipFile(wheel) as archive:
                sources = [n for n in archive.namelist() if n.endswith(".py")]
                archive.extractall(
                    work, [n for n in sources if n.startswith("sglang/")]
                )
            _settle(Path(work), root)
    return root


def _wheel(version: str) -> Path:
    kept = cache() / f"{engines.ENGINE}-{version}.whl"
    if not kept.exists():
        with _workplace() as work:
            fetched = _fetch(version, work)
            broken = _broken(fetched)
            if broken:
                raise NoWheel(version, f"a broken one: {broken}")
            _settle(fetched, kept)
    return kept


def _fetch(version: str, folder: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", folder]
    done = subprocess.run(
        [*command, f"{engines.ENGINE}=={version}"], capture_output=True, text=True
    )
    wheels = list(Path(folder).glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise NoWheel(version, said[-1])
    return wheels[0]


def _broken(wheel: Path) -> str | None:
    """Why a wheel is not complete; None where every file has its checksum."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.testzip()
    except zipfile.BadZipFile as error:
        return str(error)


def _workplace() -> tempfile.TemporaryDirectory:
    # Inside the cache, since a rename cannot leave its file system.
    cache().mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(
        dir=cache(), prefix="part-", ignore_cleanup_errors=True
    )


def _settle(part: Path, final: Path) -> None:
    try:
        part.rename(final)
    except OSError:
        # Another process was first; what it put there is complete.
        if not final.exists():
            raise
        shutil.rmtree(part, ignore_errors=True)
