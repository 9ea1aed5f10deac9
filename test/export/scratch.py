"""Scratch SGLang trees for the export: real sources, in a git repository or not."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SCHEDULER = "sglang/srt/managers/scheduler.py"
BATCH = "sglang/srt/managers/schedule_batch.py"
COMMON = "sglang/srt/mem_cache/common.py"
# What the export reads of an engine, and so all that a tree of text needs.
READ = (SCHEDULER, BATCH, COMMON)

_ENVIRON = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_COMMITTER_NAME": "Somebody",
    "GIT_COMMITTER_EMAIL": "somebody@example.invalid",
    "GIT_AUTHOR_NAME": "Somebody",
    "GIT_AUTHOR_EMAIL": "somebody@example.invalid",
}


def installed() -> Path:
    """The folder that holds the installed engine's package."""
    return Path(find_spec("sglang").submodule_search_locations[0]).parent


def git(tree: Path, *arguments: str, stdin: bytes = b"", fails=False) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=tree, input=stdin, capture_output=True, env=_ENVIRON
    )
    assert (done.returncode != 0) is fails, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode().strip()


def commit(tree: Path, *paths: str) -> None:
    git(tree, "add", "--force", *(paths or ["--all"]))
    git(tree, "commit", "--quiet", "--message=sources")


def copy_sources(package: Path, tree: Path, prefix: str = "python/") -> Path:
    """The sources that the export reads, from the folder `package` into `tree`."""
    for path in READ:
        target = tree / prefix / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((package / path).read_bytes())
    return tree


def make_repository(tree: Path) -> Path:
    git(tree, "init", "--quiet")
    commit(tree)
    return tree


def link_package(package: Path, tree: Path) -> Path:
    """A whole package that can be imported from `tree`: real files where git
    tracks them, links everywhere else."""
    real = {Path(path) for path in READ}
    folders = {parent for path in real for parent in path.parents}

    def link(inner: Path) -> None:
        for entry in (package / inner).iterdir():
            path, target = inner / entry.name, tree / "python" / inner / entry.name
            if path in folders:
                target.mkdir(parents=True)
                link(path)
            elif path in real:
                target.write_bytes(entry.read_bytes())
            elif entry.name != "__pycache__":
                target.symlink_to(entry)

    (tree / "python/sglang").mkdir(parents=True)
    link(Path("sglang"))
    return tree


def edit(file: Path, *replacements: tuple[str, str]) -> None:
    """Replace in a file what it must contain."""
    text = file.read_text()
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
