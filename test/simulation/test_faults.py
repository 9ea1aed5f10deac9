"""The method catches what it is there for: the stock loop, and ten wrong fixes. Each
within a bounded number of seeds, each by the oracle that is to see it."""

import pytest

from sglang_cpu_testbed.simulation.campaign import history_of
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS
from sglang_cpu_testbed.simulation.faults import FAULTS, Fault, edited
from sglang_cpu_testbed.simulation.verdict import ENGINE, OUTPUT, STALE, WAIT

# Seeds until the fault was seen, rounded up generously; see docs/simulation.md.
BOUND = 40


def first_seed(campaign, name, kind):
    """The first seed whose history shows this kind of violation, and its verdict."""
    with campaign.player(CONFIGURATIONS[name]) as player:
        for seed in range(BOUND):
            verdict = player.play(history_of(name, seed)).verdict
            if kind in verdict.kinds():
                return seed, verdict
    raise AssertionError(f"{kind} not found in {BOUND} seeds of {name}")


@pytest.mark.parametrize(
    "name", ["page1", "page1-python-tree", "page64", "lazy", "chunks", "mixed"]
)
def test_the_stock_loop_is_caught_by_its_captures(campaign_of, name):
    _, verdict = first_seed(campaign_of("off"), name, STALE)
    assert verdict.early == 0


def test_the_stock_loop_is_caught_by_its_output(campaign_of):
    first_seed(campaign_of("off"), "page1", OUTPUT)


@pytest.mark.parametrize(
    "fault, name, kind",
    [
        ("second-site-unguarded", "page1", WAIT),
        ("guard-by-queue", "page1", WAIT),
        ("decode-rows-count", "mixed", WAIT),
        ("drain-always", "page1", WAIT),
        ("ahead-of-all-but-one", "page1", STALE),
        ("ahead-and-consumed", "page1", ENGINE),
        ("late-and-not-told", "page1", WAIT),
        ("late-for-the-first-only", "page1", STALE),
        ("rebind-without-the-tree", "page1", STALE),
        ("rebind-without-the-batch", "page1", STALE),
    ],
)
def test_a_planted_fault_is_caught(campaign_of, fault, name, kind):
    first_seed(campaign_of(fault), name, kind)


def test_draining_always_is_correct_and_loses_all_overlap(campaign_of):
    _, verdict = first_seed(campaign_of("drain-always"), "page1", WAIT)
    assert verdict.kinds() == {WAIT}
    assert verdict.overlapped == 0


def test_the_right_fix_overlaps(campaign_of):
    campaign = campaign_of("flush")
    with campaign.player(CONFIGURATIONS["page1"]) as player:
        verdicts = [player.play(history_of("page1", s)).verdict for s in range(5)]
    assert sum(v.overlapped for v in verdicts) > 2 * sum(v.early for v in verdicts) > 0


def test_every_fault_is_tried():
    assert len(FAULTS) == 10


def test_an_edit_that_does_not_match_is_refused():
    with pytest.raises(ValueError, match="is not in the text"):
        edited("text", Fault("none", "loop", "other", ""))
