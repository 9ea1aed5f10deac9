"""Histories as values: drawn from a seed, printed, cut down."""

import random

from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS
from sglang_cpu_testbed.simulation.draw import draw
from sglang_cpu_testbed.simulation.history import (
    Abort,
    Arrive,
    Complete,
    History,
    Prompt,
)
from sglang_cpu_testbed.simulation.shrink import shrink


def drawn(seed, name="page1"):
    return draw(name, CONFIGURATIONS[name].traffic, seed)


def test_a_seed_stands_for_one_history():
    random.seed(1)
    first = [drawn(seed) for seed in range(50)]
    random.seed(2)
    assert [drawn(seed) for seed in range(50)] == first
    assert len(set(first)) == 50
    assert drawn(3, "page16") != drawn(3)


def test_prompts_of_a_family_share_what_they_say():
    own, longer = Prompt(1, 20), Prompt(1, 40)
    branch = Prompt(1, 40, branch=2, shared=24)
    assert longer.tokens()[:20] == own.tokens()
    assert branch.tokens()[:24] == longer.tokens()[:24]
    assert branch.tokens()[24] != longer.tokens()[24]
    assert Prompt(2, 20).tokens() != own.tokens()


def test_every_operation_is_drawn():
    kinds = {
        type(operation).__name__
        for seed in range(300)
        for turn in drawn(seed).turns
        for operation in turn
    }
    assert kinds == set(
        "Arrive Abort Complete Flush Pause Continue Evict Retract".split()
    )


def test_a_history_is_cut_down_to_what_fails():
    def fails(history):
        rids = [a.rid for a in history.arrivals]
        return {"r1", "r2"} <= set(rids) and history.arrivals[0].new_tokens >= 2

    history = next(
        h for h in map(drawn, range(100)) if len(h.arrivals) >= 5 and fails(h)
    )
    shorter = shrink(history, fails)
    assert fails(shorter)
    assert [a.rid for a in shorter.arrivals] == ["r1", "r2"]
    assert sum(map(len, shorter.turns)) == 2
    assert shorter.arrivals[0].new_tokens == 2
    assert shorter.seed is None


def test_shrinking_keeps_to_its_budget():
    plays = []

    def fails(history):
        plays.append(history)
        return False

    shrink(drawn(1), fails, max_plays=7)
    assert len(plays) == 7


def test_a_history_reads_turn_by_turn():
    history = History(
        "page1", ((Arrive("r0", Prompt(0, 5), 2), Abort("r0")), (), (Complete(),))
    )
    assert history.lines() == [
        "turn   1: Arrive(rid=r0, prompt=Prompt(family=0, length=5, branch=0, shared=0),"
        " new_tokens=2); Abort(rid=r0)",
        "turn   2: -",
        "turn   3: Complete()",
    ]
