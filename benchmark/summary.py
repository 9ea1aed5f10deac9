"""The stored virtual part as the table of the documents: `python -m benchmark.summary`.
Names of workloads choose some. Columns follow the policies that the rows hold."""

from __future__ import annotations

import json
import sys

from benchmark.expected import FILE
from sglang_cpu_testbed.virtual.machine import H200

STOCK = "stock"
RUNNING = (16, 64)


def lines(rows: list[dict], workloads: list[str]) -> list[str]:
    """Output tokens per second against stock, the device's idle share, tokens from
    the cache, and whether decoded rows kept their slots; then the machine."""
    chosen = [
        row
        for row in rows
        if row["running"] in RUNNING and (row["workload"] in workloads or not workloads)
    ]
    cells: dict[tuple, dict[str, dict]] = {}
    for row in chosen:
        cells.setdefault((row["workload"], row["running"]), {})[row["policy"]] = row
    policies = list(dict.fromkeys(row["policy"] for row in chosen))
    head = ["workload", "running", *map(_heading, policies)]
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(_line(key, cell, policies) for key, cell in cells.items()),
        "",
        "Each cell: output tokens per second of stock's, device idle, tokens from the"
        f" cache; * where a row changed under a decode. Virtual clock, {H200.name}.",
    ]


def _heading(policy: str) -> str:
    return policy if policy == STOCK else f"`{policy}`"


def _line(key: tuple, cell: dict[str, dict], policies: list[str]) -> str:
    shown = " | ".join(_cell(cell[policy]) for policy in policies)
    return f"| {key[0]} | {key[1]} | {shown} |"


def _cell(row: dict) -> str:
    shares = f"{100 * row['ratio_to_stock']:.1f} %, {100 * row['device_idle']:.1f} %"
    star = "" if row["mapping_stable"] else " *"
    return f"{shares}, {row['cached_tokens']:,}{star}"


if __name__ == "__main__":
    print(*lines(json.loads(FILE.read_text()), sys.argv[1:]), sep="\n")
