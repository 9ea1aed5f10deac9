"""Cuts a failing history down: removes parts while the same class of violation
remains. Knows nothing of engines, it is handed a function that plays a history."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sglang_cpu_testbed.simulation.history import Arrive, History

# A play costs a fork and an engine where the last one failed badly.
MAX_PLAYS = 200


def shrink(
    history: History, fails: Callable[[History], bool], max_plays: int = MAX_PLAYS
) -> History:
    """The shortest history found, in at most ``max_plays`` plays."""
    budget = [max_plays]

    def still_fails(turns) -> bool:
        if budget[0] <= 0:
            return False
        budget[0] -= 1
        return fails(replace(history, turns=tuple(map(tuple, turns)), seed=None))

    turns = [list(turn) for turn in history.turns]
    size = None
    while size != _size(turns):
        size = _size(turns)
        turns = _without_requests(turns, still_fails)
        turns = _without_parts(turns, still_fails)
        turns = _without_operations(turns, still_fails)
        turns = _with_fewer_tokens(turns, still_fails)
    return replace(history, turns=tuple(map(tuple, turns)), seed=None)


def _size(turns) -> tuple:
    arrivals = [op for turn in turns for op in turn if isinstance(op, Arrive)]
    return len(turns), sum(map(len, turns)), sum(a.new_tokens for a in arrivals)


def _without_parts(parts: list, fails: Callable[[list], bool]) -> list:
    """Drop runs of elements, long ones first."""
    length = len(parts)
    while length:
        start = 0
        while start < len(parts):
            shorter = parts[:start] + parts[start + length :]
            if len(shorter) < len(parts) and fails(shorter):
                parts = shorter
            else:
                start += length
        length //= 2
    return parts


def _without_operations(turns: list, fails) -> list:
    for at in range(len(turns)):

        def replaced(operations: Sequence, at=at) -> bool:
            return fails([*turns[:at], list(operations), *turns[at + 1 :]])

        turns[at] = _without_parts(turns[at], replaced)
    return turns


def _without_requests(turns: list, fails) -> list:
    """Drop all operations on one request."""
    rids = {op.rid for turn in turns for op in turn if isinstance(op, Arrive)}
    for rid in sorted(rids):
        without = [
            [op for op in turn if getattr(op, "rid", "") != rid] for turn in turns
        ]
        if fails(without):
            turns = without
    return turns


def _with_fewer_tokens(turns: list, fails) -> list:
    for at, turn in enumerate(turns):
        for index, op in enumerate(turn):
            if not isinstance(op, Arrive):
                continue
            for fewer in sorted(
                {1, 2, 3, op.new_tokens // 2} & set(range(op.new_tokens))
            ):
                if fewer < 1 or (op.stop_at or 0) >= fewer:
                    continue
                changed = [
                    *turn[:index],
                    replace(op, new_tokens=fewer),
                    *turn[index + 1 :],
                ]
                if fails([*turns[:at], changed, *turns[at + 1 :]]):
                    turn[index] = changed[index]
                    break
    return turns
