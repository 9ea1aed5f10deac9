"""Prints the version if all places agree on it: pyproject.toml, the newest heading of
CHANGELOG.md, and the tag of a release, `--tag v1.2.3`. Exits 1 where they do not."""

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def stated(root: Path, tag: str | None = None) -> dict[str, str]:
    """The version by the place that states it; "none" where it states none."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    changes = (root / "CHANGELOG.md").read_text()
    heading = re.search(r"^## (\S+)", changes, re.MULTILINE)
    found = {
        "pyproject.toml": project["version"],
        "CHANGELOG.md": heading[1] if heading else "none",
    }
    if tag is not None:
        found["the tag"] = tag.removeprefix("v") if tag.startswith("v") else "none"
    return found


def agreed(root: Path, tag: str | None = None) -> str:
    """The version. Raises ValueError where two places differ."""
    found = stated(root, tag)
    if len(set(found.values())) != 1 or "none" in found.values():
        places = ", ".join(f"{place}: {version}" for place, version in found.items())
        raise ValueError(
            f"looked for one version in all places, found {places}; nothing was built; "
            "bring them to the same version"
        )
    return found["pyproject.toml"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="of the release, such as v1.2.3")
    try:
        print(agreed(ROOT, parser.parse_args().tag or None))
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
