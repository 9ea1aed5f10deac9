"""Prints what the README states of the recorded simulations, `docs/simulation.json`.

`--record` first takes over what `make simulate` wrote to build/simulation.json. CI
plays each policy's smaller record again and compares, turn for turn.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from sglang_mamba_boundary.policies import POLICIES

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "simulation.json"
WRITTEN = ROOT / "build" / "simulation.json"
COUNTS = ("seeds", "turns", "requests", "violations")


def lines(runs: Iterable[dict]) -> list[str]:
    """One row per policy: its largest run, and how many of these seeds CI plays again."""
    by_policy: dict[str, list[dict]] = {}
    for run in sorted(runs, key=lambda run: run["seeds"]):
        by_policy.setdefault(run["policy"], []).append(run)
    table = [
        f"| policy | configurations | {' | '.join(COUNTS)} | again in CI |",
        "| --- |" + " ---: |" * (2 + len(COUNTS)),
    ]
    for policy in sorted(by_policy, key=list(POLICIES).index):
        again, run = by_policy[policy][0], by_policy[policy][-1]
        cells = " | ".join(f"{run[count]:,}" for count in COUNTS)
        configurations = len(run["configurations"])
        table.append(
            f"| {policy} | {configurations} | {cells} | {again['seeds']:,} seeds |"
        )
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
