"""The `git` program, run so that what it writes depends on its input alone.

Whatever stops an export is raised here and in the modules that use this one as
`Stopped`, and leaves `export.py` as the `Refused` that it carries.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .outcome import Refused

UNTOUCHED = "the source tree is unchanged and no patch was made"

# No settings of the user or the machine, no hooks, no templates, no pager.
_OWN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TEMPLATE_DIR": "",
    "TZ": "UTC",
}


class Stopped(Exception):
    """The export cannot go on; `refusal` says why."""

    def __init__(self, sought: str, found: str, remedy: str):
        self.refusal = Refused(sought, found, remedy, UNTOUCHED)
        super().__init__(str(self.refusal))


def read(folder: Path, *arguments: str) -> bytes:
    """Ask the user's repository at `folder`, without even refreshing its index.

    The user's settings hold here, since they say which folders git may trust.
    """
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return _run(folder, arguments, {**environ, "GIT_OPTIONAL_LOCKS": "0"})


def run(folder: Path, *arguments: str, stdin: bytes = b"", **environ: str) -> bytes:
    """Work in a scratch repository at `folder`, under no settings but git's own."""
    path = os.environ.get("PATH", os.defpath)
    own = {**_OWN, "PATH": path, "HOME": str(folder), **environ}
    return _run(folder, arguments, own, stdin)


def _run(folder, arguments, environ, stdin=b"") -> bytes:
    command = ["git", "--no-pager", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            input=stdin,
            capture_output=True,
            # Its words reach the user, so in one language.
            env={**environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise Stopped("the program git", "none on PATH", "install git") from None
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        raise Stopped(
            f"`git {arguments[0]}` to succeed",
            " / ".join(word.strip() for word in words if word.strip()),
            "act on what git says and export again",
        )
    return done.stdout
