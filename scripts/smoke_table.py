"""Prints what the README states of the recorded smoke, `docs/smoke.json`.

`--record` first takes over what `make smoke` wrote to build/smoke.json, which must
hold every expectation. CI asks its own servers again and compares row by row.
"""

import argparse
import json
from pathlib import Path

from sglang_cpu_testbed.scenarios import NO_OVERLAP
from sglang_cpu_testbed.smoke.record import DIGITS, recorded

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "smoke.json"
WRITTEN = ROOT / "build" / "smoke.json"
HEAD = (
    "configuration",
    "slots matter",
    "cold",
    "warm 1",
    "warm 2",
    "cached tokens",
    "stop tokens",
    "logprobs, cold to warm",
    "logprobs, shared prompt",
)


def lines(record: dict) -> list[str]:
    """The table, then the load in one paragraph."""
    return [
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
        *map(_row, record["servers"]),
        "",
        _load(record),
    ]


def _row(row: dict) -> str:
    cells = [
        row["configuration"],
        "yes" if row["slots_matter"] else "no",
        *row["answers"],
        " ".join(map(str, row["cached_tokens"])),
        " ".join(map(str, row["stop_tokens"])),
        f"{row['cold_warm_difference']:.{DIGITS}f}",
        f"{row['shared_difference']:.{DIGITS}f}",
    ]
    return f"| {' | '.join(cells)} |"


def _load(record: dict) -> str:
    load = dict(record["load"])
    clients, seconds = load.pop("clients"), load.pop("seconds")
    counts = ", ".join(f"{name} {count:,}" for name, count in load.items())
    return (
        f"The load, {clients} clients for {seconds:g} s on the woven engine: {counts}. All "
        f"{record['expectations']} expectations held; it took {record['minutes']} minutes."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    if parser.parse_args().record:
        try:
            record = recorded(json.loads(WRITTEN.read_text()), NO_OVERLAP.name)
        except ValueError as error:
            raise SystemExit(f"{error}; {RECORD.name} stays as it is") from None
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    if not RECORD.exists():
        raise SystemExit(f"looked for {RECORD}, found none; run `make smoke`")
    print(*lines(json.loads(RECORD.read_text())), sep="\n")


if __name__ == "__main__":
    main()
