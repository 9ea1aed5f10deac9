"""Ratios to stock, and the table that is printed."""

from __future__ import annotations

from statistics import median

SAME = ("workload", "running", "clock", "repetition")
HEAD = (
    "workload  running policy      clock   tok/s    of stock            "
    "TTFT p50/p99 ms   ITL p50/p99 ms  idle %  early ahead fallb rebound  cached stable"
)
USES = (
    "virtual clock: host costs are inputs. Exact and repeatable: use it to compare policies"
    " and to see where the device is idle, not to predict a server.",
    "wall clock: the scheduler's own CPU time on this machine, in Python on a CPU build; the"
    " model is replaced and left out. Use its ratios with their spread, not its tok/s.",
)


def with_ratios(rows: list[dict]) -> list[dict]:
    """The rows with `ratio_to_stock`, each against stock of the same repetition."""
    stock = {_key(row): row["tok_per_s"] for row in rows if row["policy"] == "stock"}
    return [
        row | {"ratio_to_stock": _ratio(row["tok_per_s"], stock.get(_key(row)))}
        for row in rows
    ]


def merged(rows: list[dict]) -> list[dict]:
    """One row per policy and workload: medians, and the spread of the ratios."""
    groups: dict[tuple, list[dict]] = {}
    for row in with_ratios(rows):
        key = row["workload"], row["running"], row["policy"]
        groups.setdefault(key, []).append(row)
    return [_median_of(group) for group in groups.values()]


def _median_of(group: list[dict]) -> dict:
    middle = dict(group[0])
    for name, value in group[0].items():
        values = [row[name] for row in group]
        if type(value) is bool:
            middle[name] = all(values)
        elif isinstance(value, float):
            middle[name] = round(median(values), 4)
    ratios = [row["ratio_to_stock"] for row in group if row["ratio_to_stock"]]
    middle["ratio_spread"] = [min(ratios), max(ratios)] if ratios else []
    middle["repetition"] = len(group)
    return middle


def _key(row: dict) -> tuple:
    return tuple(row[name] for name in SAME)


def _ratio(value: float, stock: float | None) -> float | None:
    return round(value / stock, 4) if stock else None


def lines(rows: list[dict], costs: list[dict], machine) -> list[str]:
    """Everything that is printed."""
    return [
        *machine.lines(),
        *USES,
        "",
        *row_lines(rows),
        "",
        *cost_lines(costs, rows),
    ]


def row_lines(rows: list[dict]) -> list[str]:
    return [HEAD, *map(_line, rows)]


def _line(row: dict) -> str:
    ratio = "" if row["ratio_to_stock"] is None else f"{row['ratio_to_stock']:.3f}"
    if row["ratio_spread"]:
        ratio += " ({:.3f}..{:.3f})".format(*row["ratio_spread"])
    return (
        f"{row['workload']:<9} {row['running']:>7} {row['policy']:<11} {row['clock']:<7}"
        f" {row['tok_per_s']:<8.0f} {ratio:<20}"
        f"{row['ttft_p50_ms']:>8.1f}/{row['ttft_p99_ms']:<8.1f}"
        f"{row['itl_p50_ms']:>7.1f}/{row['itl_p99_ms']:<8.1f}"
        f"{100 * row['device_idle']:>6.1f} {row['early_results']:>6}"
        f" {row['published_ahead']:>5} {row['policy_fallbacks']:>5}"
        f" {row['rebound_rows']:>7} {row['cached_tokens']:>7}"
        f" {'yes' if row['mapping_stable'] else 'NO'}"
    )


def cost_lines(costs: list[dict], rows: list[dict]) -> list[str]:
    turns = [
        row["host_us_per_turn"]
        for row in rows
        if row["clock"] == "wall" and row["policy"] == "stock"
    ]
    turn_us = min(turns) if turns else None
    shown = ["cost of the check per loop turn, least of several runs:"]
    for cost in costs:
        share = f", {cost['ns'] / turn_us / 10:.3f} % of a turn" if turn_us else ""
        peak = f"{cost['peak_bytes']} bytes" if cost["peak_bytes"] else "nothing"
        shown.append(
            f"  {cost['pending']:<38} {cost['ns']:>9,.0f} ns{share}; allocates {peak}"
        )
    for row in rows:
        if row["clock"] == "wall" and row["policy"] == "stock":
            shown.append(
                f"left out of the wall clock, {row['workload']} {row['running']}: "
                f"{row['left_out_us_per_turn']:.0f} us of model and meter per turn, "
                f"beside {row['host_us_per_turn']:.0f} us that count"
            )
    return shown
