"""The part of a run that is timed, as it was recorded: `python -m benchmark.recorded`.
`wall` prints the rows of the wall clock, `costs` what the check costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmark import table

FILE = Path(__file__).parent / "wall.json"
PARTS = ("wall", "costs")


def write(rows: list[dict], costs: list[dict]) -> None:
    """`rows` may hold those of other clocks."""
    wall = [row for row in rows if row["clock"] == "wall"]
    FILE.write_text(json.dumps({"wall": wall, "costs": costs}, indent=1) + "\n")


def lines(part: str) -> list[str]:
    recorded = json.loads(FILE.read_text())
    if part == "wall":
        return table.row_lines(recorded["wall"])
    return table.cost_lines(recorded["costs"], recorded["wall"])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        sys.exit(f"looked for one of {', '.join(PARTS)}; found {sys.argv[1:]}")
    print(*lines(sys.argv[1]), sep="\n")
