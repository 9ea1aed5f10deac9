"""The stored virtual part as the table in README.md: `python -m benchmark.summary`."""

from __future__ import annotations

import json

from benchmark.expected import FILE

# Per policy: output tokens per second against stock, and the device's idle share.
SHOWN = ("overlap-off", "flush", "publish")
RUNNING = (16, 64)
HEAD = (
    "| workload | running | "
    + " | ".join(f"`{policy}` of stock, idle" for policy in SHOWN)
    + " | cached tokens: stock, `flush`, `publish` | rows kept: stock, `flush`, `publish` |"
)


def lines() -> list[str]:
    cells: dict[tuple, dict[str, dict]] = {}
    for row in json.loads(FILE.read_text()):
        cells.setdefault((row["workload"], row["running"]), {})[row["policy"]] = row
    shown = [_line(key, cell) for key, cell in cells.items() if key[1] in RUNNING]
    return [HEAD, "|---" * (HEAD.count("|") - 1) + "|", *shown]


def _line(key: tuple, cell: dict[str, dict]) -> str:
    rates = [
        f"{100 * cell[p]['ratio_to_stock']:.1f} %, {100 * cell[p]['device_idle']:.1f} %"
        for p in SHOWN
    ]
    told = ("stock", "flush", "publish")
    cached = ", ".join(f"{cell[p]['cached_tokens']:,}" for p in told)
    kept = ", ".join("yes" if cell[p]["mapping_stable"] else "no" for p in told)
    return f"| {key[0]} | {key[1]} | {' | '.join(rates)} | {cached} | {kept} |"


if __name__ == "__main__":
    print(*lines(), sep="\n")
