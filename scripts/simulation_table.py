"""Prints what the README states of the recorded simulations, `docs/simulation.json`.

`--record` first takes over what `make simulate` wrote to build/simulation.json. CI
plays the smaller record's seeds again and compares, turn for turn.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "simulation.json"
WRITTEN = ROOT / "build" / "simulation.json"
COUNTS = ("seeds", "turns", "requests", "violations")


def lines(runs: Iterable[dict]) -> list[str]:
    """One row per recorded run."""
    table = [
        f"| policy | configurations | {' | '.join(COUNTS)} |",
        "| --- |" + " ---: |" * (1 + len(COUNTS)),
    ]
    for run in runs:
        cells = " | ".join(f"{run[count]:,}" for count in COUNTS)
        table.append(f"| {run['policy']} | {len(run['configurations'])} | {cells} |")
    return table


def recorded(written: dict) -> dict:
    """The counts of a run, in all and per configuration."""
    rows = written["configurations"].items()
    return {
        "policy": written["policy"],
        **{count: written[count] for count in COUNTS},
        "configurations": {n: {c: row[c] for c in COUNTS} for n, row in rows},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if parser.parse_args().record:
        written = json.loads(WRITTEN.read_text())
        record[f"{written['policy']} {written['seeds']}"] = recorded(written)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(*lines(record.values()), sep="\n")


if __name__ == "__main__":
    main()
