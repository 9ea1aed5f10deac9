"""The folder: written whole beside its place and then moved there, or not at all."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from upstream import ROOT, Stop
from upstream.description import PICTURE, description
from upstream.evidence import PACKAGE, Evidence
from upstream.reproduce import PATCH, reproduce

# By this file a folder is recognised as one that may be replaced.
RECORD = "record.json"


def contents(evidence: Evidence) -> dict[str, bytes]:
    picture = (ROOT / "docs" / PICTURE).read_bytes()
    return {
        PATCH: evidence.exported.patch,
        "DESCRIPTION.md": description(evidence).encode(),
        "REPRODUCE.md": reproduce(evidence).encode(),
        PICTURE: picture,
        RECORD: (json.dumps(record(evidence), indent=1) + "\n").encode(),
    }


def names(evidence: Evidence) -> list[str]:
    return list(contents(evidence))


def record(evidence: Evidence) -> dict:
    """All that the description was made from."""
    return {
        "made_by": PACKAGE,
        "package": evidence.package,
        "python": evidence.python,
        "commit": evidence.commit,
        "tree": evidence.tree,
        "engine": evidence.exported.engine,
        "patch_sha256": evidence.sha256,
        "files": evidence.exported.files,
        "left_out": evidence.exported.left_out,
        "trial": asdict(evidence.trial),
        "records": asdict(evidence.records),
    }


def require_free(out: Path) -> None:
    """Raises Stop where something stands at `out` that is not ours to replace."""
    if not out.exists() or _is_ours(out) or (out.is_dir() and not any(out.iterdir())):
        return
    raise Stop(
        f"no folder {out}, an empty one, or one that this command made",
        "something else",
        "choose another with OUT=",
    )


def _is_ours(out: Path) -> bool:
    try:
        return json.loads((out / RECORD).read_text())["made_by"] == PACKAGE
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(out: Path, evidence: Evidence) -> None:
    """Replaces a folder of ours as a whole. Raises Stop."""
    files = contents(evidence)
    require_free(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".upstream-") as work:
            new = Path(work, "new")
            new.mkdir()
            for name, content in files.items():
                (new / name).write_bytes(content)
            if out.exists():
                out.rename(Path(work, "old"))
            new.rename(out)
    except OSError as error:
        found = f"{type(error).__name__}: {error}"
        raise Stop(
            f"a place to write {out}", found, "choose another with OUT="
        ) from None
