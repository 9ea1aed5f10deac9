"""The virtual part as it is stored: one row a line, compared byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parent / "virtual.json"
KEY = ("workload", "running", "policy")


def line(row: dict) -> str:
    return json.dumps(row, sort_keys=True)


def write(rows: list[dict]) -> None:
    FILE.write_text("[\n" + ",\n".join(map(line, rows)) + "\n]\n")


def stored() -> dict[tuple, str]:
    """The line of each row, by its key."""
    lines = [text.rstrip(",") for text in FILE.read_text().splitlines()[1:-1]]
    return {tuple(json.loads(text)[k] for k in KEY): text for text in lines}


def differences(rows: list[dict]) -> list[str]:
    """Each row that is not the stored one, in words."""
    known, found = stored(), []
    for row in rows:
        key = tuple(row[k] for k in KEY)
        text = known.get(key)
        if text != line(row):
            found.append(f"{' '.join(map(str, key))}: {_difference(text, row)}")
    return found


def _difference(text: str | None, row: dict) -> str:
    if text is None:
        return "not stored; `python -m benchmark --update` stores it"
    before, after = json.loads(text), json.loads(line(row))
    fields = [f for f in {**before, **after} if before.get(f) != after.get(f)]
    return ", ".join(f"{f} {before.get(f)} -> {after.get(f)}" for f in fields)
