"""The recorded results that a description may state, as they lie in the repository."""

import json
from dataclasses import dataclass
from pathlib import Path

from upstream import ROOT, Stop

SIMULATION = "docs/simulation.json"
SMOKE = "docs/smoke.json"
BENCHMARK = "benchmark/virtual.json"
PICTURE = "docs/loop.png"
# How each of them comes about, for the one who misses it.
WRITTEN_BY = {
    SIMULATION: "make simulate",
    SMOKE: "make smoke",
    BENCHMARK: "python -m benchmark --update",
    PICTURE: "make picture",
}
# The patch is of the policy flush: other policies have no part in its description.
POLICIES = ("stock", "overlap-off", "flush")


@dataclass(frozen=True)
class Records:
    """As read, without what a description has no use for."""

    simulation: list[dict]
    smoke: dict
    benchmark: list[dict]


def read(root: Path = ROOT) -> Records:
    """Raises Stop where one is missing or says that something failed."""
    simulation, smoke, benchmark = (
        _load(root, file) for file in (SIMULATION, SMOKE, BENCHMARK)
    )
    _find(root, PICTURE)
    runs = [run for run in simulation.values() if run["policy"] == POLICIES[-1]]
    if any(run["violations"] for run in runs) or not runs:
        found = [run["violations"] for run in runs]
        raise Stop(
            f"runs of the policy {POLICIES[-1]} without a violation in {SIMULATION}",
            f"violations {found}",
            "find the cause before anything is sent",
        )
    return Records(
        simulation=runs,
        smoke=smoke,
        benchmark=[row for row in benchmark if row["policy"] in POLICIES],
    )


def _find(root: Path, file: str) -> Path:
    if not (root / file).is_file():
        raise Stop(f"the record {file}", "no such file", f"run `{WRITTEN_BY[file]}`")
    return root / file


def _load(root: Path, file: str):
    try:
        return json.loads(_find(root, file).read_text())
    except json.JSONDecodeError as error:
        remedy = f"run `{WRITTEN_BY[file]}`"
        raise Stop(f"JSON in the record {file}", str(error), remedy) from None
