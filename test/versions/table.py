"""Runs the probe and the weave on every release and prints the README's table."""

import argparse
import sys
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "probe")]

import wheels
from release import Release

from sglang_mamba_boundary.git import Stopped
from sglang_mamba_boundary.probe import Broken, CannotTell, Stable, Stale

HEADER = (
    "| releases (how many) | their own loop | with the fix | notes |",
    "|---|---|---|---|",
)
VERDICTS = {
    Stale: "affected",
    Stable: "not affected",
    Broken: "broken",
    CannotTell: "cannot tell",
    Stopped: "refused",
}


def row(release: Release) -> str:
    """The cells of a release but its name."""
    stock, fixed = release.stock_verdict, release.fixed_verdict
    notes = release.notes() + ([str(fixed)] if isinstance(fixed, Stopped) else [])
    verdicts = f"{VERDICTS[type(stock)]} | {VERDICTS[type(fixed)]}"
    return f"{verdicts} | {'; '.join(notes)} |"


def table(releases: str) -> str:
    """One row per run of releases that do not differ."""
    versions = wheels.select(releases)
    rows = [(row(Release(v, wheels.release_root(v))), v) for v in versions]
    lines = []
    for cells, group in groupby(rows, key=lambda pair: pair[0]):
        names = [version for _, version in group]
        ends = dict.fromkeys([names[0], names[-1]])
        lines.append(f"| {' to '.join(ends)} ({len(names)}) | {cells}")
    return "\n".join((*HEADER, *lines)) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", default="all")
    options = parser.parse_args(arguments)
    try:
        print(table(options.releases), end="")
    except (ValueError, wheels.NoWheel) as error:
        raise SystemExit(f"table: {error}") from None


if __name__ == "__main__":
    main()
